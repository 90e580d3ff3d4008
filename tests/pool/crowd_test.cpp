// SPDX-License-Identifier: Apache-2.0
// Threads that hold one block each, in a pool with room for all of them: each claim gets one.
#include <random>

#include "counted_memory.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t kib = 1024;

struct mix {
  bool is_limited_in_bytes = false;
  bool captures = false;
  bool has_claimers = false;
  bool trims = false;
};

class Crowd : public pool_world, public testing::WithParamInterface<mix> {
 protected:
  static constexpr std::size_t threads = 3;
  static constexpr std::size_t largest = 4 * kib;

  [[nodiscard]] scratch_pool make_crowded() {
    mix const& of = GetParam();
    // Claimers keep as many again, at most half of each size.
    std::size_t const slots = of.has_claimers ? 2 * threads : threads;
    pool_options chosen = with(options(slots), &pool_options::capture_wait_max, 4 * generous);
    scratch_policy policy;
    if (of.is_limited_in_bytes) policy.bytes_max = slots * largest;
    if (of.is_limited_in_bytes && of.has_claimers) policy.bytes_max += threads * (largest + kib);
    policy.source = memory->source();
    return scratch_pool(chosen, policy);
  }
  void claim_at_random(scratch_pool& pool, std::size_t number, std::atomic<bool> const& is_over) {
    mix const& of = GetParam();
    std::mt19937 random(static_cast<std::uint32_t>(number + 1));
    owned_stream const streams[] = {make_stream(), make_stream()};
    std::optional<scratch_claimer> local;
    if (of.has_claimers) local.emplace(pool.on(streams[0]));
    try {
      while (!is_over.load()) {
        std::size_t const bytes = std::size_t{256} << (2 * (random() % 3));
        cudaStream_t const on = streams[random() % 2];
        cudaStream_t const other = streams[random() % 2];
        if (of.captures && random() % 2 == 0) {
          capture captured{on, cudaStreamCaptureModeThreadLocal};
          auto const used = pool.claim(on, bytes);
          must(cudaMemsetAsync(used->data(), 1, bytes, on));
          must(captured.end());
        } else if (local && random() % 2 == 0) {
          auto const used = local->claim(bytes);
          must(cudaMemsetAsync(used->data(), 1, bytes, streams[0]));
        } else {
          auto used = pool.claim(on, bytes);
          must(cudaMemsetAsync(used->data(), 1, bytes, on));
          if (random() % 2 == 0) used.record_stream(other);
          if (random() % 4 == 0) sync(on);
          if (random() % 2 == 0) {
            order(on, other);
            used.release(other);
          }
        }
        claims.fetch_add(1, std::memory_order_relaxed);
      }
    } catch (std::exception const& error) {
      ADD_FAILURE() << error.what();
    }
    for (auto const& each : streams) sync(each);
  }

  std::shared_ptr<counted_memory> const memory = std::make_shared<counted_memory>();
  std::atomic<int> claims{0};
};

TEST_P(Crowd, IsNeverRefused) {
  scratch_pool pool = make_crowded();
  std::atomic<bool> is_over{false};
  {
    std::vector<std::jthread> all;
    for (std::size_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] { claim_at_random(pool, i, is_over); });
    }
    if (GetParam().trims) {
      all.emplace_back([&] {
        while (!is_over.load()) {
          static_cast<void>(pool.trim());
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
      });
    }
    static_cast<void>(wait_until([&] { return HasFailure() || claims.load() > 1'000'000; },
                                 std::chrono::milliseconds(1'500)));
    is_over.store(true);
  }
  EXPECT_GT(claims.load(), 100);
  end(pool);
  EXPECT_EQ(memory->used.load(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Of, Crowd,
                         testing::Values(mix{}, mix{.is_limited_in_bytes = true},
                                         mix{.captures = true},
                                         mix{.is_limited_in_bytes = true, .captures = true},
                                         mix{.is_limited_in_bytes = true, .trims = true},
                                         mix{.is_limited_in_bytes = true,
                                             .captures = true,
                                             .has_claimers = true,
                                             .trims = true}));

}  // namespace
}  // namespace escrow::test
