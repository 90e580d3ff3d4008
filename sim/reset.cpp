// SPDX-License-Identifier: Apache-2.0
// How the one state begins, begins afresh, and ends with the process.
#include "address_ranges.hpp"
#include "freed.hpp"
#include "guard.hpp"
#include "operands.hpp"
#include "runner_free.hpp"
#include "state.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace escrow::sim::model {
namespace {

void fresh_devices(state& s) {
  s.devices = std::vector<device>(static_cast<std::size_t>(s.how.devices));
  for (int number = 0; number < s.how.devices; ++number) {
    auto& d = s.devices[static_cast<std::size_t>(number)];
    d.legacy = std::make_shared<stream_state>();
    d.legacy->device = number;
    d.legacy->id = ++s.next_id;
    d.legacy->at.own.stream = d.legacy->id;
    s.known_done.add_stream(d.legacy->id);
    d.legacy->legacy = true;
    d.legacy->runs_on = std::make_shared<executor>();
    d.streams.emplace(d.legacy->id, d.legacy);
    d.pool.device = number;
  }
}

pid_t process = 0;                           // that has the threads
std::atomic<bool> is_child{false};           // relaxed: set where there is one thread
std::atomic<bool> may_children_call{false};  // relaxed: a value alone

// A test that orders a failure of what is never called tests nothing.
void tell_idle_faults(state const& s) {
  for (auto const& [name, faults] : s.faults_by_name) {
    if (std::ranges::any_of(faults, [](call_fault const& each) { return each.was_made; })) continue;
    std::fprintf(stderr,
                 "escrow::sim: fail_call(\"%s\") failed nothing, since no such call came: look at "
                 "start_recording() for the calls, and at faults_pending() at the end of a test\n",
                 name.c_str());
  }
}

// Runs among the program's exit handlers: no thread of ours may call into objects that are being
// destroyed. Threads that are stuck in user code are left behind; the process ends under them.
void at_exit() {
  auto& s = the();
  if (getpid() != process) return;  // in a forked child: it has no threads, and a lock may be held
  std::unique_lock lock(s.mutex);
  s.exiting = true;
  tell_idle_faults(s);
  stop_threads(lock, std::chrono::seconds(2));
}

state* make_state() {
  refuse_a_real_runtime();
  auto* const s = new state;
  s->epoch = 1;
  s->random.seed(s->how.seed);
  s->started = std::chrono::steady_clock::now();
  fresh_devices(*s);
  return s;
}

state* first_state() {
  auto* const s = make_state();
  process = getpid();
  ::pthread_atfork(nullptr, nullptr, [] { is_child.store(true, std::memory_order_relaxed); });
  std::atexit(at_exit);
  return s;
}

void free_allocations(state& s) {
  for (auto const& [address, what] : s.allocations) delete_memory(const_cast<void*>(address), what);
  s.allocations.clear();
  forget_freed(s);
  s.memory_pools.clear();
  free_ranges(s);
  s.allocated = {};
}

// Everything that has a handle goes; destructors of user objects are not run, as at a device reset.
void forget_objects(state& s) {
  s.captures.clear();
  for (auto const& [handle, stream] : s.streams) stream->capturing.reset();
  s.execs.lose_all();
  s.graphs.lose_all();
  s.unfreed_blocks.clear();
  s.events.lose_all();
  s.streams.lose_all();
  s.user_objects.clear();
  s.libraries.clear();
  s.library_kernels.clear();
  s.conditions.clear();
  free_allocations(s);
}

void forget_records(state& s) {
  s.calls = 0;
  s.calls_in_callbacks = 0;
  s.calls_by_name.clear();
  s.faults_by_number.clear();
  s.faults_by_thread.clear();
  s.faults_by_name.clear();
  s.injectable_calls = 0;
  s.recording = false;
  s.recorded.clear();
  s.captures_invalidated = 0;
  s.unloaded_launches = 0;
  s.last_invalidation.clear();
  s.loop_turns = 0;
  s.vain_queries = 0;
  s.known_done = {};
  s.used = {};
}

}  // namespace

state& the() {
  static state* const one = first_state();
  return *one;
}

bool is_forked() noexcept {
  return is_child.load(std::memory_order_relaxed) &&
         !may_children_call.load(std::memory_order_relaxed);
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void let_forked_children_call(bool may) {
  model::may_children_call.store(may, std::memory_order_relaxed);
}

void reset(options const& how) {
  auto& s = model::the();
  std::unique_lock lock(s.mutex);
  if (model::is_library_used()) {
    model::give_up(
        "reset() after Escrow was used, which keeps events and memory: call it once, before that, "
        "or not at all; reseed() begins another run of a program in stepped time");
  }
  if (how.devices < 1) model::give_up("reset() needs at least one device");
  if (!model::stop_threads(lock, std::chrono::seconds(20))) {
    model::give_up(
        "reset() waited 20 s for a kernel, host function or destructor that does not return");
  }
  model::forget_objects(s);
  model::forget_records(s);
  ++s.epoch;
  s.how = how;
  s.next_graph_id = std::max(s.next_graph_id, how.first_graph_id - 1);
  s.random.seed(how.seed);
  model::begin_run(s);
  s.recapture_gives_new_id = false;
  s.may_work_share = false;
  s.virtual_now = {};
  s.fruitless = 0;
  s.started = std::chrono::steady_clock::now();
  s.fault = cudaSuccess;
  model::fresh_devices(s);
}

}  // namespace escrow::sim
