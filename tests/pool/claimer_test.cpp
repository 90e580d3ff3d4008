// SPDX-License-Identifier: Apache-2.0
// Claimers, and streams that outlive the pool: what is released on the stream is claimed there
// again without an event, and gets one when others need it.
#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

class Claimer : public pool_world {
 protected:
  /// Claims, uses behind the flag and releases.
  void use_behind_flag(block_claimer& local, cudaStream_t stream, int value = 7) {
    block_lease held = local.claim();
    keep_busy(held, stream, value);
  }
  [[nodiscard]] pool_options keeping(std::size_t slots_max, std::size_t unrecorded_max) {
    return with(options(slots_max), &pool_options::unrecorded_max, unrecorded_max);
  }
};

TEST_F(Claimer, KeepsItsSlotsFromOtherStreamsUntilItsNextCall) {
  block_pool pool = make_pool(2);
  block_claimer local = pool.on(one);
  use_behind_flag(local, one);
  EXPECT_EQ(pool.claim(two)->number(), 1) << "no event covers the first";
  sync(two);
  block_lease other = pool.claim(two);
  EXPECT_FALSE(pool.try_claim(three).has_value());
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  { block_lease mine = local.claim(); }  // sees that another claim found nothing
  EXPECT_EQ(pool.stats().unrecorded, 0U);
  expect_next_waits(pool, three);
}

TEST_F(Claimer, RecordsOneEventWhenMoreThanUnrecordedMaxAreIdle) {
  block_pool pool = make_pool(keeping(16, 3));
  block_claimer local = pool.on(one);
  std::vector<block_lease> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(local.claim());
  for (std::size_t i = 0; i < 3; ++i) leases[i].release();
  EXPECT_EQ(pool.stats().unrecorded, 3U);
  leases[3].release();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
  EXPECT_EQ(pool.stats().idle, 4U);
}

TEST_F(Claimer, AllOfAPoolKeepAtMostHalfOfItsSlots) {
  block_pool pool = make_pool(8);
  std::vector<owned_stream> streams;
  std::vector<block_claimer> locals;
  for (std::size_t i = 1; i <= 4; ++i) {
    locals.push_back(pool.on(streams.emplace_back(make_stream())));
    std::vector<block_lease> leases;
    while (leases.size() < 4) {
      auto found = locals.back().try_claim();
      if (!found) break;
      leases.push_back(std::move(*found));
    }
    while (!leases.empty()) leases.pop_back();
    EXPECT_LE(pool.stats().unrecorded, 4U) << i << " claimers";
  }
  EXPECT_TRUE(pool.try_claim(three).has_value());
  // What the first has too much, it gives to the others.
  for (int round = 0; round < 2; ++round) {
    for (block_claimer& each : locals) static_cast<void>(each.claim());
  }
  EXPECT_EQ(pool.stats().unrecorded, 4U);
  locals.clear();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
}

TEST_F(Claimer, KeepsItsShareAfterManyRounds) {
  block_pool pool = make_pool(8);
  block_claimer local = pool.on(one);
  for (int round = 0; round < 10; ++round) {
    EXPECT_LE(local.claim()->number(), 1);
    EXPECT_EQ(pool.stats().unrecorded, 1U) << round;
    EXPECT_LE(pool.claim(one)->number(), 1) << "a claim of the pool on its stream gets it, too";
    EXPECT_EQ(pool.stats().unrecorded, 0U) << round;
    static_cast<void>(local.claim());
    local.flush();
  }
}

TEST_F(Claimer, ItsFlushOrEndMakesWhatIsIdleAvailableToAllStreams) {
  for (bool const is_flushed : {true, false}) {
    flag.lower();
    block_pool pool = make_pool(2);
    std::optional<block_claimer> local = pool.on(one);
    std::optional<block_lease> other = local->claim();
    use_behind_flag(*local, one);
    is_flushed ? local->flush() : local.reset();
    EXPECT_EQ(pool.stats().unrecorded, 0U);
    expect_next_waits(pool, two);
    other.reset();
    local.reset();
    end(pool);
  }
}

