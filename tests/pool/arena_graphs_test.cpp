// SPDX-License-Identifier: Apache-2.0
// Graphs that share an arena: captured at once, resumed, copied, embedded, hoisted, dropped; and
// random ones, whose values stay.
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <random>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

using ArenaGraphs = arena_world;

TEST_F(ArenaGraphs, CapturesAtOnceAvoidEachOther) {
  scratch_pool pool(in_group());
  owned_graph graphs[2];
  {
    test::capture first{one, cudaStreamCaptureModeRelaxed};
    test::capture second{two, cudaStreamCaptureModeRelaxed};
    std::vector<lease<device_block>> held;
    for (int i = 0; i < 8; ++i) {
      for (cudaStream_t const on : {one.get(), two.get()}) {
        held.push_back(pool.claim(on, 4096));
        for (std::size_t k = 0; k + 1 < held.size(); ++k) {
          EXPECT_FALSE(overlap(held[k], held.back()));
        }
      }
    }
    held.clear();
    use_scratch(pool, one, 1);
    use_scratch(pool, two, 2);
    must(first.end());
    must(second.end());
    graphs[0] = std::move(first.graph());
    graphs[1] = std::move(second.graph());
  }
}

TEST_F(ArenaGraphs, ResumedCapturesUseWhatTheyComeAfter) {
  scratch_pool pool(in_group());
  graph const made = captured([&](cudaStream_t on) { use_scratch(pool, on, 1, mebibyte); });
  std::vector<cudaGraphNode_t> const last = nodes_of(made.get());
  capture_into(
      made.get(), [&](cudaStream_t on) { use_scratch(pool, on, 2, 2 * mebibyte); }, &last.back(),
      1);
  EXPECT_EQ(mebibytes(), 2U);
  // Not behind anything.
  capture_into(made.get(), [&](cudaStream_t on) { use_scratch(pool, on, 3, 2 * mebibyte); });
  EXPECT_EQ(mebibytes(), 4U);
}

TEST_F(ArenaGraphs, WhatIsCapturedIntoACloneIsApartAndBehindAChildGraphIsNot) {
  scratch_pool pool(in_group());
  graph const source = captured([&](cudaStream_t on) { use_scratch(pool, on, 1, mebibyte); });
  graph const copy = source.clone();
  capture_into(copy.get(), [&](cudaStream_t on) {
    for (int value = 2; value < 5; ++value) use_scratch(pool, on, value, mebibyte);
  });
  EXPECT_EQ(mebibytes(), 2U);
  graph parent;
  cudaGraphNode_t const child = parent.add_child(source);
  capture_into(
      parent.get(), [&](cudaStream_t on) { use_scratch(pool, on, 3, mebibyte); }, &child, 1);
  EXPECT_EQ(mebibytes(), 2U) << "the parts are a line";
  run(parent);
  capture_into(parent.get(), [&](cudaStream_t on) { use_scratch(pool, on, 3, mebibyte); });
  expect_error<usage_error>([&] { graph_exec const branches(parent); }, {"batches"});
}

TEST_F(ArenaGraphs, AHoistedGraphKeepsItsPlaces) {
  scratch_pool pool(in_group());
  std::optional<graph> source(captured([&](cudaStream_t on) { use_scratch(pool, on, 1); }));
  std::optional<hoisted> held(hoist(*source));
  owned_exec const exec = instantiate(source->get());
  graph const other = captured([&](cudaStream_t on) { use_scratch(pool, on, 2); });
  graph_exec others(other);
  for (int i = 0; i < 20; ++i) {
    held->launch(two, [&] { must(cudaGraphLaunch(exec, two)); });
    others.launch(three);
  }
  sync_all();
  held->release();
}

TEST_F(ArenaGraphs, AChildGraphThatOverwritesALeaseIsRefused) {
  scratch_pool pool(in_group());
  graph const child = captured([&](cudaStream_t on) { use_scratch(pool, on, 1, 8192); });
  std::optional<lease<device_block>> held;
  graph parent;
  capture_into(parent.get(), [&](cudaStream_t on) {  // plain: nobody is told that the lease lives
    held.emplace(pool.claim(on, 256));
    fill(*held, on, 2);
  });
  expect_error<usage_error>([&] { parent.add_child(child); },
                            {"graph::add_child", "overwrites what a lease"});
  held.reset();
  parent.add_child(child);
}

