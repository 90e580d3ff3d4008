// A test program's cases that need a process of their own, as a GoogleTest parameter each.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "child.hpp"
#include "status.hpp"

namespace escrow::test {

/// A case, by the name that the child process is asked for.
struct named_case {
  std::string name;
  child_case::body run;
};

inline void PrintTo(named_case const& one, std::ostream* out) {
  *out << one.name;
}

/// Registers all of `cases`, and returns them; for a constant at namespace scope.
inline std::vector<named_case> register_cases(std::vector<named_case> cases) {
  for (named_case const& one : cases) child_case{one.name, one.run};
  return cases;
}

/// The test's name of a case.
inline std::string name_of_case(testing::TestParamInfo<named_case> const& one) {
  return one.param.name;
}

/// For cases that use two devices: skips where there is one.
class case_of_two_devices : public testing::TestWithParam<named_case> {
 protected:
  void SetUp() override {
    int count = 0;
    must(cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "needs two devices";
  }
};

}  // namespace escrow::test