TEST_F(Claimer, ALeaseReleasedOnAnotherStreamOrWithAnotherStreamsWorkIsRecorded) {
  block_pool pool = make_pool(8);
  block_claimer local = pool.on(one);
  block_lease migrating = local.claim();
  block_lease shared = local.claim();
  hold_up(one);
  migrating.release(two.get());
  shared.record_stream(two);
  shared.release();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
  EXPECT_EQ(pool.claim(two)->number(), 0) << "its last use was on this stream";
}

TEST_F(Claimer, MayOutliveThePool) {
  std::optional<block_pool> pool = make_pool(4);
  block_claimer local = pool->on(one);
  std::optional<block_lease> held = local.claim();
  { block_lease other = local.claim(); }
  pool.reset();
  held.reset();
  expect_error<usage_error>([&] { return local.claim(); }, {"claimer::claim", "closed"});
}

TEST_F(Claimer, AClosedPoolNamesWhatItKeepsAndItsNextCallReturnsIt) {
  block_pool pool = make_pool(4);
  block_claimer local = pool.on(one);
  std::optional<block_lease> late = local.claim();
  local.claim().release();
  std::vector<holder> const left = pool.close_for(std::chrono::nanoseconds(0));
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].waits_for, one.get());
  EXPECT_EQ(left[0].slots, 1U);
  local.flush();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
  late.reset();
  EXPECT_EQ(pool.stats().unrecorded, 0U) << "a closed pool gets each slot at its release";
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(Claimer, ClaimsInACaptureAsThePoolDoes) {
  block_pool pool = make_pool(8);
  block_claimer local = pool.on(one);
  std::optional<block_lease> eager = local.claim();
  fill(*eager, one, 3);
  { block_lease idle = local.claim(); }
  {
    capture captured{one, cudaStreamCaptureModeGlobal};
    block_lease held = local.claim();
    EXPECT_EQ(held->number(), 2) << "no event covers the idle one";
    fill(held, one, 1);
    check(held, one, 1, mismatches);
    held.release();
    EXPECT_EQ(local.claim()->number(), 2) << "the same capture reuses it";
    expect_error<usage_error>([&] { local.flush(); }, {"claimer::flush", "captured"});
    eager.reset();  // work on it may have been captured: the graph holds it, too
    EXPECT_EQ(pool.stats().deferred, 1U);
    EXPECT_TRUE(captured.is_active());
    expect_right_results(captured);
  }
  EXPECT_EQ(local.claim()->number(), 1);
  EXPECT_EQ(pool.stats().deferred, 0U);
  EXPECT_TRUE(leaves_graphs(pool));
}

TEST_F(Claimer, ThatEndsInACaptureLeavesItsSlotsToThePoolsNextCall) {
  block_pool pool = make_pool(2);
  std::optional<block_claimer> local = pool.on(one);
  use_behind_flag(*local, one);
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    local.reset();
    EXPECT_TRUE(captured.is_active());
    EXPECT_EQ(pool.stats().deferred, 1U);
    must(captured.end());
  }
  block_lease other = pool.claim(one);
  EXPECT_EQ(pool.stats().deferred, 0U);
  flag.raise();
}

TEST_F(Claimer, OfThePerThreadStreamIsOfItsThread) {
  block_pool pool = make_pool(4);
  block_claimer local = pool.on(cudaStreamPerThread);
  { block_lease held = local.claim(); }
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  std::thread([&] {
    expect_error<usage_error>([&] { return local.claim(); },
                              {"cudaStreamPerThread", "on each thread"});
  }).join();
}

TEST_F(Claimer, IsRefusedForAStreamOfAnotherDeviceAndWhenMovedFrom) {
  block_pool pool = make_pool(4);
  block_claimer local = pool.on(one);
  block_claimer moved = std::move(local);
  { block_lease held = moved.claim(); }
  expect_error<usage_error>([&] { return local.claim(); },  // NOLINT: moved from
                            {"claimer::claim", "moved"});
  local = std::move(moved);
  EXPECT_EQ(local.claim()->number(), 0);
  if (!has_two_devices()) return;
  owned_stream const elsewhere = make_stream_of(1);
  expect_error<usage_error>([&] { return pool.on(elsewhere); }, {"resource_pool::on", "device"});
}

