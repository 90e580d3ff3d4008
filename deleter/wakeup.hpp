// How a pusher wakes the sleeping worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace escrow {

// One word that says whether the worker sleeps.
//   pusher: push; notify()      worker: if (try_sleep(is_empty)) wait_for_notify()
//
// No wake-up is lost: both sides change the word with a read-modify-write after their own step (the
// push; the wish to sleep) and before looking at the other's. The later of the two in the word's
// modification order reads from the earlier, through read-modify-writes only: either the pusher
// sees the sleeper and wakes it, or the worker sees the push and stays awake.
// Lifetime: a wakeup is never freed, since a pusher may still notify it: see wakeup_store.
// Progress: notify() is wait-free but for at most one system call, a futex wake, that only follows
//   a sleep. No allocation. `Atom` is std::atomic, but for a model checker.
template <template <class> class Atom = std::atomic>
class basic_wakeup {
 public:
  // Any thread, after it made work visible: wakes the worker if it sleeps.
  void notify() noexcept {
    // acq_rel (1): the release pairs with (2), so that who falls asleep later sees the work; the
    // acquire keeps what comes before a sleep that this ends before it.
    if (state_.exchange(awake, std::memory_order_acq_rel) == asleep) state_.notify_one();
  }

  // The worker: goes to sleep unless `is_empty()`, looked at once asleep, says that there is work.
  template <class IsEmpty>
  [[nodiscard]] bool try_sleep(IsEmpty is_empty) noexcept {
    // acq_rel (2): the acquire pairs with the release in (1), so that is_empty() sees the work of
    // every thread that notified before.
    state_.exchange(asleep, std::memory_order_acq_rel);
    if (is_empty()) return true;
    // An exchange, not a store, so that a notify that came meanwhile is read from at the next (2).
    // Relaxed would do, as that (2) acquires; but of a relaxed exchange whose result is not used
    // clang makes a store. Acquire keeps it.
    state_.exchange(awake, std::memory_order_acquire);
    return false;
  }

  // The worker, after try_sleep() said true: until a thread notifies. Not bounded: with nothing to
  // do there is nothing to wake for, and the end notifies, too. May return without need.
  void wait_for_notify() noexcept {
    // Acquire: pairs with the release in (1): the worker sees what was pushed.
    while (state_.load(std::memory_order_acquire) == asleep) {
      state_.wait(asleep, std::memory_order_acquire);
    }
  }

 private:
  // 32 bits, which a futex can wait on without a detour.
  static constexpr std::uint32_t awake = 0;
  static constexpr std::uint32_t asleep = 1;

  alignas(64) Atom<std::uint32_t> state_{awake};

 public:
  basic_wakeup* next_unused = nullptr;  // for wakeup_store
};

using wakeup = basic_wakeup<>;

// A pusher notifies after its push, and by then the worker may have reclaimed everything and freed
// the core. So a core borrows its wakeup from memory that is never used for anything else
// (type-stable memory): a late notify meets a wakeup, perhaps of another core, and at worst wakes a
// worker that finds nothing to do.
// Thread safety: any thread. Leaked on purpose, 64 bytes for each core that was alive at the same
//   time.
class wakeup_store {
 public:
  struct give_back {
    void operator()(wakeup* unused) const noexcept;
  };
  using loan = std::unique_ptr<wakeup, give_back>;

  // One that no other core uses for as long as the loan lasts. Throws std::bad_alloc.
  [[nodiscard]] static loan take();
};

}  // namespace escrow
