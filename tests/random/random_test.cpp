// SPDX-License-Identifier: Apache-2.0
// Random programs on the stepped simulator, checked against the reference model after each step;
// faults of the test's own, which are found and shrunk; and cases that failed once.
//   ESCROW_SEED=n       the first seed
//   ESCROW_PROGRAMS=n   how many
//   ESCROW_DEEP=1       a hundred thousand
//   ESCROW_PIECE=n      those that follow n times as many
//   ESCROW_IN_CHILD=1   each in a process of its own: crashes are shrunk, too
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "deep.hpp"
#include "program.hpp"

namespace escrow::test {
namespace {

std::uint64_t number_from(char const* variable, std::uint64_t otherwise) {
  char const* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

constexpr std::uint64_t programs_usually = 35'000;

std::uint64_t programs_of_this_run() {
  return number_from("ESCROW_PROGRAMS", is_deep()         ? 100'000
                                        : built_with_tsan ? 1'500
                                        : built_with_asan ? 4'000
                                                          : programs_usually);
}

/// What is never reached proves nothing. Asked of runs that have the default programs: what is rare
/// may be missing in as many of other seeds.
void expect_all_met(run_counts const& met) {
  constexpr auto done = static_cast<std::size_t>(outcome::done);
  for (std::size_t i = 0; i < op_count; ++i)
    EXPECT_GT(met.operations[i][done], 0U) << spec_of(static_cast<op>(i)).name;
  for (std::size_t i = 0; i < situation_count; ++i)
    EXPECT_GT(met.situations[i], 0U) << name_of(static_cast<situation>(i));
}

TEST(RandomPrograms, KeepAliveWhatIsUsedAndDestroyTheRestOnce) {
  std::uint64_t const count = programs_of_this_run();
  std::uint64_t const first =
      number_from("ESCROW_SEED", 1) + number_from("ESCROW_PIECE", 0) * count;
  bool const in_child = std::getenv("ESCROW_IN_CHILD") != nullptr;
  auto const runner = [in_child](program const& given) {
    return in_child ? run_in_child(given) : run(given);
  };
  announce_crashes();
  run_counts met;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    program const drawn = generate(seed);
    verdict const seen = runner(drawn);
    met.add(seen.counts);
    ASSERT_TRUE(seen.failure.empty()) << describe(drawn, seen, runner);
  }
  std::printf("seeds %llu to %llu\n%s", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), to_text(met).c_str());
  if (first == 1 && count >= programs_usually && !in_child) expect_all_met(met);
}

TEST(RandomPrograms, AreFunctionsOfTheirSeeds) {
  std::uint64_t const count = built_with_tsan || built_with_asan ? 300 : 1'000;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    program const drawn = generate(seed);
    ASSERT_EQ(drawn, generate(seed));
    verdict const once = run(drawn);
    verdict const again = run(drawn);
    ASSERT_EQ(once.failure, again.failure);
    ASSERT_EQ(to_text(once.counts), to_text(again.counts)) << seed;
    ASSERT_EQ(to_text(once.exact), to_text(again.exact)) << seed;
    // And so are those that name the places that were meant.
    ASSERT_EQ(to_text(once.counts), to_text(run(once.exact).counts)) << seed;
  }
}

/// Or else an allocation that is to fail would be another one, or none.
TEST(RandomPrograms, AllocateAsOftenWhateverRanBefore) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    program drawn = generate(seed);
    for (operation& each : drawn.operations)
      if (each.failing_allocation == 0) each.failing_allocation = operation::none_fails;
    run_counts const once = run(drawn).counts;
    EXPECT_EQ(once.allocations, run(drawn).counts.allocations) << seed;
  }
}

TEST(RandomPrograms, AreReadAsTheyWereWritten) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    program drawn = generate(seed);
    drawn.is_exact = true;
    EXPECT_EQ(read_program(to_text(drawn)), drawn);
  }
  for (char const* const wrong : {"t0 claim l0 p0 x1", "t0 claim l0", "t0 borrow l0"})
    EXPECT_THROW(static_cast<void>(read_program(wrong)), std::runtime_error);
}

struct planting {
  planted bug;
  std::string failure;
  std::size_t operations_max;  // after shrinking
  std::uint64_t stride = 1;    // between seeds
};

/// The program of the first seed that finds the fault, shrunk, is small and fails as expected.
program expect_found(planting const& tried) {
  constexpr std::uint64_t seeds_max = 20'000;
  auto const fails = [&](program const& given) {
    return run(given, tried.bug).failure.find(tried.failure) != std::string::npos;
  };
  for (std::uint64_t seed = tried.stride; seed <= seeds_max; seed += tried.stride) {
    verdict const seen = run(generate(seed), tried.bug);
    if (seen.failure.find(tried.failure) == std::string::npos) continue;
    program const small = shrink(seen.exact, fails);
    EXPECT_LE(small.operations.size(), tried.operations_max) << to_text(small);
    EXPECT_TRUE(run(small).failure.empty()) << "fails without the fault, too";
    std::printf("found with seed %llu, %zu operations left\n",
                static_cast<unsigned long long>(seed), small.operations.size());
    return small;
  }
  ADD_FAILURE() << tried.failure << ": not found by seeds up to " << seeds_max;
  return {};
}

TEST(PlantedFault, IsFoundAndShrunk) {
  for (planting const& each : {planting{planted::owner_ends_early, "was destroyed, but", 2},
                               planting{planted::use_is_not_ordered, "slot", 12},
                               planting{planted::model_forgets_execs, "nothing keeps these", 8}})
    static_cast<void>(expect_found(each));
}

TEST(PlantedFault, ThatOnlyShowsInsideAnOperationIsFound) {
  constexpr std::uint64_t stride = 3;  // operations run together in every third program
  program found = expect_found({planted::release_noted_late, "was handed out twice", 6, stride});
  for (operation& each : found.operations) each.joins = false;
  EXPECT_TRUE(run(found, planted::release_noted_late).failure.empty())
      << "fails when each operation is alone, too:\n"
      << to_text(found);
}

TEST(RandomCases, ThatFailedOncePass) {
  std::vector<std::pair<std::string, std::string>> cases;  // names and programs
  std::ifstream file(ESCROW_RANDOM_CASES);
  constexpr std::string_view begin = "case ";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(begin)) {
      cases.emplace_back(line.substr(begin.size()), "");
    } else if (!cases.empty()) {
      cases.back().second += line + '\n';
    }
  }
  EXPECT_FALSE(cases.empty());
  for (auto const& [name, text] : cases) {
    verdict const seen = run(read_program(text));
    EXPECT_TRUE(seen.failure.empty()) << name << ": " << seen.failure;
  }
}

}  // namespace
}  // namespace escrow::test