class StreamsOutlivePool : public pool_world {
 protected:
  [[nodiscard]] pool_options lasting(std::size_t slots_max) {
    return with(options(slots_max), &pool_options::streams_outlive_pool, true);
  }
};

TEST_F(StreamsOutlivePool, AReleaseIsRecordedWhenAnotherStreamNeedsTheSlot) {
  block_pool pool = make_pool(lasting(4));
  std::vector<block_lease> others;
  for (int i = 0; i < 3; ++i) others.push_back(pool.claim(two));
  use_behind_flag(pool, one);
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  EXPECT_EQ(pool.claim(one)->number(), 3);
  EXPECT_FALSE(pool.try_claim(three).has_value());
  { block_lease mine = pool.claim(one); }
  expect_next_waits(pool, three);
}

TEST_F(StreamsOutlivePool, AClaimerEndsWithoutARecord) {
  block_pool pool = make_pool(lasting(4));
  { static_cast<void>(pool.on(one).claim()); }
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  EXPECT_EQ(pool.claim(one)->number(), 0);
  EXPECT_EQ(pool.stats().unrecorded, 1U);
}

TEST_F(StreamsOutlivePool, ItsEndRecordsWhatIsLeft) {
  {
    block_pool pool = make_pool(lasting(4));
    use_behind_flag(pool, one);
    use_behind_flag(pool, two);
    EXPECT_EQ(pool.stats().unrecorded, 2U);
  }
  EXPECT_EQ(counts.alive(), 2) << "destroyed before its work was done";
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_EQ(counts.alive(), 0);
}

TEST_F(StreamsOutlivePool, CloseForRecordsWhatIsLeft) {
  block_pool pool = make_pool(lasting(4));
  std::optional<block_lease> held = pool.claim(two);
  use_behind_flag(pool, one);
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds(0)).size(), 1U);
  held.reset();
  flag.raise();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(StreamsOutlivePool, ThePerThreadStreamIsRecordedAtOnce) {
  block_pool pool = make_pool(lasting(4));
  pool.claim(cudaStreamPerThread).release();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
}

// Threads with claimers of their own streams, and one that claims from the pool, share few slots.
// Some leases end on other threads, while the claimers claim, record, end and are made again.
TEST_F(Claimer, OfManyThreadsNeverShareASlotThatIsInUse) {
  constexpr int threads = 4;
  constexpr int rounds = 200;
  for (bool const is_lasting : {false, true}) {
    pool_options given = keeping(6, 2);
    given.streams_outlive_pool = is_lasting;
    given.host_wait_max = generous;
    std::vector<owned_stream> streams(threads);
    block_pool pool = make_pool(given);
    std::vector<std::jthread> all;
    for (int id = 0; id < threads; ++id) {
      cudaStream_t const stream = (streams[static_cast<std::size_t>(id)] = make_stream());
      all.emplace_back([&, id, stream] {
        std::vector<std::jthread> ending;
        std::optional<block_claimer> local;
        for (int round = 0; round < rounds; ++round) {
          if (id != 0 && round % 20 == 0) local.emplace(pool.on(stream));
          block_lease held = local ? local->claim() : pool.claim(stream);
          fill(held, stream, id * rounds + round);
          check(held, stream, id * rounds + round, mismatches);
          if (round % 7 == 0 && local) local->flush();
          if (round % 3 == 0) ending.emplace_back([ended = std::move(held)] {});
        }
      });
    }
    all.clear();
    for (owned_stream const& each : streams) sync(each);
    EXPECT_EQ(pool.stats().leased, 0U);
    EXPECT_EQ(pool.stats().deferred, 0U);
  }
}

}  // namespace
}  // namespace escrow::test
