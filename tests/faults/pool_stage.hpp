// SPDX-License-Identifier: Apache-2.0
// The stage of pools: slots in use on several streams, in captures and on another device.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fault_world.hpp"

namespace escrow::test {

class pool_stage : public fault_world {
 public:
  owned_stream third = make_stream();
  owned_stream blocking = make_stream(cudaStreamDefault);
  owned_stream asking;     // of expect_sound(); the pool's streams may have to outlive it
  owned_stream elsewhere;  // of device 1; if it is there, its work uses the held slot
  std::optional<sharing_group> group;  // of pools that are made afterwards
  owned_graph sharing;                 // a graph of the group
  std::optional<block_pool> pool;
  std::optional<block_lease> held;
  std::optional<block_lease> kept;
  std::optional<claimer<block>> local;
  std::optional<slot_share> share;
  // Of pools that are made afterwards.
  std::size_t unrecorded_max = 16;
  bool streams_outlive_pool = false;
  bool held_until_closed = false;
  bool is_closed = false;
  bool recycles_when_seen = true;          // not if that is the operation
  std::size_t slots = 0;                   // the pool's limit
  int busy_number = -1;                    // the block that keep_busy() used
  std::optional<cudaStream_t> claimed_on;  // where `held` was claimed after that

  void make_pool(std::size_t limit, std::function<void(block&, stream_ref)> recycle = {},
                 bool track_leases = false) {
    slots = limit;
    pool_options const chosen{.slots_max = limit,
                              .track_leases = track_leases,
                              .deleter = worker.get(),
                              .group = group,
                              .unrecorded_max = unrecorded_max,
                              .streams_outlive_pool = streams_outlive_pool,
                              .held_until_closed = held_until_closed};
    auto const make = [this] { return block{counts}; };
    recycle ? pool.emplace(chosen, make, std::move(recycle)) : pool.emplace(chosen, make);
  }
  void claim_on(cudaStream_t stream) {
    held.emplace(pool->claim(stream));
    claimed_on = stream;
  }
  /// Work that uses a slot, runs until the flag is raised, and leaves 7 in the slot.
  void keep_busy(block_lease& used, cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    fill(used, stream, 7);
    busy_number = used->number();
    claimed_on.reset();
  }
  /// Work of device 1 uses what is held, until the flag is raised.
  void keep_busy_elsewhere() {
    device_scope const there(1);
    elsewhere = make_stream();
    held->record_stream(elsewhere);
    must(launch_wait_flag(elsewhere, flag.get()));
  }

  [[nodiscard]] std::string seen() override {
    if (recycles_when_seen) worker->core().recycle();
    std::string const text = text_of("held", held && *held, "kept", kept && *kept, "shared",
                                     share.has_value(), "claimer", local.has_value());
    if (!pool) return text + "no pool";
    pool_stats const now = pool->stats();
    return text + text_of("in graphs", now.in_graphs, "unrecorded", now.unrecorded, "deferred",
                          now.deferred);
  }

