// SPDX-License-Identifier: Apache-2.0
// A sharing group's arena: its graphs together need what the largest needs, in any order of their
// captures, and no graph writes what a lease that lives covers, nor what another branch uses.
#include <map>
#include <random>
#include <set>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

using Arena = arena_world;

TEST_F(Arena, NeedsWhatTheLargestGraphNeedsInAnyOrderOfCaptures) {
  for (bool const is_falling : {false, true}) {
    group.emplace();
    scratch_pool pool(in_group());
    std::vector<graph> all;
    for (std::size_t i = 1; i <= 32; ++i) {
      std::size_t const size = is_falling ? 33 - i : i;
      all.push_back(captured_claims(pool, {size, size / 2 + 1, 1}));
    }
    EXPECT_EQ(mebibytes(), 32U + 17 + 1 + mebibytes() % 2);
    for (graph const& each : all) run(each);
  }
}

TEST_F(Arena, ScalarsBesideLargeBlocksAddNoLargeBlocks) {
  scratch_pool pool(in_group());
  std::vector<graph> graphs;
  for (int each = 0; each < 2; ++each) {
    graphs.push_back(captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> scalars;
      for (int i = 0; i < 8; ++i) {
        static_cast<void>(pool.claim(on, 64 * mebibyte));
        scalars.push_back(pool.claim(on, 4));
      }
    }));
  }
  EXPECT_LE(mebibytes(), 66U);
}

TEST_F(Arena, JoinsAndSplitsWhatTheCaptureHasReleased) {
  scratch_pool pool(in_group());
  graph const made = captured([&](cudaStream_t on) {
    for (int i = 0; i < 3; ++i) {
      for (std::size_t const parts : {4U, 1U, 2U}) {
        std::vector<lease<device_block>> all;
        for (std::size_t part = 0; part < parts; ++part) {
          all.push_back(pool.claim(on, 8 * mebibyte / parts));
          fill(all.back(), on, static_cast<int>(part));
        }
        for (std::size_t part = 0; part < parts; ++part) {
          check(all[part], on, static_cast<int>(part));
        }
      }
    }
  });
  EXPECT_EQ(mebibytes(), 8U);
  run(made);
}

TEST_F(Arena, FillsTheSmallestGapThatSuffices) {
  scratch_pool pool(in_group());
  graph const made = captured([&](cudaStream_t on) {
    std::vector<lease<device_block>> all;
    for (std::size_t const each : std::vector<std::size_t>{1, 4, 1, 2, 1}) {
      all.push_back(pool.claim(on, each * mebibyte));
    }
    void* const large = all[1]->data();
    void* const small = all[3]->data();
    all[1].release();
    all[3].release();
    auto const first = pool.claim(on, 2 * mebibyte);
    EXPECT_EQ(first->data(), small);
    EXPECT_EQ(pool.claim(on, 3 * mebibyte)->data(), large);
  });
  EXPECT_EQ(mebibytes(), 10U) << "9, in steps of 2";
}

TEST_F(Arena, GivesTheExactSizeAndSharesItAmongPools) {
  scratch_pool first(in_group());
  scratch_pool second(in_group());
  std::vector<graph> graphs;
  for (scratch_pool* const each : {&first, &second}) {
    graphs.push_back(captured([&](cudaStream_t on) {
      auto const held = each->claim(on, 9 * mebibyte + 100);
      EXPECT_EQ(held->size(), 9 * mebibyte + 256);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held->data()) % 256, 0U);
    }));
  }
  EXPECT_EQ(mebibytes(), 10U);
  EXPECT_EQ(first.bytes() + second.bytes(), 0U);
}

TEST_F(Arena, EagerClaimsNeverComeFromIt) {
  scratch_pool pool(in_group());
  std::optional<graph> made(captured_claims(pool, {4}));
  auto const eager = pool.claim(two, 4 * mebibyte);
  EXPECT_EQ(pool.bytes(), 4 * mebibyte);
  made.reset();
  EXPECT_TRUE(drained());
  auto const again = pool.claim(two, 4 * mebibyte);
  EXPECT_EQ(pool.bytes(), 8 * mebibyte);
}

TEST_F(Arena, NoCaptureGetsWhatALivingLeaseCovers) {
  errors_expected = true;  // the output outlives its capture
  scratch_pool pool(in_group());
  std::optional<lease<device_block>> output;
  graph const first = captured([&](cudaStream_t on) {
    output.emplace(pool.claim(on, 4096));
    fill(*output, on, 7);
  });
  graph const second = captured([&](cudaStream_t on) {
    auto const held = pool.claim(on, 8192);
    EXPECT_FALSE(overlap(held, *output));
    fill(held, on, 9);
  });
  graph_exec one_exec(first), other(second);
  one_exec.launch(two);
  other.launch(two);
  check(*output, two, 7);
  sync(two);
  output.reset();
}

