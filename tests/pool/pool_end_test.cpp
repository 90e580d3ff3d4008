// The end of a pool: closing names what holds slots, each resource is destroyed once when it is
// back, and nothing waits for the GPU.
#include <atomic>
#include <optional>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class Close : public pool_world {
 protected:
  [[nodiscard]] bool are_destroyed(int count) {
    return wait_until([&] { return counts.destroyed.load() == count; });
  }
};

TEST_F(Close, ClaimsAfterwardsAreRefusedByName) {
  block_pool pool = make_pool(2);
  pool.claim(one).release();
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_TRUE(are_destroyed(1));
  auto const claim = [&] { static_cast<void>(pool.claim(one)); };
  expect_error<usage_error>(claim, {"closed", "\"blocks\""});
  EXPECT_THROW(static_cast<void>(pool.try_claim(one)), usage_error);
  capture captured{one, cudaStreamCaptureModeGlobal};
  EXPECT_THROW(claim(), usage_error);
  EXPECT_TRUE(captured.is_active());
  EXPECT_EQ(made(), 1);
}

TEST_F(Close, ReturnsTheGraphsThatHoldSlotsWithIdLabelCountTimeAndPlace) {
  block_pool pool = make_pool(4);
  auto const before = clock::now();
  capture captured{one, cudaStreamCaptureModeGlobal};
  auto const id = captured.info().id;
  int const line = __LINE__ + 1;
  block_lease first = pool.claim(one);
  block_lease second = pool.claim(one);
  first.release();
  second.release();
  must(captured.end());
  owned_graph other = captured_use(pool);
  std::vector<holder> const holders = pool.close_for(0ns);
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].capture_id, id);
  EXPECT_EQ(holders[0].label, "blocks");
  EXPECT_EQ(holders[0].slots, 2U);
  EXPECT_GE(holders[0].since, before);
  EXPECT_LE(holders[0].since, clock::now());
  EXPECT_EQ(holders[0].where.line(), static_cast<unsigned>(line));
  EXPECT_NE(std::string{holders[0].where.file_name()}.find("pool_end_test.cpp"), std::string::npos);
  other.reset();
  EXPECT_TRUE(wait_until([&] { return pool.close_for(0ns).size() == 1; }));
  captured.graph().reset();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(Close, ReturnsTheLeasesThatAreOut) {
  block_pool pool = make_pool(4);
  std::optional<block_lease> first = pool.claim(one);
  std::optional<block_lease> const second = pool.claim(one);
  owned_graph const graph = captured_use(pool);
  std::vector<holder> const holders = pool.close_for(1ms);
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[1].capture_id, 0U);
  EXPECT_EQ(holders[1].slots, 2U);
  EXPECT_EQ(holders[1].label, "blocks");
  first.reset();
  EXPECT_EQ(pool.close_for(0ns).back().slots, 1U);
}

TEST_F(Close, WaitsAsLongAsItMayAndReturnsEarlyWhenAllIsBack) {
  block_pool pool = make_pool(2);
  std::optional<block_lease> held = pool.claim(one);
  auto const begin = clock::now();
  EXPECT_EQ(pool.close_for(50ms).size(), 1U);
  EXPECT_GE(clock::now() - begin, 50ms);
  std::atomic<bool> is_waiting{false};
  {
    std::jthread const closing([&] {
      is_waiting.store(true);
      EXPECT_TRUE(pool.close_for(60s).empty());
    });
    EXPECT_TRUE(wait_until([&] { return is_waiting.load(); }));
    held.reset();
  }
  EXPECT_LT(clock::now() - begin, generous);
}

TEST_F(Close, DoesNotWaitForARunningKernelButItsResourceDoes) {
  for (bool const is_destroyed : {false, true}) {  // the pool, or only closed
    pinned_flag done;
    int const before = counts.destroyed.load();
    std::optional<block_pool> pool = make_pool(1);
    {
      block_lease held = pool->claim(one);
      held.record_stream(two);
      must(launch_wait_flag(two, done.get()));
      fill(held, two, 1);
    }
    std::size_t const held_by = is_destroyed ? 0 : pool->close_for(0ns).size();
    EXPECT_EQ(held_by, 0U);
    if (is_destroyed) pool.reset();  // returns, or this test never ends
    EXPECT_FALSE(is_idle(two));
    EXPECT_TRUE(stays_false([&] { return counts.destroyed.load() != before; }));
    done.raise();
    EXPECT_TRUE(are_destroyed(before + 1));
    sync(two);
  }
}

TEST_F(Close, ADrainWaitsForASlotOfAClosedPoolHoweverManyStreamsUsedIt) {
  constexpr std::size_t many = 9;
  std::vector<pinned_flag> flags(many);
  std::vector<owned_stream> streams(many);
  std::optional<block_pool> pool = make_pool(1);
  {
    block_lease held = pool->claim(one);
    for (std::size_t i = 0; i < many; ++i) {
      streams[i] = make_stream();
      held.record_stream(streams[i]);
      must(launch_wait_flag(streams[i], flags[i].get()));
    }
  }
  pool.reset();
  std::atomic<bool> is_drained{false};
  std::jthread const draining([&] {
    EXPECT_TRUE(worker->drain_for(60s));
    EXPECT_EQ(counts.destroyed.load(), 1);
    is_drained.store(true);
  });
  for (std::size_t i = many; i-- > 0;) {
    EXPECT_TRUE(stays_false([&] { return is_drained.load(); })) << i + 1 << " streams are busy";
    flags[i].raise();
  }
}

class PoolEnd : public Close {};

TEST_F(PoolEnd, ThePoolMayOutliveItsDeleter) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_use(pool);
  worker.reset();
  use(pool, one);
  owned_graph other = captured_use(pool);
  graph.reset();
  other.reset();
  EXPECT_TRUE(leaves_graphs(pool));
  sync(one);
  use(pool, one);
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

TEST_F(PoolEnd, IsLeftToTheWorkerByAClaimThatRecyclesItsLastSlot) {
  deleter polled{deleter_options{.own_worker = false}};
  pool_options chosen = options(1);
  chosen.deleter = &polled;
  {
    std::optional<block_pool> ended = make_pool(chosen);
    block_pool other = make_pool(chosen);
    owned_graph graph = captured_use(*ended);
    block_lease const only = other.claim(one);
    ended.reset();
    graph.reset();
    EXPECT_FALSE(other.try_claim(one).has_value());
    EXPECT_EQ(counts.destroyed.load(), 0);
    EXPECT_TRUE(polled.drain_for(generous));
    EXPECT_EQ(counts.destroyed.load(), 1);
  }
  sync(one);
  EXPECT_TRUE(polled.drain_for(generous));
}

}  // namespace
}  // namespace escrow::test