TEST_F(ArenaGraphs, ADroppedCaptureGivesItsPlacesBack) {
  scratch_pool pool(in_group());
  for (int i = 0; i < 3; ++i) {
    {
      test::capture dropped{one, cudaStreamCaptureModeRelaxed};
      use_scratch(pool, one, 1, mebibyte);
      must(dropped.end());
    }
    EXPECT_TRUE(drained());
    auto held = std::optional<graph>();
    EXPECT_THROW(held.emplace(captured([&](cudaStream_t on) {
      auto const kept = pool.claim(on, mebibyte);
      throw std::runtime_error("by the caller");
    })),
                 std::runtime_error);
    EXPECT_TRUE(drained());
  }
  EXPECT_EQ(mebibytes(), 2U);
  pool.trim();
  EXPECT_EQ(mebibytes(), 0U);
}

class RandomArenaGraphs : public ArenaGraphs {
 protected:
  RandomArenaGraphs() {
    for (int i = 0; i < 4; ++i) streams_.push_back(make_stream());
  }

  /// Execs of random graphs over random streams: each checks what it has written.
  std::vector<graph_exec> random_execs(scratch_pool& pool, std::size_t count) {
    std::vector<graph_exec> execs;
    while (execs.size() < count)
      execs.emplace_back(captured([&](cudaStream_t on) { capture_one(pool, on); }));
    return execs;
  }
  void launch_one(std::vector<graph_exec>& of) {
    of[next() % of.size()].launch(next() % 2 == 0 ? two : three);
  }

  std::minstd_rand next{1};

 private:
  struct use {
    lease<device_block> held;
    std::size_t on;
    int value;
  };

  void capture_one(scratch_pool& pool, cudaStream_t on) {
    for (auto const& each : streams_) order(on, each);
    std::vector<use> uses;
    for (int step = 0; step < 60; ++step) {
      std::size_t const at = next() % streams_.size();
      switch (next() % 4) {
        case 0:
        case 1: {
          std::size_t const bytes = values * sizeof(int) * (1 + next() % 20);
          uses.push_back({pool.claim(streams_[at].get(), bytes), at, ++value_});
          fill(uses.back().held, streams_[at], value_);
          break;
        }
        case 2:
          if (!uses.empty()) end(uses, next() % uses.size());
          break;
        default:
          order(streams_[at], streams_[next() % streams_.size()]);
          break;
      }
    }
    while (!uses.empty()) end(uses, 0);
    for (auto const& each : streams_) order(each, on);
  }
  void end(std::vector<use>& uses, std::size_t which) {
    use& ended = uses[which];
    check(ended.held, streams_[ended.on], ended.value);
    ended.held.release();
    uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::vector<owned_stream> streams_;
  int value_ = 0;
};

TEST_F(RandomArenaGraphs, KeepTheirValues) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    group.emplace();
    scratch_pool pool(in_group());
    next.seed(seed);
    std::vector<graph_exec> execs = random_execs(pool, 5);
    for (int i = 0; i < 15; ++i) launch_one(execs);
    sync_all();
    ASSERT_EQ(mismatches.load(), 0) << "seed " << seed;
  }
}

TEST_F(RandomArenaGraphs, KeepTheirValuesAroundManyParks) {
#ifdef ESCROW_TEST_RUNTIME_SIM
  constexpr int parks = 2'000;
#else
  constexpr int parks = 10'000;
#endif
  scratch_pool pool(in_group());
  std::vector<graph_exec> execs = random_execs(pool, 8);
  for (int i = 0; i < parks; ++i) {
    for (std::size_t launches = next() % 4; launches != 0; --launches) launch_one(execs);
    EXPECT_NE(group->park({.keep_contents = next() % 64 == 0}), 0U);
    group->unpark();
    if (next() % 512 == 0) execs[next() % execs.size()] = std::move(random_execs(pool, 1).front());
  }
  sync_all();
  EXPECT_EQ(mismatches.load(), 0);
}

}  // namespace
}  // namespace escrow::test
