// SPDX-License-Identifier: Apache-2.0
// Random programs on the stepped simulator whose claims lie in the arena of a sharing group. Memory
// that two claims have at a time is seen by its values.
//   ESCROW_SEED=n       the first seed
//   ESCROW_PROGRAMS=n   how many
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "arena_program.hpp"
#include "deep.hpp"

namespace escrow::test {
namespace {

std::uint64_t number_from(char const* variable, std::uint64_t otherwise) {
  char const* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string found(arena_program const& failing, std::string const& failure, arena_fault planted) {
  auto const fails = [&](arena_program const& less) {
    arena_counts ignored;
    return run_arena_program(less, ignored, planted) == failure;
  };
  return failure + "\n" + to_text(shrink(failing, fails));
}

TEST(RandomArenas, LetNoTwoClaimsHaveOneMemoryAtATime) {
  std::uint64_t const usually = built_with_tsan ? 300 : built_with_asan ? 1'000 : 5'000;
  std::uint64_t const count = number_from("ESCROW_PROGRAMS", is_deep() ? 200'000 : usually);
  std::uint64_t const first = number_from("ESCROW_SEED", 1);
  arena_counts counts;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(seed);
    arena_program const drawn = draw_arena_program(seed);
    if (std::getenv("ESCROW_SEED") != nullptr && count == 1) std::puts(to_text(drawn).c_str());
    std::string const failure = run_arena_program(drawn, counts);
    ASSERT_EQ(failure, "") << found(drawn, failure, arena_fault::none);
  }
  for (std::size_t i = 0; i < arena_act_count; ++i) {
    std::string_view const name = name_of(static_cast<arena_act>(i));
    std::printf("%-16s %8llu done %8llu refused\n", std::string(name).c_str(),
                static_cast<unsigned long long>(counts.done[i]),
                static_cast<unsigned long long>(counts.refused[i]));
    if (count >= usually) {
      EXPECT_GT(counts.done[i], 0U) << name;
    }
  }
  std::printf("%llu calls failed, %llu checks, %llu launches refused for parking\n",
              static_cast<unsigned long long>(counts.failed),
              static_cast<unsigned long long>(counts.checks),
              static_cast<unsigned long long>(counts.parked_launches));
}

TEST(RandomArenas, FindPlantedFaults) {
  for (auto const planted : {arena_fault::branch_is_not_ordered, arena_fault::output_is_scratch}) {
    std::string failure;
    arena_counts counts;
    auto const is_found = [&] { return failure.find("overwritten") != std::string::npos; };
    for (std::uint64_t seed = 1; seed < 2'000 && !is_found(); ++seed)
      failure = run_arena_program(draw_arena_program(seed), counts, planted);
    EXPECT_NE(failure.find("memory was overwritten"), std::string::npos) << failure;
  }
}

}  // namespace
}  // namespace escrow::test