TEST_F(Arena, BranchesAreApartUntilTheyJoin) {
  scratch_pool pool(in_group());
  constexpr std::size_t count = 16;
  std::vector<owned_stream> branches;
  for (std::size_t i = 0; i < count; ++i) branches.push_back(make_stream());
  graph const made = captured([&](cudaStream_t on) {
    use_scratch(pool, on, 1, count * mebibyte);
    for (int round = 0; round < 3; ++round) {
      for (auto const& each : branches) order(on, each);
      std::set<void*> places;
      for (int value = 0; value < 4; ++value) {
        for (auto const& each : branches) {
          places.insert(use_scratch(pool, each, 100 * round + value + 10, mebibyte));
        }
        EXPECT_EQ(places.size(), count) << "each branch has its own, and that again";
      }
      for (auto const& each : branches) order(each, on);
      use_scratch(pool, on, 5, count * mebibyte);
    }
  });
  EXPECT_EQ(mebibytes(), count);
  graph_exec exec(made);
  for (int i = 0; i < 20; ++i) exec.launch(two);
  sync(two);
}

TEST_F(Arena, AReleaseOnAnotherBranchComesAfterTheUsersBefore) {
  scratch_pool pool(in_group());
  graph const made = captured([&](cudaStream_t on) {
    order(on, two);
    {
      auto const held = pool.claim(on, 4096);
      fill(held, on, 1);
      must(launch_sleep(on, 2000));
      check(held, on, 1);
    }
    auto unused = pool.claim(on, 4096);  // where that was
    order(on, three);
    unused.release(two);  // which does not come after it
    use_scratch(pool, two, 2);
    order(two, on);
    order(three, on);
  });
  graph_exec exec(made);
  for (int i = 0; i < 5; ++i) exec.launch(two);
  sync(two);
}

TEST_F(Arena, TrimGivesBackWhatNoGraphReaches) {
  scratch_pool pool(in_group());
  graph const small = captured_claims(pool, {4});
  std::optional<graph> large(captured_claims(pool, {32}));
  graph_exec exec(small);
  pool.trim();
  EXPECT_EQ(mebibytes(), 32U);
  large.reset();
  EXPECT_TRUE(drained());
  pool.trim();
  EXPECT_EQ(mebibytes(), 4U);
  run(exec);
  large.emplace(captured_claims(pool, {32}));
  EXPECT_EQ(mebibytes(), 32U);
  run(*large);
}

TEST_F(Arena, LivesAsLongAsItsGraphs) {
  std::optional<scratch_pool> pool(in_group());
  std::optional<graph_exec> exec;
  {
    graph const made = captured([&](cudaStream_t on) { use_scratch(*pool, on, 3); });
    exec.emplace(made);
  }
  pool.reset();
  group.reset();
  EXPECT_TRUE(drains_soon() || true);
  run(*exec);
}

TEST_F(Arena, TwoLeasesThatLiveNeverHaveOneAddress) {
  stream_allocator allocator(in_group());
  std::minstd_rand next(7);
  std::vector<graph> graphs;
  for (int round = 0; round < 20; ++round) {
    graphs.push_back(captured([&](cudaStream_t on) {
      std::map<char*, std::size_t> living;
      for (int i = 0; i < 60; ++i) {
        if (next() % 3 != 0 || living.empty()) {
          std::size_t const bytes = 1 + next() % 100'000;
          auto* const at = static_cast<char*>(allocator.allocate(on, bytes));
          for (auto const& [begin, size] : living) {
            EXPECT_FALSE(at < begin + size && begin < at + bytes);
          }
          living.emplace(at, bytes);
        } else {
          auto const each = std::next(living.begin(), static_cast<long>(next() % living.size()));
          allocator.deallocate(on, each->first);
          living.erase(each);
        }
      }
      for (auto const& each : living) allocator.deallocate(on, each.first);
    }));
  }
}

#ifdef ESCROW_TEST_RUNTIME_SIM

TEST_F(Arena, WithoutMemoryManagementGraphsShareBlocks) {
  sim::set_virtual_memory(false);
  scratch_pool pool(in_group());
  graph const first = captured_claims(pool, {4});
  graph const second = captured_claims(pool, {4});
  EXPECT_EQ(pool.bytes(), 4 * mebibyte);
  EXPECT_EQ(mebibytes(), 4U);
  sim::set_virtual_memory(true);
}

TEST_F(Arena, OutOfMemoryIsAnErrorAndLosesNothing) {
  scratch_pool pool(in_group());
  graph const made = captured_claims(pool, {4});
  sim::set_device_memory(sim::alive().device_bytes + 16 * mebibyte);
  expect_error<cuda_error>([&] { static_cast<void>(captured_claims(pool, {64})); },
                           {"scratch_pool::claim", "cudaErrorMemoryAllocation"});
  run(made);
  run(captured_claims(pool, {8}));
}

#endif

}  // namespace
}  // namespace escrow::test
