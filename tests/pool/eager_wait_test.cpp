// Claims when every slot is out or busy: waits in the stream, on the host within a bound, or not at
// all.
#include <thread>

#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class EagerWait : public pool_test {};

TEST_F(EagerWait, ABusySlotIsHandedOnAndItsNextWorkRunsAfterTheFirst) {
  pinned_flag flag;
  pinned_ints mismatches{2};
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    must(launch_wait_flag(one, flag.get()));
    fill(held, one, 7);
  }
  block_lease held = pool.claim(other);  // returns although the kernel runs
  EXPECT_EQ(held->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 1u);
  check(held, other, 7, mismatches);
  fill(held, other, 8);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(EagerWait, AChainOfStreamsPassesOneSlotOnInOrder) {
  constexpr int length = 20;
  pinned_flag flag;
  pinned_ints mismatches;
  std::vector<owned_stream> streams(length);
  for (owned_stream& stream : streams) stream = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(streams[0]);
    must(launch_wait_flag(streams[0], flag.get()));
    fill(held, streams[0], 0);
  }
  for (int i = 1; i < length; ++i) {
    owned_stream const& stream = streams[static_cast<std::size_t>(i)];
    block_lease held = pool.claim(stream);
    check(held, stream, i - 1, mismatches);
    fill(held, stream, i);
  }
  flag.raise();
  must(cudaDeviceSynchronize());
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(made(), 1);
}

TEST_F(EagerWait, WithAllSlotsLeasedTheClaimThrowsAtOnceAndSaysWhatToDo) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  block_lease const first = pool.claim(stream);
  block_lease const second = pool.claim(stream);
  auto const begin = clock::now();
  std::string const text =
      message_of<pool_exhausted>([&] { static_cast<void>(pool.claim(stream)); });
  EXPECT_LT(clock::now() - begin, generous);
  for (char const* part : {"resource_pool::claim", "\"blocks\"", "slots_max 2", "host_wait_max"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_EQ(pool.stats().host_waits, 0u);
}

TEST_F(EagerWait, ThePoolExhaustedTextNamesTheCapturesThatHoldSlotsAndTheLineOfTheirClaim) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  auto const id = captured.info().id;
  int const line = __LINE__ + 1;
  pool.claim(stream).release();
  must(captured.end());
  std::string const text =
      message_of<pool_exhausted>([&] { static_cast<void>(pool.claim(stream)); });
  std::string const where = "eager_wait_test.cpp:" + std::to_string(line);
  for (std::string const& part : {"capture " + std::to_string(id), where, std::string{"holds 1"}}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST_F(EagerWait, TryClaimReturnsNothingInsteadOfThrowing) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  std::optional<block_lease> const held = pool.try_claim(stream);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(pool.try_claim(stream).has_value());
}

TEST_F(EagerWait, TryClaimForWaitsAsLongAsItIsToldAndNotMuchLonger) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease const held = pool.claim(stream);
  auto const begin = clock::now();
  EXPECT_FALSE(pool.try_claim_for(stream, 50ms).has_value());
  auto const waited = clock::now() - begin;
  EXPECT_GE(waited, 50ms);
  EXPECT_LT(waited, generous);
  EXPECT_EQ(pool.stats().host_waits, 1u);
}

TEST_F(EagerWait, TryClaimForReturnsAsSoonAsASlotComesBack) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(stream);
  auto const begin = clock::now();
  std::thread waiting([&] {
    owned_stream const other = make_stream();
    EXPECT_TRUE(pool.try_claim_for(other, 60s).has_value());
  });
  EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
  held.reset();
  waiting.join();
  EXPECT_LT(clock::now() - begin, generous);
}

TEST_F(EagerWait, TryClaimForReturnsAsSoonAsAGraphLetsItsSlotGo) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  pool.claim(stream).release();
  must(captured.end());
  auto const begin = clock::now();
  std::thread waiting([&] {
    owned_stream const other = make_stream();
    EXPECT_TRUE(pool.try_claim_for(other, 60s).has_value());
  });
  EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
  captured.graph().reset();
  waiting.join();
  EXPECT_LT(clock::now() - begin, generous);
}

TEST_F(EagerWait, HostWaitMaxLetsAPlainClaimWaitAndThenThrows) {
  owned_stream const stream = make_stream();
  pool_options chosen = options(1);
  chosen.host_wait_max = 50ms;
  block_pool pool = make_pool(chosen);
  block_lease const held = pool.claim(stream);
  auto const begin = clock::now();
  EXPECT_THROW(static_cast<void>(pool.claim(stream)), pool_exhausted);
  EXPECT_GE(clock::now() - begin, 50ms);
  EXPECT_FALSE(pool.try_claim(stream).has_value());
  EXPECT_EQ(pool.stats().host_waits, 1u);
}

TEST_F(EagerWait, ManyWaitingThreadsAllGetTheSlotInTurn) {
  constexpr int threads = 8;
  pool_options chosen = options(1);
  chosen.host_wait_max = 60s;
  block_pool pool = make_pool(chosen);
  std::atomic<int> inside{0};
  std::atomic<int> turns{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      owned_stream const stream = make_stream();
      for (int turn = 0; turn < 20; ++turn) {
        block_lease const held = pool.claim(stream);
        EXPECT_EQ(inside.fetch_add(1, std::memory_order_relaxed), 0);
        turns.fetch_add(1, std::memory_order_relaxed);
        inside.fetch_sub(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& each : all) each.join();
  EXPECT_EQ(turns.load(), threads * 20);
  EXPECT_EQ(made(), 1);
}

TEST_F(EagerWait, AClaimThatWaitsWhenThePoolIsClosedIsRefusedAndMakesNothing) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(stream);
  std::string text;
  std::thread waiting([&] {
    owned_stream const other = make_stream();
    text = message_of<usage_error>([&] { static_cast<void>(pool.try_claim_for(other, 60s)); });
  });
  EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
  EXPECT_EQ(pool.close_for(0ns).size(), 1u);
  held.reset();
  waiting.join();
  EXPECT_NE(text.find("closed"), std::string::npos) << text;
  EXPECT_EQ(made(), 1);
}

TEST_F(EagerWait, ClaimsBesideTheClosingNeverUseTheRoomThatAClosedPoolsSlotLeft) {
  constexpr int rounds = 300;
  for (int round = 0; round < rounds; ++round) {
    owned_stream const stream = make_stream();
    block_pool pool = make_pool(1);
    std::optional<block_lease> held = pool.claim(stream);
    std::atomic<bool> has_begun{false};
    std::thread claiming([&] {
      auto const claim_until_refused = [&] {
        while (!pool.try_claim(stream).has_value()) {
          has_begun.store(true, std::memory_order_relaxed);
        }
      };
      EXPECT_THROW(claim_until_refused(), usage_error);
    });
    EXPECT_TRUE(wait_until([&] { return has_begun.load(std::memory_order_relaxed); }));
    static_cast<void>(pool.close_for(0ns));
    held.reset();
    claiming.join();
    EXPECT_EQ(made(), round + 1);
  }
}

}  // namespace
}  // namespace escrow::test
