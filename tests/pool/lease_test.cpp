// A lease: released once, on its stream or another, moved, and told of further streams.
#include <thread>

#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

class Lease : public pool_test {};

TEST_F(Lease, AnEmptyLeaseSaysSoWhateverIsAskedOfIt) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  held.release();
  EXPECT_FALSE(held);
  struct call {
    char const* name;
    std::function<void()> run;
  };
  for (call const& each : {call{"lease::release", [&] { held.release(); }},
                           call{"lease::release", [&] { held.release(stream.get()); }},
                           call{"lease::record_stream", [&] { held.record_stream(stream.get()); }},
                           call{"lease::get", [&] { static_cast<void>(held.get()); }}}) {
    std::string const text = message_of<usage_error>(each.run);
    EXPECT_NE(text.find(each.name), std::string::npos) << text;
    EXPECT_NE(text.find("empty"), std::string::npos) << text;
  }
  EXPECT_EQ(pool.stats().slots, 1u);
  EXPECT_EQ(pool.claim(stream)->number(), 0);
}

TEST_F(Lease, AMovedFromLeaseIsEmptyAndTheOtherReleases) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  block_lease moved = std::move(held);
  EXPECT_FALSE(held);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_TRUE(moved);
  EXPECT_THROW(held.release(), usage_error);
  moved.release();
  EXPECT_TRUE(pool.try_claim(stream).has_value());
}

TEST_F(Lease, MoveAssignmentReleasesWhatWasHeldAndLeavesTheSourceEmpty) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  block_lease first = pool.claim(stream);
  block_lease second = pool.claim(stream);
  first = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_EQ(first->number(), 1);
  std::optional<block_lease> const again = pool.try_claim(stream);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ((*again)->number(), 0);
}

TEST_F(Lease, SelfMoveAssignmentKeepsTheLease) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  block_lease& same = held;
  held = std::move(same);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->number(), 0);
  EXPECT_FALSE(pool.try_claim(stream).has_value());
}

TEST_F(Lease, ReleasedOnAnotherStreamItIsTheOtherStreamsNext) {
  pinned_flag flag;
  pinned_ints mismatches;
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  owned_stream const third = make_stream();
  owned_event const event = make_event();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  fill(held, one, 3);
  must(cudaEventRecord(event, one));
  must(cudaStreamWaitEvent(other, event));
  must(launch_wait_flag(other, flag.get()));
  fill(held, other, 4);
  held.release(other.get());
  pool.claim(other).release();
  EXPECT_EQ(pool.stats().stream_waits, 0u);
  block_lease next = pool.claim(third);
  check(next, third, 4, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(third); }));
  flag.raise();
  sync(third);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Lease, AlsoUsedOnMakesTheNextUserWaitForEveryStream) {
  pinned_flag flags[2];
  pinned_ints mismatches;
  owned_stream const one = make_stream();
  owned_stream const second = make_stream();
  owned_stream const third = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    held.record_stream(second);
    held.record_stream(third);
    must(launch_wait_flag(second, flags[0].get()));
    must(launch_wait_flag(third, flags[1].get()));
    fill(held, third, 9);
  }
  block_lease held = pool.claim(other);
  check(held, other, 9, mismatches);
  flags[0].raise();
  sync(second);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flags[1].raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Lease, AlsoUsedOnHoldsForTheSameStreamsNextClaimToo) {
  pinned_flag flag;
  pinned_ints mismatches;
  owned_stream const one = make_stream();
  owned_stream const second = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    held.record_stream(second);
    must(launch_wait_flag(second, flag.get()));
    fill(held, second, 2);
  }
  block_lease held = pool.claim(one);
  check(held, one, 2, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(one); }));
  flag.raise();
  sync(one);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Lease, TheStreamsOfOneLeaseDoNotHoldUpALaterOne) {
  pinned_flag flag;
  owned_stream const one = make_stream();
  owned_stream const second = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    held.record_stream(second);
  }
  pool.claim(one).release();
  must(launch_wait_flag(second, flag.get()));  // after the release: none of the lease's business
  block_lease const held = pool.claim(other);
  sync(other);
  EXPECT_FALSE(is_idle(second));
}

TEST_F(Lease, ManyStreamsMayUseOneLease) {
  pinned_ints mismatches;
  pinned_ints sum;
  std::vector<owned_stream> streams(40);
  for (owned_stream& stream : streams) stream = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  for (int round = 0; round < 3; ++round) {
    block_lease held = pool.claim(streams[0]);
    for (owned_stream const& stream : streams) {
      held.record_stream(stream);
      must(launch_add(stream, sum.data(), 1));
    }
    held.release();
    block_lease const next = pool.claim(other);
    sync(other);
    EXPECT_EQ(sum.load(), 40 * (round + 1));
  }
}

TEST_F(Lease, ALeaseMayBeReleasedOnAnotherThread) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  must(launch_wait_flag(stream, flag.get()));
  std::thread{[moved = std::move(held)]() mutable { moved.release(); }}.join();
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  std::thread{[moved = pool.claim(stream)] { EXPECT_TRUE(moved); }}.join();
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
}

TEST_F(Lease, WhatAThreadWroteToTheResourceIsSeenByTheNextHolder) {
  struct host_state {
    int plain = 0;
  };
  constexpr int rounds = 2000;
  pool_options chosen = options(1);
  chosen.host_wait_max = std::chrono::seconds{60};
  resource_pool<host_state> pool{chosen, [] { return host_state{}; }};
  auto const work = [&] {
    owned_stream const stream = make_stream();
    for (int i = 0; i < rounds; ++i) ++pool.claim(stream)->plain;  // a race, unless ordered
  };
  std::thread one{work};
  std::thread other{work};
  one.join();
  other.join();
  owned_stream const stream = make_stream();
  EXPECT_EQ(pool.claim(stream)->plain, 2 * rounds);
}

TEST_F(Lease, AStreamMayBeDestroyedAfterTheReleaseOnIt) {
  pinned_flag flag;
  pinned_ints mismatches;
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  {
    owned_stream const gone = make_stream();
    block_lease held = pool.claim(gone);
    must(launch_wait_flag(gone, flag.get()));
    fill(held, gone, 11);
  }
  block_lease held = pool.claim(other);
  check(held, other, 11, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

}  // namespace
}  // namespace escrow::test
