// SPDX-License-Identifier: Apache-2.0
// What a claim's search has seen, its turn to search at a limit, and its waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <thread>

#include "escrow/core/error.hpp"
#include "escrow/internal/profiler.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What is asked about once: each list's oldest slot, and the last launch of each exec in flight.
struct search_pass {
  std::uint64_t number = 0;
  bool has_asked_execs = false;
};

// What a search that found no slot has seen.
struct search_result {
  std::exception_ptr failure;     // why no slot could be made
  bool is_out_of_memory = false;  // that is the reason
  bool is_first = true;           // of its claim
  bool has_turn = false;          // to search at a limit
  bool is_turn_taken = false;     // by another thread, for which the claim may wait
  // For a claim in a capture, and for room: free slots have work that is not done.
  bool is_busy = false;
  bool is_on_its_way = false;          // a slot, or room for one
  bool has_moved = false;              // a slot, or room: the search may have missed some
  search_pass pass;                    // see slot_pool::state::take_idle()
  std::uint64_t reclaimed_before = 0;  // before the last try to make one: see reclaimed()
  bool was_worker_late = false;        // to reclaim what it has

  // In a handler: no slot could be made for that reason.
  void note_failure() noexcept {
    failure = std::current_exception();
    is_out_of_memory = false;
    try {
      throw;
    } catch (cuda_error const& error) {
      is_out_of_memory = error.status() == cudaErrorMemoryAllocation;
    } catch (...) {  // of `make`
    }
  }
};

// Who may search a pool at a limit, and how much room it needs, which others leave to it.
// Thread safety: any thread.
class search_turns {
 public:
  [[nodiscard]] std::size_t room_of_turn() const noexcept {
    return room_.load(std::memory_order_relaxed);  // relaxed: a number, see pool_sizes::reserve()
  }

 private:
  friend class search_turn;

  // A try-lock, with acquire to enter and release to leave.
  std::atomic<std::thread::id> thread_{};
  std::atomic<std::size_t> room_{0};
};

// One turn, if nobody has it. No lock: who does not get it waits for a bounded time, or does
// without. Its thread may claim again in a destructor or in `make`, and does without there.
class search_turn {
 public:
  search_turn(search_turns& of, std::size_t room) noexcept : of_(of) {
    std::thread::id before{};
    is_mine_ = of_.thread_.compare_exchange_strong(
        before, std::this_thread::get_id(), std::memory_order_acquire, std::memory_order_relaxed);
    is_of_another_ = !is_mine_ && before != std::this_thread::get_id();
    if (is_mine_) of_.room_.store(room, std::memory_order_relaxed);  // relaxed: as it is read
  }
  search_turn(search_turn&&) = delete;
  ~search_turn() {
    if (!is_mine_) return;
    of_.room_.store(0, std::memory_order_relaxed);
    of_.thread_.store(std::thread::id{}, std::memory_order_release);
  }
  [[nodiscard]] bool is_mine() const noexcept { return is_mine_; }
  [[nodiscard]] bool is_of_another() const noexcept { return is_of_another_; }

 private:
  search_turns& of_;
  bool is_mine_ = false;
  bool is_of_another_ = false;  // else it may be that of a claim further up the stack
};

// A wait on the host for a slot, or for GPU work, whose end nothing announces.
class host_wait {
 public:
  // Sleeps for a moment, for longer each time. False, at once, if this wait has lasted for `max`.
  [[nodiscard]] bool go_on(std::chrono::nanoseconds max);

 private:
  using clock = std::chrono::steady_clock;

  clock::time_point const begin_ = clock::now();
  std::chrono::nanoseconds look_again_ = std::chrono::microseconds(10);
  profiler_range const range_{"escrow: wait for a slot"};
};

// The waits of one claim.
struct claim_waits {
  bool may_wait = true;     // for its turn
  std::size_t repeats = 0;  // of searches that others disturbed
  std::size_t retries = 0;  // after workers reclaimed something
  std::optional<host_wait> on_host;
  std::optional<host_wait> for_workers;
  bool is_over_for_workers = false;
  bool has_trimmed = false;  // other pools
};

}  // namespace escrow::inline v0_2
