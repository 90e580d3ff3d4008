// Planted faults are found and shrunk, and what was found once stays mended.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "generate.hpp"
#include "run.hpp"

namespace escrow::test {
namespace {

/// The program of the first seed that finds the fault, shrunk, is small and fails as expected.
program expect_found(planted bug, std::string const& failure, std::size_t operations_max,
                     std::uint64_t stride = 1) {
  constexpr std::uint64_t seeds_max = 20'000;
  for (std::uint64_t seed = stride; seed <= seeds_max; seed += stride) {
    verdict const seen = run(generate(seed), bug);
    if (seen.failure.find(failure) == std::string::npos) continue;
    program const small = shrink(seen.exact, [&](program const& tried) {
      return run(tried, bug).failure.find(failure) != std::string::npos;
    });
    EXPECT_LE(small.operations.size(), operations_max) << to_text(small);
    EXPECT_TRUE(run(small).failure.empty()) << "fails without the fault, too";
    std::printf("found with seed %llu, %zu operations left\n",
                static_cast<unsigned long long>(seed), small.operations.size());
    return small;
  }
  ADD_FAILURE() << "not found by seeds up to " << seeds_max;
  return {};
}

TEST(PlantedFault, OfAnOwnerThatEndsEarlyIsFound) {
  static_cast<void>(expect_found(planted::owner_ends_early, "was destroyed, but", 2));
}

TEST(PlantedFault, OfAUseThatIsNotOrderedIsFound) {
  static_cast<void>(expect_found(planted::use_is_not_ordered, "slot", 12));
}

TEST(PlantedFault, OfAModelThatForgetsExecsIsFound) {
  static_cast<void>(expect_found(planted::model_forgets_execs, "nothing keeps these", 8));
}

TEST(PlantedFault, ThatOnlyShowsInsideAnOperationIsFound) {
  constexpr std::uint64_t stride = 3;  // operations run together in every third program
  program found = expect_found(planted::release_noted_late, "was handed out twice", 6, stride);
  for (operation& each : found.operations) each.joins = false;
  EXPECT_TRUE(run(found, planted::release_noted_late).failure.empty())
      << "fails when each operation is alone, too:\n"
      << to_text(found);
}

TEST(RandomCases, ThatFailedOncePass) {
  std::size_t cases = 0;
  for (auto const& each : std::filesystem::directory_iterator(ESCROW_RANDOM_CASES)) {
    if (each.path().extension() != ".txt") continue;
    std::ostringstream text;
    text << std::ifstream(each.path()).rdbuf();
    verdict const seen = run(read_program(text.str()));
    EXPECT_TRUE(seen.failure.empty()) << each.path() << ": " << seen.failure;
    ++cases;
  }
  EXPECT_GT(cases, 0U);
}

}  // namespace
}  // namespace escrow::test
