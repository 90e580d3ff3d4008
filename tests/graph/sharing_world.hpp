// What tests of sharing groups add to those of pools.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {

class sharing_world : public pool_world {
 protected:
  [[nodiscard]] pool_options in_group(std::size_t slots_max = 8) {
    pool_options result = options(slots_max);
    result.group = group;
    return result;
  }
  [[nodiscard]] pool_options in_filled_group() {
    pool_options result = in_group();
    result.group = filled;
    return result;
  }
  [[nodiscard]] graph captured_use_of(block_pool& of, int value = 1) {
    return captured([&](cudaStream_t on) { use(of, on, value); });
  }
  // A graph that uses so much scratch after another.
  [[nodiscard]] graph captured_claims(scratch_pool& of, std::vector<std::size_t> const& bytes) {
    return captured([&](cudaStream_t on) {
      for (std::size_t const each : bytes) of.claim(on, each).release();
    });
  }
  // The same, all at a time.
  [[nodiscard]] graph captured_claims_together(scratch_pool& of,
                                               std::vector<std::size_t> const& bytes) {
    return captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> held;
      for (std::size_t const each : bytes) held.push_back(of.claim(on, each));
    });
  }
  // One launch is in flight, held back by the flag; what `two` has behind it does not run yet.
  void expect_behind_flag(cudaStream_t stream) {
    ASSERT_TRUE(have_started(1));
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1 || is_idle(stream); }))
        << "the launches overlap";
    flag.raise();
    sync_all();
  }

  void TearDown() override {
    pool.reset();
    world::TearDown();
  }

  sharing_group group{{.label = "batches"}};
  sharing_group filled{{.fill = 0xAB}};
  std::optional<block_pool> pool{make_pool(in_group())};
};

}  // namespace escrow::test
