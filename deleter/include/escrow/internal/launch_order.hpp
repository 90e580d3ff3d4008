// SPDX-License-Identifier: Apache-2.0
// The order of launches that may write the same resources.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "escrow/deleter/sharing_group.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/launch_end.hpp"

namespace escrow::inline v0_2 {

struct group_order;

// What: serializes the launches of execs that may write the same resources. A launch holds the
//   mutex from its wait for the last launch to the record of its own end; around the caller's own
//   code (hoisted::launch) the order is `entered` instead, and the mutex is free.
// Thread safety: by its mutex. Several are locked in address order. Held during the calls of one
//   launch, which run no destructor.
// Lifetime: shared by reference sets that have members in common.
struct launch_order {
  launch_order() = default;
  launch_order(launch_order&&) = delete;
  ~launch_order() {
    std::lock_guard const lock(mutex);  // a program's ThreadSanitizer sees it
    tell_taken(this);
  }

  // Guards all but `execs`, and the launch_end of each exec of this order.
  std::mutex mutex;
  std::shared_ptr<launch_end> last;  // null: nothing was launched yet
  // The thread that is inside hoisted::launch() or sharing_group::run(). No other launch may begin
  // meanwhile.
  std::thread::id entered;
  std::condition_variable left;  // announces that `entered` has ended
  // Execs of this order. Relaxed: a launch that misses a new exec stores no stream, and the other
  // exec waits once needlessly; or it is not recorded, and the other exec refuses to launch once.
  std::atomic<int> execs{0};
  group_order* group = nullptr;  // itself, if it is a sharing group's; never changes
};

class group_scope;

// Memory that the graphs of a sharing group use in turn; its pools know more of it.
struct group_memory {
  group_memory() = default;
  group_memory(group_memory&&) = delete;
  virtual ~group_memory() = default;
  // What the device lacks for it. Any thread.
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  // Gives back what no graph reaches. Returns the bytes.
  virtual std::size_t trim() noexcept = 0;
  // Gives up what a group_scope, which has ended, has claimed and released: its stream's work so
  // far uses that, or comes after it. Returns where something was claimed of which it does not.
  [[nodiscard]] virtual std::optional<source_location> end_scope(
      group_scope const& ended) noexcept = 0;

  // For parking, by the thread that has the group's turn. used(): what has memory in it that the
  // group's launches do not order, a lease or a graph; no problem: there is nothing. close(): the
  // same, and if there is nothing, no claim gets memory from now on, until reopen().
  struct use {
    std::string problem;
    char const* advice = nullptr;
  };
  [[nodiscard]] virtual use used() = 0;
  [[nodiscard]] virtual use close() = 0;
  virtual void reopen() noexcept = 0;
  // The pages go, the addresses stay. Returns the bytes. Throws cuda_error, std::bad_alloc:
  // is_whole() tells whether all is mapped as before.
  virtual std::size_t park(bool keep_contents) = 0;
  [[nodiscard]] virtual bool is_whole() const noexcept = 0;
  // Maps what graphs reach. Returns the bytes. Throws the same, and is as before.
  virtual std::size_t unpark() = 0;
};

// The lock of what a group's pools and its arena have in common. Shared: the arena may end last.
struct group_lock {
  group_lock() = default;
  group_lock(group_lock&&) = delete;
  ~group_lock() {
    std::lock_guard const lock(mutex);  // a program's ThreadSanitizer sees it
  }

  std::mutex mutex;  // guards which graph and lease has which slot, and where: see capture_reuse
};

// What: the launch order of a sharing_group.
struct group_order final : launch_order {
  explicit group_order(sharing_options given) : options(std::move(given)) { group = this; }
  ~group_order();  // parked_group.cpp

  sharing_options const options;
  // Its pools' device; -1: no pool yet. Relaxed: only the value matters.
  std::atomic<int> device{-1};
  // Of its leases, which share it. Relaxed: numbers.
  struct lease_counts {
    std::atomic<std::size_t> outliving{0};  // that live although their capture has ended

    // Each counts a claim or a release, and returns its number.
    [[nodiscard]] std::uint64_t note_claim() noexcept { return number_before(step + 1); }
    [[nodiscard]] std::uint64_t note_release() noexcept { return number_before(step - 1); }
    // A lease ends without a release.
    void note_end() noexcept { steps_and_living.fetch_sub(1, std::memory_order_relaxed); }
    [[nodiscard]] bool is_any_living() const noexcept {
      return steps_and_living.load(std::memory_order_relaxed) % step != 0;
    }

   private:
    [[nodiscard]] std::uint64_t number_before(std::uint64_t change) noexcept {
      return steps_and_living.fetch_add(change, std::memory_order_relaxed) / step + 1;
    }

    static constexpr std::uint64_t step = std::uint64_t{1} << 24;  // more than can live at a time
    // In one number, since each is an atomic operation of every claim.
    std::atomic<std::uint64_t> steps_and_living{0};
  };
  std::shared_ptr<lease_counts> const leases = std::make_shared<lease_counts>();
  // It is parked, or being parked by the thread in `entered`: see group_pins, with which both are
  // sequentially consistent. Changed under memory_mutex, and by the thread in `entered`.
  std::atomic<bool> is_parked{false};
  std::atomic<int> pins{0};  // of calls that use its addresses

  std::shared_ptr<group_lock> const slots = make_apart<group_lock>();
  std::mutex memory_mutex;  // guards the next; held while it is made
  std::shared_ptr<group_memory> memory;
  [[nodiscard]] std::shared_ptr<group_memory> known_memory() {
    std::lock_guard const lock(memory_mutex);
    return memory;
  }
  // Gives back what the group's pools have idle of memory_source::device(). Returns the bytes. Set
  // by its first pool; null before. Relaxed: only the value matters.
  using trim_function = std::size_t (*)(group_order const&) noexcept;
  std::atomic<trim_function> trim_pools{nullptr};
  // Statistics. Relaxed: numbers, which change under the mutex.
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint64_t> stream_waits{0};
};

}  // namespace escrow::inline v0_2
