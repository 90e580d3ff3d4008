// Which slot an eager claim gets: its stream's own, one whose work is done, a new one, the oldest.
#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

class EagerChoice : public pool_test {};

TEST_F(EagerChoice, TheStreamsOwnLastSlotComesBackWithoutAnyWait) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(4);
  must(launch_wait_flag(stream, flag.get()));
  pool.claim(stream).release();
  for (int i = 0; i < 10; ++i) {
    block_lease const held = pool.claim(stream);
    EXPECT_EQ(held->number(), 0);
  }
  EXPECT_FALSE(is_idle(stream));
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
}

TEST_F(EagerChoice, OfTheStreamsOwnSlotsTheOneReleasedLastIsTaken) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(4);
  block_lease first = pool.claim(stream);
  block_lease second = pool.claim(stream);
  must(launch_wait_flag(stream, flag.get()));
  second.release();
  first.release();
  EXPECT_EQ(pool.claim(stream)->number(), 0);
}

TEST_F(EagerChoice, ASlotWhoseWorkIsDoneServesAnotherStreamWithoutAWait) {
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(4);
  pool.claim(one).release();
  sync(one);
  EXPECT_EQ(pool.claim(other)->number(), 0);
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
}

TEST_F(EagerChoice, ABusySlotMakesThePoolGrowUpToItsLimit) {
  pinned_flag flag;
  std::vector<owned_stream> streams(6);
  block_pool pool = make_pool(4);
  for (int i = 0; i < 6; ++i) {
    owned_stream& stream = streams[static_cast<std::size_t>(i)];
    stream = make_stream();
    block_lease held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
    held.release();
    EXPECT_EQ(made(), std::min(i + 1, 4));
    EXPECT_EQ(pool.stats().slots, static_cast<std::size_t>(std::min(i + 1, 4)));
  }
  EXPECT_EQ(pool.stats().grown, 4u);
  EXPECT_EQ(pool.stats().stream_waits, 2u);
}

TEST_F(EagerChoice, AtTheLimitTheOldestReleaseIsTaken) {
  pinned_flag flag;
  std::vector<owned_stream> streams(3);
  block_pool pool = make_pool(3);
  std::vector<block_lease> leases;
  for (owned_stream& stream : streams) {
    stream = make_stream();
    leases.push_back(pool.claim(stream));
    must(launch_wait_flag(stream, flag.get()));
  }
  for (std::size_t const i : {1u, 2u, 0u}) leases[i].release();
  owned_stream const other = make_stream();
  block_lease const first = pool.claim(other);
  block_lease const second = pool.claim(other);
  block_lease const third = pool.claim(other);
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(second->number(), 2);
  EXPECT_EQ(third->number(), 0);
}

TEST_F(EagerChoice, ABusySlotOfOneStreamDoesNotHideAnIdleOneOfTheSameStream) {
  pinned_flag flag;
  owned_stream const slow = make_stream();
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(2);
  block_lease first = pool.claim(one);
  block_lease second = pool.claim(one);
  first.record_stream(slow);
  must(launch_wait_flag(slow, flag.get()));
  first.release();
  second.release();
  sync(one);
  block_lease const found = pool.claim(other);
  EXPECT_EQ(found->number(), 1);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
  EXPECT_TRUE(is_idle(other));
}

TEST_F(EagerChoice, AHundredStreamsShareFewSlots) {
  std::vector<owned_stream> streams(100);
  for (owned_stream& stream : streams) stream = make_stream();
  pinned_ints mismatches;
  block_pool pool = make_pool(3);
  for (int round = 0; round < 5; ++round) {
    for (owned_stream const& stream : streams) {
      block_lease held = pool.claim(stream);
      fill(held, stream, round + 1);
      check(held, stream, round + 1, mismatches);
    }
  }
  must(cudaDeviceSynchronize());
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_LE(made(), 3);
}

TEST_F(EagerChoice, AnIdleSlotIsFoundBehindMoreBusyStreamsThanAClaimAsksAbout) {
  // A claim may give up asking and grow; at the limit it must still get something.
  constexpr std::size_t busy = 40;
  pinned_flag flag;
  std::vector<owned_stream> streams(busy);
  block_pool pool = make_pool(busy);
  for (owned_stream& stream : streams) {
    stream = make_stream();
    block_lease held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
  }
  owned_stream const other = make_stream();
  EXPECT_TRUE(pool.try_claim(other).has_value());
  EXPECT_EQ(made(), static_cast<int>(busy));
}

}  // namespace
}  // namespace escrow::test
