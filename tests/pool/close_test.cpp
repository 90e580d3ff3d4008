// Closing a pool: it says who still holds what, and destroys each resource once when it is back.
#include <thread>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class Close : public captured_pool_test {
 protected:
  owned_stream stream = make_stream();
};

TEST_F(Close, AClaimAfterwardsIsRefusedByName) {
  block_pool pool = make_pool(2);
  pool.claim(stream).release();
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
  std::string const text = message_of<usage_error>([&] { static_cast<void>(pool.claim(stream)); });
  EXPECT_NE(text.find("closed"), std::string::npos) << text;
  EXPECT_NE(text.find("\"blocks\""), std::string::npos) << text;
  EXPECT_THROW(static_cast<void>(pool.try_claim(stream)), usage_error);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_THROW(static_cast<void>(pool.claim(stream)), usage_error);
  EXPECT_TRUE(captured.is_active());
  EXPECT_EQ(made(), 1);
}

TEST_F(Close, ReturnsTheGraphsThatHoldSlotsWithIdLabelCountTimeAndPlace) {
  block_pool pool = make_pool(4);
  auto const before = clock::now();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  auto const id = captured.info().id;
  int const line = __LINE__ + 1;
  block_lease first = pool.claim(stream);
  block_lease second = pool.claim(stream);
  first.release();
  second.release();
  must(captured.end());
  std::vector<holder> const holders = pool.close_for(0ns);
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].capture_id, id);
  EXPECT_EQ(holders[0].label, "blocks");
  EXPECT_EQ(holders[0].slots, 2u);
  EXPECT_GE(holders[0].since, before);
  EXPECT_LE(holders[0].since, clock::now());
  EXPECT_EQ(holders[0].where.line(), static_cast<unsigned>(line));
  EXPECT_NE(std::string{holders[0].where.file_name()}.find("close_test.cpp"), std::string::npos);
  captured.graph().reset();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(Close, ReturnsTheLeasesThatAreOut) {
  block_pool pool = make_pool(4);
  std::optional<block_lease> first = pool.claim(stream);
  std::optional<block_lease> const second = pool.claim(stream);
  owned_graph const graph = captured_work(pool, stream);
  std::vector<holder> const holders = pool.close_for(1ms);
  ASSERT_EQ(holders.size(), 2u);
  EXPECT_EQ(holders[0].slots, 1u);
  EXPECT_EQ(holders[1].capture_id, 0u);
  EXPECT_EQ(holders[1].slots, 2u);
  EXPECT_EQ(holders[1].label, "blocks");
  first.reset();
  EXPECT_EQ(pool.close_for(0ns).back().slots, 1u);
}

TEST_F(Close, TwoGraphsAreTwoHolders) {
  block_pool pool = make_pool(4);
  owned_graph first = captured_work(pool, stream);
  owned_graph second = captured_work(pool, stream);
  EXPECT_EQ(pool.close_for(0ns).size(), 2u);
  first.reset();
  EXPECT_TRUE(wait_until([&] { return pool.close_for(0ns).size() == 1; }));
  second.reset();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(Close, WaitsAsLongAsItIsToldAndReturnsEarlyWhenAllIsBack) {
  block_pool pool = make_pool(2);
  std::optional<block_lease> held = pool.claim(stream);
  auto const begin = clock::now();
  EXPECT_EQ(pool.close_for(50ms).size(), 1u);
  EXPECT_GE(clock::now() - begin, 50ms);
  auto const again = clock::now();
  std::atomic<bool> waiting{false};
  std::thread closing([&] {
    waiting.store(true);
    EXPECT_TRUE(pool.close_for(60s).empty());
  });
  EXPECT_TRUE(wait_until([&] { return waiting.load(); }));
  held.reset();
  closing.join();
  EXPECT_LT(clock::now() - again, generous);
}

TEST_F(Close, DestroysTheResourceOfALeaseOnlyAfterItsRelease) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  EXPECT_EQ(pool.close_for(0ns).size(), 1u);
  fill(held, stream, 1);
  check(held, stream, 1, mismatches);
  sync(stream);
  EXPECT_EQ(counts.destroyed.load(), 0);
  held.release();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Close, ADrainWaitsForAClosedPoolsSlotHoweverManyStreamsUsedIt) {
  constexpr std::size_t many = 9;
  std::vector<pinned_flag> flags(many);
  std::vector<owned_stream> streams(many);
  auto pool = std::make_unique<block_pool>(make_pool(1));
  {
    block_lease held = pool->claim(stream);
    for (std::size_t i = 0; i < many; ++i) {
      streams[i] = make_stream();
      held.record_stream(streams[i]);
      must(launch_wait_flag(streams[i], flags[i].get()));
    }
  }
  pool.reset();
  std::atomic<bool> is_drained{false};
  std::thread draining([&] {
    EXPECT_TRUE(worker->drain_for(std::chrono::seconds{60}));
    EXPECT_EQ(counts.destroyed.load(), 1);
    is_drained.store(true);
  });
  // One after another, from the last one that the lease was used on to the first.
  for (std::size_t i = many; i-- > 0;) {
    EXPECT_TRUE(stays_false([&] { return is_drained.load(); })) << i + 1 << " streams are busy";
    flags[i].raise();
  }
  draining.join();
}

TEST_F(Close, CloseForDoesNotWaitForARunningKernel) {
  pinned_flag flag;
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
    fill(held, stream, 1);
  }
  EXPECT_TRUE(pool.close_for(0ns).empty());
  EXPECT_TRUE(stays_false([&] { return counts.destroyed.load() != 0; }));
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
}

TEST_F(Close, AMovedPoolServesUnderItsNewName) {
  block_pool pool = make_pool(1);
  pool.claim(stream).release();
  block_pool moved = std::move(pool);
  EXPECT_EQ(moved.claim(stream)->number(), 0);
  moved = make_pool(1);
  EXPECT_EQ(moved.claim(stream)->number(), 1);
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 1; }));
}

TEST_F(Close, APoolOfADeviceThatDoesNotExistCannotBeMade) {
  pool_options chosen = options(1);
  chosen.device = 1000;
  EXPECT_THROW(static_cast<void>(make_pool(chosen)), cuda_error);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace escrow::test
