// The inside of a slot_pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "bins.hpp"
#include "capture_ledger.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/pool/slot_pool.hpp"

namespace escrow {

struct slot_pool::state {
  state(slot_pool& pool, pool_options given, std::unique_ptr<slot_maker> made, deleter_core& used)
      : options(std::move(given)),
        maker(std::move(made)),
        core(used),
        end_on_worker(pool, used, options.device) {}

  // The pool's way to the worker, for its end.
  struct end_node final : reclaimable {
    end_node(slot_pool& pool, deleter_core& core, int device)
        : reclaimable(core, release_lane::destroy, device,
                      [](reclaimable& node) noexcept { static_cast<end_node&>(node).ended.end(); }),
          ended(pool) {}
    slot_pool& ended;
  };

  [[nodiscard]] std::uint64_t stamp() noexcept {
    std::uint64_t const now = releases.load(std::memory_order_relaxed) + 1;
    releases.store(now, std::memory_order_relaxed);
    return now;
  }
  // Lets those wait no longer who wait for a slot to come back. Cheap if nobody does.
  void announce_return() noexcept;
  // Waits for announce_return() since `seen`, `timeout` at most.
  void await_return(std::uint64_t seen, std::chrono::nanoseconds timeout);
  [[nodiscard]] std::uint64_t returns_seen();

  pool_options options;
  std::unique_ptr<slot_maker> const maker;
  deleter_core& core;
  end_node end_on_worker;
  bins free;
  capture_ledger ledger;

  // The pool's owner and its slots; the last to go frees it. acq_rel, as for any shared owner.
  std::atomic<std::size_t> references{1};
  // Slots that exist and were not handed to the worker for destruction. Who takes one off releases,
  // who adds one acquires: a claim that finds the room of a closed pool's slot sees that it is
  // closed.
  std::atomic<std::size_t> slots{0};
  // Relaxed: a claim beside the closing may still succeed; its slot is destroyed when it comes
  // back.
  std::atomic<bool> is_closed{false};
  // Slots out of the bins only to be looked at, or on their way from a graph to a bin; a claim that
  // found nothing meanwhile looks again.
  // Relaxed: who moves a slot changes this before it takes another, under a lock of the bins that
  // the claim takes later.
  std::atomic<std::size_t> looked_at{0};
  // Stamps releases, to find the oldest. Relaxed, and incremented in two steps: two releases at the
  // very same time may get one stamp, and then neither is older.
  std::atomic<std::uint64_t> releases{1};

  // Threads that wait for a slot, each for a short time before it looks again. Relaxed: to miss one
  // that has only begun to wait costs it that time.
  std::atomic<std::size_t> waiters{0};
  std::mutex return_mutex;  // guards returns
  std::condition_variable returned;
  std::uint64_t returns = 0;

  std::mutex quarantine_mutex;  // guards the list, linked by slot::next_, and its end
  slot* quarantined = nullptr;
  bool quarantine_is_closed = false;

  // Counts for people: relaxed, all of them.
  std::atomic<std::size_t> quarantined_count{0};
  std::atomic<std::uint64_t> grown{0};
  std::atomic<std::uint64_t> stream_waits{0};
  std::atomic<std::uint64_t> host_waits{0};
  std::atomic<std::uint64_t> edges_added{0};
};

}  // namespace escrow
