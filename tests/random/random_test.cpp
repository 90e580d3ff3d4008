// Random programs on the stepped simulator, checked against the reference model after each step.
//   ESCROW_SEED=n       the first seed
//   ESCROW_PROGRAMS=n   how many
//   ESCROW_DEEP=1       a hundred thousand
//   ESCROW_PIECE=n      those that follow n times as many
//   ESCROW_IN_CHILD=1   each in a process of its own: crashes are shrunk, too
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "deep.hpp"
#include "generate.hpp"
#include "run.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

std::uint64_t number_from(char const* variable, std::uint64_t otherwise) {
  char const* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

constexpr std::uint64_t programs_usually = 35'000;

std::uint64_t programs_of_this_run() {
  return number_from("ESCROW_PROGRAMS", is_deep()      ? 100'000
                                        : is_sanitized ? 4'000
                                                       : programs_usually);
}

/// What is never reached proves nothing.
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
  auto const runner = in_child ? &run_in_child : &run;
  announce_crashes();
  run_counts met;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    program const drawn = generate(seed);
    verdict const seen = runner(drawn, planted::none);
    met.add(seen.counts);
    ASSERT_TRUE(seen.failure.empty()) << describe(drawn, seen, planted::none, runner);
  }
  std::printf("seeds %llu to %llu\n%s", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), to_text(met).c_str());
  if (count >= programs_usually && !in_child) expect_all_met(met);
}

TEST(RandomPrograms, AreFunctionsOfTheirSeeds) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
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

TEST(RandomPrograms, AreReadAsTheyWereWritten) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    program drawn = generate(seed);
    drawn.is_exact = true;
    EXPECT_EQ(read_program(to_text(drawn)), drawn);
  }
  EXPECT_THROW(static_cast<void>(read_program("t0 claim l0 p0 x1")), std::runtime_error);
  EXPECT_THROW(static_cast<void>(read_program("t0 claim l0")), std::runtime_error);
  EXPECT_THROW(static_cast<void>(read_program("t0 borrow l0")), std::runtime_error);
}

}  // namespace
}  // namespace escrow::test
