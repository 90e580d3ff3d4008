// SPDX-License-Identifier: Apache-2.0
// With graphs of a sharing group that is parked.
#pragma once

#include "arena_world.hpp"

namespace escrow::test {

class park_world : public arena_world {
 protected:
  scratch_pool& scratch() {
    if (!pool) pool.emplace(in_group());
    return *pool;
  }
  [[nodiscard]] graph captured_use(std::size_t mebibytes_used, int value = 1) {
    return captured(
        [&](cudaStream_t on) { use_scratch(scratch(), on, value, mebibytes_used * mebibyte); });
  }
  /// park() says so, and has changed nothing.
  void expect_no_park(std::vector<std::string> parts) {
    std::size_t const before = mebibytes();
    parts.insert(parts.end(), {"sharing_group::park: ", "park_world.hpp"});
    expect_error<usage_error>([&] { return group->park(); }, parts);
    EXPECT_FALSE(group->stats().is_parked);
    EXPECT_EQ(mebibytes(), before);
    group->run(three, [&] { use_scratch(scratch(), three, 9); });  // it claims and launches on
    sync(three);
  }
  void park_and_back() {
    EXPECT_NE(group->park(), 0U);
    EXPECT_NE(group->unpark(), 0U);
  }
  /// What the device lacks.
  static std::size_t device_mebibytes() {
    std::size_t left = 0;
    std::size_t all = 0;
    must(cudaMemGetInfo(&left, &all));
    return (all - left) / mebibyte;
  }
  void TearDown() override {
    pool.reset();
    arena_world::TearDown();
  }
  std::optional<scratch_pool> pool;
};

}  // namespace escrow::test
