// SPDX-License-Identifier: Apache-2.0
// Pieces that the free-running and the stepped runner share.
#include "runner_shared.hpp"

#include "apart.hpp"
#include "graph_memory.hpp"
#include "libraries.hpp"
#include "memory.hpp"
#include "memory_faults.hpp"
#include "operands.hpp"
#include "ops.hpp"
#include "overruns.hpp"
#include "thread.hpp"

#include <algorithm>
#include <utility>

namespace escrow::sim::model {
namespace {

// A kernel of an unloaded library: no code is there that the device could run.
bool fails_for_lack_of_code(op_ptr const& o) {
  if (!comes_too_late(*o)) return false;
  ++the().unloaded_launches;
  break_device(o->stream->device, cudaErrorLaunchFailure);
  return true;
}

void make_all_new(op& begun) {
  if (begun.makes_new.empty()) return;
  device_at_work const reaches_its_memory;
  for (auto const& each : begun.makes_new) make_new(each.begin, each.bytes, each.of);
  begun.makes_new.clear();
}

}  // namespace

bool is_abandoned(op_ptr const& o) {
  auto const& s = the();
  return s.dropping || s.devices[static_cast<std::size_t>(o->stream->device)].fault != cudaSuccess;
}

bool takes_time(op_ptr const& o) {
  return std::holds_alternative<kernel_work>(o->what) ||
         std::holds_alternative<copy_work>(o->what) || std::holds_alternative<fill_work>(o->what);
}

void finish_at_once(op_ptr const& o) {
  if (!is_abandoned(o)) make_all_new(*o);
  if (auto const* const f = std::get_if<free_work>(&o->what)) free_memory(f->address);
  if (auto const* const f = std::get_if<graph_free_work>(&o->what)) vanish(*f->block);
  if (auto const* const a = std::get_if<alloc_work>(&o->what); a != nullptr && !is_abandoned(o))
    appear(*a->block);
  if (o->run != nullptr && !is_abandoned(o)) {
    o->run(o);
  } else {
    complete(o);
  }
}

bool perform_unlocked(std::unique_lock<std::mutex>& lock, op_ptr const& o) {
  auto& s = the();
  if (fails_for_lack_of_code(o)) return true;
  auto& me = this_thread_unchecked();
  auto* const outer = std::exchange(me.kernel, o.get());
  work_of_callers const begun(o->by.get());
  if (!o->began) {
    o->began = true;
    o->began_at = time_now();
    refuse_freed(o->what);
    close_idle(o->call);
    make_all_new(*o);
    set_guards(o->what);
    close_lifted();
    watch_kernels();
  }
  ++s.running;
  lock.unlock();
  bool done = false;
  {
    device_at_work const reaches_its_memory;
    open_what_it_writes(o->what);
    {
      running_body const body(is_memory_apart() && std::holds_alternative<kernel_work>(o->what));
      done = perform(o->what);
    }
    look_at_guards(o->what);
    close_lifted();
  }
  me.kernel = outer;
  lock.lock();
  --s.running;
  refuse_freed(o->what);
  return fails_for_lack_of_code(o) || done;
}

void run_callback_unlocked(std::unique_lock<std::mutex>& lock, callback const& what) {
  auto& s = the();
  // After a fault no host function runs, not even those of a device that goes on.
  if (what.of == nullptr || (!is_abandoned(what.of) && s.fault == cudaSuccess)) {
    if (what.of != nullptr) s.known_done.learn(what.of->at);
    ++s.running;
    lock.unlock();
    run_callbacks({&what, 1});
    lock.lock();
    --s.running;
  }
  if (what.of != nullptr) complete(what.of);
  notify();
}

void run_callbacks(std::span<callback const> list) {
  watch_kernels();
  auto& me = this_thread_unchecked();
  for (auto const& each : list) {
    ++me.in_callback;
    each.run(each.argument);
    --me.in_callback;
  }
}

void break_device(int device, cudaError_t fault) {
  auto& s = the();
  auto& d = s.devices.at(static_cast<std::size_t>(device));
  d.fault = fault;
  if (s.fault == cudaSuccess) s.fault = fault;
  std::vector<op_ptr> waiting;
  for (auto const& [id, stream] : d.streams) {
    waiting.insert(waiting.end(), stream->runs_on->ready.begin(), stream->runs_on->ready.end());
    stream->runs_on->ready.clear();
    stream->runs_on->wake.notify_one();
  }
  auto const first = std::stable_partition(s.choices.begin(), s.choices.end(), [&](auto const& o) {
    return o->stream->device != device;
  });
  waiting.insert(waiting.end(), first, s.choices.end());
  s.choices.erase(first, s.choices.end());
  for (auto const& o : waiting) complete(o);
}

}  // namespace escrow::sim::model
