// SPDX-License-Identifier: Apache-2.0
// Two threads in what one at a time may use. Calls are short: a call that finds its object used by
// another thread before waits a moment, so that this one comes in, if nothing keeps it out.
#include "lone_uses.hpp"

#include "operands.hpp"
#include "thread.hpp"

#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>

namespace escrow::sim::model {
namespace {

struct lone_use {
  std::uint64_t thread = 0;
  char const* call = nullptr;
};

// Guarded by the state's mutex.
struct lone_uses {
  std::unordered_map<void const*, lone_use> waiting;
  std::unordered_map<void const*, std::uint64_t> last;  // the thread that used it
  std::size_t waits = 0;
};

lone_uses& uses() {
  static auto* const only = new lone_uses;  // used until the process ends
  return *only;
}

// Whether another thread was the last one to use it.
bool change_user(void const* used, std::uint64_t thread) {
  constexpr std::size_t known_max = 4096;
  auto& last = uses().last;
  if (last.size() >= known_max) last.clear();
  auto const [its, is_new] = last.try_emplace(used, thread);
  return std::exchange(its->second, thread) != thread;
}

// Throws std::bad_alloc.
void note_lone_use(void const* used, char const* call) {
  constexpr std::size_t waits_max = 500;
  constexpr std::chrono::microseconds moment(100);
  lone_uses& all = uses();
  std::unique_lock lock(the().mutex);
  std::uint64_t const thread = this_thread().number;
  auto const found = all.waiting.find(used);
  if (found != all.waiting.end() && found->second.thread != thread) {
    give_up(std::string(call) + " on " + describe_this_thread() + " beside " + found->second.call +
            " on thread " + std::to_string(found->second.thread) +
            ", of one object: an exec, an exec set, a claimer and a lease are for one thread at a "
            "time; give each thread its own, or let both lock a mutex");
  }
  if (!change_user(used, thread) || found != all.waiting.end() || all.waits == waits_max) return;
  ++all.waits;
  all.waiting.emplace(used, lone_use{thread, call});
  lock.unlock();
  std::this_thread::sleep_for(moment);
  lock.lock();
  all.waiting.erase(used);
}

}  // namespace
}  // namespace escrow::sim::model

void escrow_simulated_use(void const* used, char const* call) noexcept {
  using namespace escrow::sim::model;
  if (is_forked() || asked_audits() == audits::off) return;
  try {
    note_lone_use(used, call);
  } catch (std::bad_alloc const&) {
  }
}
