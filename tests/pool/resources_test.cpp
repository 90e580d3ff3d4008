// A pool's resources: how they are made, recycled and destroyed; and scratch memory, a pool for
// each size.
#include <atomic>
#include <optional>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class Resources : public pool_world {
 protected:
  /// A pool that sets each used block to `pattern` before it is handed out again.
  [[nodiscard]] block_pool recycling_pool(std::size_t slots_max, int pattern) {
    return block_pool{options(slots_max), [this] { return block{counts}; },
                      [pattern](block& used, stream_ref stream) {
                        must(launch_fill(stream.get(), used.data(), block::length, pattern));
                      }};
  }
};

TEST_F(Resources, ANewOneIsNotRecycledAndAUsedOneIs) {
  int recycled = 0;
  block_pool pool{options(2), [this] { return block{counts}; },
                  [&recycled](block&, stream_ref) { ++recycled; }};
  pool.claim(one).release();
  EXPECT_EQ(recycled, 0);
  pool.claim(one).release();
  EXPECT_EQ(recycled, 1);
}

TEST_F(Resources, AreRecycledInTheOrderOfTheClaimingStream) {
  block_pool pool = recycling_pool(1, 5);
  use_behind_flag(pool, one);
  expect_next_waits(pool, two, 5);
}

TEST_F(Resources, AreRecycledAtEveryLaunchOfACapturedClaim) {
  block_pool pool = recycling_pool(2, 5);
  capture captured{one, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(one);  // new, but the graph will be launched again
    check(held, one, 5, mismatches);
    fill(held, one, 6);
  }
  expect_right_results(captured);
}

TEST_F(Resources, AreEachGivenToDestroyOnceOnTheWorkerBeforeTheirEnd) {
  std::atomic<int> destroyed{0};
  std::atomic<bool> is_right{true};
  auto const here = std::this_thread::get_id();
  {
    auto const destroy = [&](block& dying) {
      destroyed.fetch_add(1);
      if (std::this_thread::get_id() == here || dying.data() == nullptr) is_right.store(false);
    };
    block_pool pool{options(3), [this] { return block{counts}; }, {}, destroy};
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
  }
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 2; }));
  EXPECT_EQ(destroyed.load(), 2);
  EXPECT_TRUE(is_right.load());
}

TEST_F(Resources, MayHaveLeasesOfOtherPools) {
  block_pool inner = make_pool(2);
  using both = std::pair<block, block_lease>;
  {
    resource_pool<both> outer{options(2), [&] { return both{block{counts}, inner.claim(one)}; }};
    outer.claim(one).release();
    EXPECT_EQ(inner.stats().slots, 1U);
  }
  // The inner lease is released before its neighbour is destroyed.
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
  EXPECT_TRUE(inner.try_claim(one).has_value());
}

TEST_F(Resources, MoveWithTheirPool) {
  block_pool pool = make_pool(1);
  pool.claim(one).release();
  block_pool moved = std::move(pool);
  EXPECT_EQ(moved.claim(one)->number(), 0);
  moved = make_pool(1);
  EXPECT_EQ(moved.claim(one)->number(), 1);
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 1; }));
}

TEST_F(Resources, NeedADeviceThatExists) {
  pool_options chosen = options(1);
  chosen.device = 1000;
  EXPECT_THROW(static_cast<void>(make_pool(chosen)), cuda_error);
  static_cast<void>(cudaGetLastError());
}

class Scratch : public pool_world {
 protected:
  /// Errors name the function that was called, and the pool as its owner knows it.
  template <class Exception>
  void expect_claim_fails(std::size_t bytes, cudaStream_t on,
                          std::vector<std::string> const& parts) {
    auto const claim = [&] { static_cast<void>(pool.claim(on, bytes)); };
    expect_error<Exception>(claim, {"scratch_pool::claim: "});
    expect_error<Exception>(claim, parts);
    EXPECT_EQ(message_of<Exception>(claim).find("resource_pool"), std::string::npos);
  }

  scratch_pool pool{{.slots_max = 1, .device = 0, .label = "scratch"}};
};

TEST_F(Scratch, MakesBlocksOfFurtherSizesWhenItsDeleterIsGone) {
  std::optional<deleter> its(std::in_place);
  scratch_pool made({.slots_max = 1, .device = 0, .deleter = &*its});
  static_cast<void>(made.claim(one, 256));
  its.reset();
  its.emplace();  // another one, in the same place
  static_cast<void>(made.claim(one, 4096));
  owned_graph const graph = captured_claim(made, 1'000'000);
  EXPECT_EQ(made.stats().bytes_in_graphs, scratch_pool::block_bytes(1'000'000));
  EXPECT_EQ(its->stats().in_graphs, 0U) << "it was given to the other deleter";
}

TEST_F(Scratch, GivesTheSameBlockAgainToItsStream) {
  void* const first = pool.claim(one, 1000)->data();
  EXPECT_EQ(pool.claim(one, 1024)->data(), first);
  EXPECT_NE(pool.claim(one, 1025)->data(), first);
  EXPECT_EQ(pool.bytes(), 1024U + 1280U);
}

TEST_F(Scratch, RefusesClaimsOfAnySizeOnceClosedOrAboveItsLargestBlock) {
  static_cast<void>(pool.claim(one, 1000));
  expect_claim_fails<usage_error>(scratch_pool::bytes_max + 1, one,
                                  {"`bytes` is 1099511627777", "scratch_pool::bytes_max"});
  EXPECT_TRUE(pool.close_for(generous).empty());
  expect_claim_fails<usage_error>(1000, one, {"\"scratch of 1024 bytes\" is closed", "claim befo"});
  expect_claim_fails<usage_error>(1025, one, {"\"scratch of 1280 bytes\" is closed", "claim befo"});
  EXPECT_TRUE(wait_until([&] { return pool.bytes() == 0; }));
}

TEST_F(Scratch, NamesTheCallIfThePoolIsExhaustedOrTheStreamCannotBeClaimedOn) {
  {
    auto const held = pool.claim(one, 256);
    expect_claim_fails<pool_exhausted>(1, one, {"all 1 slots of \"scratch of 256 bytes\" are out"});
  }
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    invalidate(one);
    expect_claim_fails<usage_error>(256, one, {"`stream`"});
  }
  owned_stream const blocking = make_stream(cudaStreamDefault);
  {
    capture captured{blocking, cudaStreamCaptureModeRelaxed};
    expect_claim_fails<usage_error>(256, cudaStreamLegacy, {"`stream`"});
    EXPECT_TRUE(captured.is_active());
  }
}

}  // namespace
}  // namespace escrow::test