 private:
  void before_end(bool is_lost) override {
    if (is_lost && pool && !is_closed) {
      // At once, though it might wait for a minute: the lost device returns nothing.
      EXPECT_THROW(static_cast<void>(pool->claim(third)), std::exception);
      EXPECT_THROW(static_cast<void>(pool->try_claim_for(third, std::chrono::minutes(1))),
                   std::exception);
    }
    sharing.reset();
    if (!is_lost && pool) {
      share.reset();
      expect_sound();
    }
    if (!is_lost) end_capture();
    local.reset();
    captured.reset();
    share.reset();
    held.reset();
    kept.reset();
    if (is_lost && pool) {
      EXPECT_LE(pool->close_for(std::chrono::milliseconds(10)).size(), 1U);
    }
    pool.reset();
    asking.reset();
    if (is_lost && elsewhere.get() != nullptr && !sim::has_failed(1)) {
      try_to_poll();
      EXPECT_EQ(counts.destroyed.load(), 0) << "freed while the other device's work may run";
    }
  }
  /// Expects that nothing is left but what is counted as leaked: slots, each with its block, and
  /// with its events, for its own stream and two others.
  leftovers end_all(bool is_lost, bool /*is_end_known*/) override {
    if (!is_lost) sync(third);
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    sim::run_until_idle();  // before the flag is freed
    auto const leaked = static_cast<std::size_t>(worker->stats().leaked);
    auto const blocks = static_cast<std::size_t>(counts.alive());
    EXPECT_EQ(blocks, leaked);
    leftovers left;
    left.device_allocations = leaked;
    left.events = 3 * leaked;
    left.device_bytes = leaked * block::length * sizeof(int);
    return left;
  }
  /// As the capture's caller would do it; expects that no call has harmed the capture.
  void end_capture() {
    if (!captured || captured->info().status == cudaStreamCaptureStatusNone) return;
    EXPECT_TRUE(captured->is_active());
    for (cudaStream_t const branch : {other.get(), third.get()})
      if (info_of(branch).status == cudaStreamCaptureStatusActive) order(branch, one);
    EXPECT_EQ(captured->end(), cudaSuccess);
  }
  /// Work on a claimed slot must find what the busy work leaves in it, if it is the same one.
  void expect_after_busy_work(block_lease& found, cudaStream_t stream) {
    if (found->number() == busy_number) check(found, stream, 7, mismatches);
  }
  /// Work that runs keeps its slot, no slot is in two leases, a slot that is claimed again is
  /// ordered after its last use, and all slots can be claimed but those that wait for a record.
  void expect_sound() {
    end_capture();
    captured.reset();
    local.reset();
    worker->poll();
    EXPECT_EQ(counts.destroyed.load(), 0) << "freed while the work may run";
    if (held_until_closed && !is_closed) {
      static_cast<void>(pool->close_for(std::chrono::nanoseconds{0}));
      is_closed = true;
    }
    asking = make_stream();
    std::set<int> out;
    std::vector<block_lease> claimed;
    for (std::optional<block_lease>* const mine : {&held, &kept})
      if (*mine && **mine) out.insert((**mine)->number());
    if (claimed_on && held && *held) expect_after_busy_work(*held, *claimed_on);
    if (!is_closed) {
      auto const claim_all = [&] {
        while (auto found = pool->try_claim(asking)) {
          EXPECT_TRUE(out.insert((*found)->number()).second) << "one slot in two leases";
          expect_after_busy_work(*found, asking);
          claimed.push_back(std::move(*found));
        }
      };
      claim_all();
      // Of a stream that outlives the pool: its next call gives what it has.
      while (pool->stats().unrecorded != 0 && pool->try_claim(one)) claim_all();
      EXPECT_EQ(out.size() + pool->stats().deferred, slots) << "a slot was lost";
    }
    flag.raise();
    sync(asking);
    if (claimed_on) sync(*claimed_on);
    EXPECT_EQ(mismatches.load(), 0) << "handed out before its work was done";
  }
};

/// Steps of its operations.
using rows = operations_in<pool_stage>;
using step = rows::step;

inline step pool_of(std::size_t slots) {
  return [=](auto& in) { in.make_pool(slots); };
}
inline step claim_on(owned_stream pool_stage::*stream) {
  return [=](auto& in) { in.claim_on(in.*stream); };
}
inline step const claim = claim_on(&pool_stage::one);
inline step const release = [](auto& in) { in.held->release(); };
inline step const drop = [](auto& in) { in.held.reset(); };
/// The held slot is in use.
inline step busy_on(owned_stream pool_stage::*stream) {
  return [=](auto& in) { in.keep_busy(*in.held, in.*stream); };
}
inline step const busy = busy_on(&pool_stage::one);

}  // namespace escrow::test
