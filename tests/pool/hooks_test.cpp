// What a pool's functions are called for: make, recycle and destroy.
#include <stdexcept>
#include <thread>

#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

class Hooks : public pool_test {
 protected:
  /// A pool that sets each used block to `pattern` before it is handed out again.
  [[nodiscard]] block_pool recycling_pool(std::size_t slots_max, int pattern) {
    return block_pool{options(slots_max), [this] { return block{counts}; },
                      [pattern](block& used, stream_ref stream) {
                        must(launch_fill(stream.get(), used.data(), block::length, pattern));
                      }};
  }
};

TEST_F(Hooks, ANewResourceIsNotRecycledAndAUsedOneIs) {
  int recycled = 0;
  owned_stream const stream = make_stream();
  block_pool pool{options(2), [this] { return block{counts}; },
                  [&recycled](block&, stream_ref) { ++recycled; }};
  pool.claim(stream).release();
  EXPECT_EQ(recycled, 0);
  pool.claim(stream).release();
  EXPECT_EQ(recycled, 1);
}

TEST_F(Hooks, RecycleRunsInTheClaimingStreamsOrder) {
  pinned_flag flag;
  pinned_ints mismatches{2};
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = recycling_pool(1, 5);
  {
    block_lease held = pool.claim(one);
    must(launch_wait_flag(one, flag.get()));
    fill(held, one, 7);
  }
  block_lease held = pool.claim(other);
  check(held, other, 5, mismatches);
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Hooks, RecycleIsCapturedAndRunsAtEveryLaunch) {
  pinned_ints mismatches;
  owned_stream const stream = make_stream();
  block_pool pool = recycling_pool(2, 5);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(stream);  // new, but the graph will be launched again
    check(held, stream, 5, mismatches);
    fill(held, stream, 6);
  }
  must(captured.end());
  owned_exec const exec = instantiate(captured.graph());
  for (int i = 0; i < 3; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(Hooks, ARecycleThatThrowsFailsTheClaimAndGivesTheSlotBack) {
  bool fails = true;
  owned_stream const stream = make_stream();
  block_pool pool{options(1), [this] { return block{counts}; },
                  [&fails](block&, stream_ref) {
                    if (fails) throw std::runtime_error{"no recycling today"};
                  }};
  pool.claim(stream).release();
  EXPECT_EQ(message_of<std::runtime_error>([&] { static_cast<void>(pool.claim(stream)); }),
            "no recycling today");
  fails = false;
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  fails = true;
  {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(static_cast<void>(pool.claim(stream)), std::runtime_error);
    EXPECT_TRUE(captured.is_active());
    must(captured.end());
  }
  EXPECT_TRUE(drained());
  fails = false;
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  EXPECT_EQ(made(), 1);
}

TEST_F(Hooks, AMakeThatThrowsFailsTheClaimAndTakesNoPlace) {
  bool fails = true;
  owned_stream const stream = make_stream();
  block_pool pool{options(1), [&] {
                    if (fails) throw std::runtime_error{"nothing to be had"};
                    return block{counts};
                  }};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(message_of<std::runtime_error>([&] { static_cast<void>(pool.claim(stream)); }),
              "nothing to be had");
    EXPECT_EQ(pool.stats().slots, 0u);
  }
  {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(static_cast<void>(pool.claim(stream)), std::runtime_error);
    EXPECT_TRUE(captured.is_active());
    fails = false;
    block_lease const held = pool.claim(stream);  // cudaMalloc in a Global capture
    EXPECT_TRUE(captured.is_active());
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.stats().slots, 1u);
}

TEST_F(Hooks, MakeIsCalledWithThePoolsDeviceCurrentAndTheCallersIsRestored) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  owned_stream const stream = make_stream();
  int seen = -1;
  block_pool pool{options(1), [&] {
                    must(cudaGetDevice(&seen));
                    return block{counts};
                  }};
  must(cudaSetDevice(1));
  pool.claim(stream).release();
  int current = -1;
  must(cudaGetDevice(&current));
  must(cudaSetDevice(0));
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(current, 1);
}

TEST_F(Hooks, DestroyIsCalledOnceForEachResourceOnTheWorkerBeforeItsEnd) {
  std::atomic<int> destroyed{0};
  std::atomic<bool> elsewhere{true};
  std::atomic<bool> still_alive{true};
  auto const here = std::this_thread::get_id();
  owned_stream const stream = make_stream();
  {
    block_pool pool{options(3),
                    [this] { return block{counts}; },
                    {},
                    [&](block& dying) {
                      destroyed.fetch_add(1);
                      if (std::this_thread::get_id() == here) elsewhere.store(false);
                      if (dying.data() == nullptr) still_alive.store(false);
                    }};
    block_lease const first = pool.claim(stream);
    block_lease const second = pool.claim(stream);
  }
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 2; }));
  EXPECT_EQ(destroyed.load(), 2);
  EXPECT_TRUE(elsewhere.load());
  EXPECT_TRUE(still_alive.load());
}

TEST_F(Hooks, DestroyRunsOnlyAfterTheWorkThatUsesTheResource) {
  pinned_flag flag;
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  {
    block_pool pool = make_pool(2);
    block_lease held = pool.claim(one);
    held.record_stream(other);
    must(launch_wait_flag(other, flag.get()));
    fill(held, other, 3);
  }
  EXPECT_TRUE(stays_false([&] { return counts.destroyed.load() != 0; }));
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
}

TEST_F(Hooks, APoolCanBeUsedInsideAnotherPoolsMake) {
  owned_stream const stream = make_stream();
  block_pool inner = make_pool(2);
  using both = std::pair<block, block_lease>;
  {
    resource_pool<both> outer{options(2), [&] { return both{block{counts}, inner.claim(stream)}; }};
    outer.claim(stream).release();
    EXPECT_EQ(inner.stats().slots, 1u);
  }
  // The inner lease is released before its neighbour is destroyed.
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
  EXPECT_TRUE(inner.try_claim(stream).has_value());
}

}  // namespace
}  // namespace escrow::test
