// SPDX-License-Identifier: Apache-2.0
// Two threads in what one at a time may use. Calls are short: a call that finds its object used by
// another thread before waits a moment, so that this one comes in, if nothing keeps it out.
#include "lone_uses.hpp"

#include "operands.hpp"
#include "state.hpp"
#include "thread.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace escrow::sim::model {
namespace {

// The last use of an object.
struct lone_use {
  void const* used = nullptr;
  std::uint64_t thread = 0;
  char const* waits = nullptr;  // that call does; null: none
};

// Guarded by the state's mutex. Allocates nothing: a library's allocations are counted by its
// tests.
std::size_t lone_waits = 0;

// Two objects may have one place: then less is told.
lone_use& last_use_of(void const* used) {
  static std::array<lone_use, 4096> places;
  constexpr std::size_t alignment = 16;
  return places[reinterpret_cast<std::uintptr_t>(used) / alignment % places.size()];
}

void note_lone_use(void const* used, char const* call) {
  constexpr std::size_t waits_max = 500;
  constexpr std::chrono::microseconds moment(100);
  std::unique_lock lock(the().mutex);
  std::uint64_t const thread = this_thread().number;
  lone_use& last = last_use_of(used);
  bool const is_others = last.used == used && last.thread != thread;
  if (is_others && last.waits != nullptr) {
    give_up(std::string(call) + " on " + describe_this_thread() + " beside " + last.waits +
            " on thread " + std::to_string(last.thread) +
            ", of one object: an exec, an exec set, a claimer and a lease are for one thread at a "
            "time; give each thread its own, or let both lock a mutex");
  }
  if (last.waits != nullptr) return;
  last = {used, thread};
  if (!is_others || lone_waits == waits_max) return;
  ++lone_waits;
  last.waits = call;
  lock.unlock();
  std::this_thread::sleep_for(moment);
  lock.lock();
  last.waits = nullptr;
}

}  // namespace
}  // namespace escrow::sim::model

void escrow_simulated_use(void const* used, char const* call) noexcept {
  using namespace escrow::sim::model;
  if (is_forked() || asked_audits() == audits::off) return;
  note_lone_use(used, call);
}
