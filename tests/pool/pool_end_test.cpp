// Pools, their leases, graphs and deleters may end in any order, and none of these ends waits.
#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class PoolEnd : public captured_pool_test {
 protected:
  owned_stream stream = make_stream();
};

TEST_F(PoolEnd, APoolMayGoBeforeItsLeases) {
  auto pool = std::make_unique<block_pool>(make_pool(2));
  block_lease held = pool->claim(stream);
  block_lease other = pool->claim(stream);
  pool.reset();
  fill(held, stream, 5);
  check(held, stream, 5, mismatches);
  sync(stream);
  EXPECT_EQ(counts.destroyed.load(), 0);
  held.release();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
  EXPECT_TRUE(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(PoolEnd, APoolMayGoBeforeItsGraphWhichStillRuns) {
  auto pool = std::make_unique<block_pool>(make_pool(2));
  owned_graph graph = captured_work(*pool, stream);
  pool.reset();
  owned_exec exec = instantiate(graph);
  graph.reset();
  for (int i = 0; i < 10; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(counts.destroyed.load(), 0);
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
}

TEST_F(PoolEnd, APoolMayGoWhileACaptureHasItsLease) {
  auto pool = std::make_unique<block_pool>(make_pool(2));
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool->claim(stream);
  pool.reset();
  fill(held, stream, 2);
  check(held, stream, 2, mismatches);
  held.release();
  must(captured.end());
  {
    owned_exec const exec = instantiate(captured.graph());
    must(cudaGraphLaunch(exec, stream));
    sync(stream);
  }
  EXPECT_EQ(mismatches.load(), 0);
  captured.graph().reset();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
}

TEST_F(PoolEnd, DestroyingAPoolDoesNotWaitForARunningKernel) {
  pinned_flag flag;
  owned_stream const other = make_stream();
  auto pool = std::make_unique<block_pool>(make_pool(3));
  {
    block_lease first = pool->claim(stream);
    block_lease second = pool->claim(other);
    second.record_stream(stream);
    must(launch_wait_flag(stream, flag.get()));
    fill(first, stream, 1);
  }
  pool.reset();  // returns, or this test never ends
  EXPECT_FALSE(is_idle(stream));
  EXPECT_TRUE(stays_false([&] { return counts.destroyed.load() != 0; }));
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 2; }));
}

TEST_F(PoolEnd, TheDeleterMayGoBeforeThePool) {
  block_pool pool = make_pool(2);
  owned_graph graph = captured_work(pool, stream);
  worker.reset();
  pool.claim(stream).release();
  owned_graph other = captured_work(pool, make_stream());
  graph.reset();
  other.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  sync(stream);
  pool.claim(stream).release();
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

TEST_F(PoolEnd, DeleterPoolAndGraphMayGoInAnyOrder) {
  for (int order = 0; order < 6; ++order) {
    auto pool = std::make_unique<block_pool>(make_pool(2));
    owned_graph graph = captured_work(*pool, stream);
    std::optional<block_lease> held = pool->claim(stream);
    int const last = order % 3;
    if (order < 3) graph.reset();
    if (last != 0) pool.reset();
    if (last != 1) held.reset();
    graph.reset();
    pool.reset();
    held.reset();
    EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; })) << "order " << order;
  }
}

}  // namespace
}  // namespace escrow::test
