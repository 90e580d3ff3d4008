// SPDX-License-Identifier: Apache-2.0
// The one state: its clock, its random numbers, its options.
#include "state.hpp"

#include "callers.hpp"

#include <cstdio>
#include <cstdlib>

namespace escrow::sim::model {
void forget_stream(stream_state& stream) {
  stream.runs_on->stop = true;
  stream.runs_on->wake.notify_one();
  the().known_done.forget_stream(stream.id);
  the().devices[static_cast<std::size_t>(stream.device)].streams.erase(stream.id);
}

void begin_run(state& s) {
  s.streams.begin_run(s.how);
  s.events.begin_run(s.how);
  s.graphs.begin_run(s.how);
  s.execs.begin_run(s.how);
  forget_recycled(s.how);
}

std::chrono::nanoseconds time_now() {
  auto const& s = the();
  if (s.how.stepped) return s.virtual_now;
  return std::chrono::steady_clock::now() - s.started;
}

std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
  // Not std::uniform_int_distribution, whose results differ between standard libraries.
  return low + the().random() % (high - low + 1);
}

void give_up(std::string const& why) {
  std::fflush(stdout);  // what the program said before
  std::fprintf(stderr,
               "escrow::sim: %s (seed %llu, %s; %zu operations and %zu callbacks pending)\n",
               why.c_str(), static_cast<unsigned long long>(the().how.seed),
               the().how.stepped ? "stepped" : "free-running", the().pending_ops,
               the().callback_queue.size());
  print_callers();
  std::abort();
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void set_compute_capability(int major) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.how.compute_capability = major;
}

void set_virtual_memory(bool is_there) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.how.has_virtual_memory = is_there;
}

void set_device_memory(std::size_t bytes) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.how.device_memory = bytes;
}

void set_frees_block_launches(bool do_block) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.how.frees_block_launches = do_block;
}

void let_work_share(bool may) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.may_work_share = may;
}

options current_options() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.how;
}

std::chrono::nanoseconds now() {
  std::lock_guard lock(model::the().mutex);
  return model::time_now();
}

}  // namespace escrow::sim
