// The two tests of each operation of a program, and the sums that the program prints at its end.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <iostream>
#include <string>

#include "deep.hpp"
#include "fault_runner.hpp"

namespace escrow::test {

/// Each operation of the program.
class EveryCall : public testing::TestWithParam<operation> {};

TEST_P(EveryCall, FailsOnceWithEachErrorAndThePromiseIsKept) {
  fault_runner(GetParam()).every_call();
}

TEST_P(EveryCall, RunsOutOfMemoryAtEachAllocationAndThePromiseIsKept) {
  fault_runner(GetParam()).every_allocation();
}

/// The operation's name as GoogleTest takes it.
inline std::string name_of(testing::TestParamInfo<operation> const& info) {
  std::string name;
  bool begins = true;
  for (char const each : info.param.name) {
    bool const is_part = std::isalnum(static_cast<unsigned char>(each)) != 0;
    if (is_part) name += begins ? static_cast<char>(std::toupper(each)) : each;
    begins = !is_part;
  }
  return name;
}

/// Prints the sums over all runs.
class prints_totals : public testing::Environment {
 public:
  void SetUp() override {
    // ThreadSanitizer takes ten times as long, to see one thread.
    if (built_with_tsan && !is_deep()) limits.one_run_in = 5;
  }
  void TearDown() override {
    std::cout << "operations " << totals.operations << ", call sites " << totals.call_sites
              << ", errors " << totals.errors << ", runs " << totals.call_runs
              << "; allocation sites " << totals.allocation_sites << ", runs "
              << totals.allocation_runs << std::endl;
  }
};
inline auto* const printer = testing::AddGlobalTestEnvironment(new prints_totals);

}  // namespace escrow::test
