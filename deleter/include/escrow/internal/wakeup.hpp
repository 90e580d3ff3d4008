// SPDX-License-Identifier: Apache-2.0
// How a pusher wakes the sleeping worker, and how process exit ends passes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// One word: whether the worker sleeps.
//   pusher: push; notify()      worker: if (try_sleep(is_empty)) wait_for_notify()
//
// No wake-up is lost: each side changes the word with a read-modify-write after its own step (the
// push; the intent to sleep) and before it checks the other's. The later one in the word's
// modification order reads from the earlier one, through read-modify-writes only: either the pusher
// sees the sleeper and wakes it, or the worker sees the push and stays awake.
// Lifetime: never freed, since a pusher may notify late: see wakeup_store.
// Progress: notify() is wait-free except for at most one system call, a futex wake, only after a
//   sleep. No allocation. `Atom` is std::atomic, or a model checker's.
template <template <class> class Atom = std::atomic>
class basic_wakeup {
 public:
  // Any thread, after publishing work: wakes the worker if it sleeps.
  void notify() noexcept {
    // acq_rel (1): the release pairs with (2), so that a later sleeper sees the work; the acquire
    // orders what precedes the sleep that this ends before it.
    if (state_.exchange(awake, std::memory_order_acq_rel) == asleep) state_.notify_one();
  }

  // The worker: marks itself asleep; false, awake again, if `is_empty()` then reports work.
  template <class IsEmpty>
  [[nodiscard]] bool try_sleep(IsEmpty is_empty) noexcept {
    // acq_rel (2): the acquire pairs with the release in (1), so that is_empty() sees their work.
    state_.exchange(asleep, std::memory_order_acq_rel);
    if (is_empty()) return true;
    // An exchange, not a store: the next (2) then reads from a notify() in between. Relaxed would
    // suffice, since that (2) acquires, but clang turns a relaxed exchange with unused result into
    // a store. Acquire prevents that.
    state_.exchange(awake, std::memory_order_acquire);
    return false;
  }

  // The worker, after try_sleep() returned true: waits for a notify(), without a time limit: if
  // idle it has nothing to wake for, and shutdown notifies too. May return spuriously.
  void wait_for_notify() noexcept {
    // Acquire: pairs with the release in (1): the worker sees what was pushed.
    while (state_.load(std::memory_order_acquire) == asleep) {
      state_.wait(asleep, std::memory_order_acquire);
    }
  }

 private:
  // 32 bits: a futex waits on it directly.
  static constexpr std::uint32_t awake = 0;
  static constexpr std::uint32_t asleep = 1;

  alignas(64) Atom<std::uint32_t> state_{awake};

 public:
  basic_wakeup* next_unused = nullptr;  // for wakeup_store
};

using wakeup = basic_wakeup<>;

// A pusher notifies after its push; by then the worker may have reclaimed everything and freed the
// core. So a core borrows its wakeup from type-stable memory (never reused for another type): a
// late notify reaches a wakeup, perhaps of another core, and at worst wakes an idle worker.
// Thread safety: any thread. Leaked on purpose: 64 bytes for each concurrently live core.
class wakeup_store {
 public:
  struct give_back {
    void operator()(wakeup* unused) const noexcept;
  };
  using loan = std::unique_ptr<wakeup, give_back>;

  // One that no other core uses during the loan. Throws std::bad_alloc.
  [[nodiscard]] static loan take();
};

// No pass begins after close(). A thread that then reads is_empty() as true knows that no pass is
// running, and sees their effects.
// Thread safety: any thread.
class shutdown_gate {
 public:
  // Begins a pass, to be ended with leave(); false if closed.
  [[nodiscard]] bool try_enter() noexcept {
    // Sequentially consistent, as close() and is_empty(): each side writes one variable and then
    // reads the other; at least one must see the other's write.
    begun_.fetch_add(1, std::memory_order_seq_cst);
    if (!is_closed_.load(std::memory_order_seq_cst)) return true;
    leave();
    return false;
  }

  void leave() noexcept {
    // Release: pairs with is_empty(), whose reader sees the pass's effects.
    begun_.fetch_sub(1, std::memory_order_release);
  }

  void close() noexcept { is_closed_.store(true, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_closed() const noexcept {
    return is_closed_.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] bool is_empty() const noexcept {
    return begun_.load(std::memory_order_seq_cst) == 0;
  }
  // At the end of the process: for at most a second, since a pass may be stuck.
  void wait_until_empty() const noexcept {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!is_empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  std::atomic<bool> is_closed_{false};
  std::atomic<int> begun_{0};
};

}  // namespace escrow::inline v0_2
