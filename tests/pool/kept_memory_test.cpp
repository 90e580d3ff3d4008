// SPDX-License-Identifier: Apache-2.0
// A scratch_pool keeps no more than its use needs.
#include <escrow/pool.hpp>
#include <random>

#include "world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class KeptMemory : public world {
 protected:
  /// Claims, uses and releases one buffer, and waits for the work.
  void use(scratch_pool& pool, std::size_t mebibytes, bool waits = true) {
    {
      auto const claimed = pool.claim(two, mebibytes * mebibyte);
      must(cudaMemsetAsync(claimed->data(), 1, 64, two));
    }
    if (waits) sync(two);
  }
  [[nodiscard]] static std::size_t kept(scratch_pool const& pool) {
    return pool.stats().bytes / mebibyte;
  }
  /// Once the worker has freed what it was to free after its work.
  [[nodiscard]] bool keeps_at_most(scratch_pool const& pool, std::size_t mebibytes) {
    return wait_until([&] { return kept(pool) <= mebibytes; });
  }
};

TEST_F(KeptMemory, OfBuffersOfGrowingSizesIsLittleMoreThanTheLargest) {
  scratch_pool pool(options(8));
  for (std::size_t size = 1; size <= 128; ++size) use(pool, size);
  EXPECT_TRUE(keeps_at_most(pool, 160)) << kept(pool);
  for (std::size_t size = 128; size != 0; --size) use(pool, size);
  EXPECT_TRUE(keeps_at_most(pool, 160)) << kept(pool);
}

TEST_F(KeptMemory, IsAllWithAnInfiniteFactor) {
  scratch_pool pool(options(8), {.keep_factor = std::numeric_limits<double>::infinity()});
  for (std::size_t size = 1; size <= 64; ++size) use(pool, size);
  EXPECT_GE(kept(pool), 1000U);
}

TEST_F(KeptMemory, IsFreedAfterItsWorkIfTheHostRunsAhead) {
  scratch_pool pool(options(8));
  hold_up(two);
  for (std::size_t size = 1; size <= 64; ++size) use(pool, size, false);
  flag.raise();
  sync(two);
  use(pool, 65);
  EXPECT_TRUE(keeps_at_most(pool, 82)) << kept(pool);
}

TEST_F(KeptMemory, IsBoundedByWhatWasAskedForNotByLargerBlocksThatServe) {
  scratch_pool pool(options(8));
  std::size_t peak = 0;
  for (std::size_t size = 4; size <= 64; ++size) {
    std::vector<lease<device_block>> all;
    peak = 0;
    for (std::size_t const each : std::vector<std::size_t>{size, size, size / 2, size / 4, 1}) {
      all.push_back(pool.claim(two, each * mebibyte));
      peak += each;
    }
    all.clear();
    sync(two);
  }
  EXPECT_TRUE(keeps_at_most(pool, peak * 5 / 4)) << kept(pool) << " of " << peak;
}

TEST_F(KeptMemory, OfSizesThatAlternateIsMadeOnce) {
  for (auto const& sizes : {std::vector<std::size_t>{100, 90}, std::vector<std::size_t>{100, 20},
                            std::vector<std::size_t>{100, 45, 60, 33},
                            std::vector<std::size_t>{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}}) {
    scratch_pool pool(options(8));
    for (int i = 0; i < 2; ++i) {
      for (std::size_t const each : sizes) use(pool, each);
    }
    auto const grown = pool.stats().grown;
    for (int i = 0; i < 10; ++i) {
      for (std::size_t const each : sizes) use(pool, each);
    }
    EXPECT_EQ(pool.stats().grown, grown);
    EXPECT_LE(kept(pool), 125U);
  }
}

TEST_F(KeptMemory, OfSizesAtRandomIsSeldomMadeAgain) {
  constexpr std::size_t alive = 64, claims = 8000;
  scratch_pool pool(options(alive));
  std::minstd_rand next(1);
  std::vector<lease<device_block>> all;
  while (all.size() < alive) all.push_back(pool.claim(two, 1));
  auto const claim_one = [&] {
    auto& each = all[next() % alive];
    each.release();
    std::size_t const bytes = std::size_t{256} << next() % 14;  // up to 2 MiB
    each = pool.claim(two, bytes + bytes * (next() % 4) / 4);
  };
  for (std::size_t i = 0; i < claims; ++i) claim_one();
  auto const grown = pool.stats().grown;
  for (std::size_t i = 0; i < claims; ++i) claim_one();
  EXPECT_LE(pool.stats().grown - grown, claims / 100);
  EXPECT_LE(kept(pool), 150U);  // 300 without a bound
}

TEST_F(KeptMemory, ALargerBlockOfTheStreamServesWhileItsWorkRuns) {
  scratch_pool pool(options(8));
  use(pool, 100);
  hold_up(two);
  use(pool, 100, false);
  auto const grown = pool.stats().grown;
  auto const claimed = pool.claim(two, 60 * mebibyte);
  EXPECT_EQ(claimed->size(), 100 * mebibyte);
  EXPECT_EQ(pool.stats().grown, grown);
  flag.raise();
  sync(two);
}

TEST_F(KeptMemory, IsAllThatWasInUseAtOnce) {
  scratch_pool pool(options(8));
  for (int i = 0; i < 3; ++i) {
    std::vector<lease<device_block>> all;
    for (std::size_t const size : std::vector<std::size_t>{10, 20, 40, 80})
      all.push_back(pool.claim(two, size * mebibyte));
  }
  EXPECT_EQ(pool.stats().grown, 4U);
  EXPECT_EQ(kept(pool), 150U);
}

TEST_F(KeptMemory, IsAllThatWasClaimedIfTheFactorIsZeroOrFreeingIsNotCheap) {
  for (scratch_policy const& policy :
       {scratch_policy{.keep_factor = 0}, scratch_policy{.source = memory_source::cuda_malloc()}}) {
    scratch_pool pool(options(8), policy);
    for (std::size_t const size : std::vector<std::size_t>{10, 30, 50}) use(pool, size);
    EXPECT_EQ(kept(pool), 90U);
  }
}

TEST_F(KeptMemory, OfCapturesIsWhatTheirGraphsHold) {
  scratch_pool pool(options(8));
  use(pool, 100);
  owned_graph const graph = captured_plainly([&](cudaStream_t on) {
    for (std::size_t const size : std::vector<std::size_t>{90, 50})
      static_cast<void>(pool.claim(on, size * mebibyte));
  });
  EXPECT_EQ(pool.stats().bytes_in_graphs, 140 * mebibyte);
  EXPECT_TRUE(keeps_at_most(pool, 175)) << kept(pool);
}

}  // namespace
}  // namespace escrow::test
