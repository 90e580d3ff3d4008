// SPDX-License-Identifier: Apache-2.0
// With a sharing group, whose pools claim from its arena in captures.
#pragma once

#include "pool_world.hpp"

namespace escrow::test {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class arena_world : public world {
 protected:
  [[nodiscard]] pool_options in_group(std::size_t slots_max = 64) {
    return with(options(slots_max), &pool_options::group, group);
  }
  [[nodiscard]] std::size_t mebibytes() const { return group->stats().bytes / mebibyte; }
  /// A graph with claims of so many MiB, all at a time.
  [[nodiscard]] graph captured_claims(scratch_pool& of, std::vector<std::size_t> const& sizes) {
    return captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> all;
      for (std::size_t const each : sizes) all.push_back(of.claim(on, each * mebibyte));
      must(test::launch_tiny(on));
    });
  }
  static constexpr std::size_t values = 64;
  [[nodiscard]] static int* data_of(lease<device_block> const& held) {
    return static_cast<int*>(held->data());
  }
  void fill(lease<device_block> const& held, cudaStream_t on, int value) {
    must(launch_fill(on, data_of(held), values, value));
  }
  void check(lease<device_block> const& held, cudaStream_t on, int value) {
    must(launch_check(on, data_of(held), values, value, mismatches.data()));
  }
  /// Claims, fills, checks and releases.
  void* use_scratch(scratch_pool& of, cudaStream_t on, int value, std::size_t bytes = 4096) {
    auto const held = of.claim(on, bytes);
    fill(held, on, value);
    check(held, on, value);
    return held->data();
  }
  static bool overlap(lease<device_block> const& one, lease<device_block> const& other) {
    auto const begin = [](auto const& its) {
      return reinterpret_cast<std::uintptr_t>(its->data());
    };
    return begin(one) < begin(other) + other->size() && begin(other) < begin(one) + one->size();
  }
  void TearDown() override {
    group.reset();
    world::TearDown();
  }

  std::optional<sharing_group> group{std::in_place, sharing_options{.label = "batches"}};
};

/// With a pool of that group.
class group_scratch_world : public arena_world {
 protected:
  scratch_pool& scratch() {
    if (!pool) pool.emplace(in_group());
    return *pool;
  }
  void TearDown() override {
    pool.reset();
    arena_world::TearDown();
  }
  std::optional<scratch_pool> pool;
};

}  // namespace escrow::test
