// SPDX-License-Identifier: Apache-2.0
// Cases that need a process of their own: a sticky fault, a device reset, the end of the process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "deep.hpp"
#include "handles.hpp"
#include "status.hpp"

namespace escrow::test {

/// Registers `body` as the case that a child process runs when asked for `name`; make one at
/// namespace scope. The child leaves through main with the body's result, so that the process ends
/// as any program does.
struct child_case {
  using body = std::function<int()>;
  child_case(std::string const& name, body run);
};

/// What a child process left behind.
struct child_result {
  bool exited =
      false;        ///< false: killed by a signal, or by us since it did not end within the bound
  int status = -1;  ///< the exit status where it exited
  std::string output;  ///< all it wrote to its standard output and standard error
};

/// Runs this very program again for the case `name`, before it has touched CUDA. Waits 60 s at
/// most.
[[nodiscard]] child_result run_child(std::string const& name);

/// The exit status of a case that succeeded; a process that ends otherwise does not have it.
inline constexpr int as_expected = 42;

/// How long a case may take. The end of a process may wait a second for a pass of the worker
/// (deleter/worker.cpp) and, on the simulated runtime, two for a kernel; starting one on a GPU
/// takes half a second.
inline constexpr std::chrono::seconds soon{is_sanitized ? 60 : 30};

/// A case, by the name that the child process is asked for. A body that returns nothing succeeds by
/// returning.
struct named_case {
  template <class Body>
  named_case(std::string its_name, Body body)
      : name(std::move(its_name)), run([body = std::move(body)]() -> int {
          if constexpr (std::is_void_v<std::invoke_result_t<Body const&>>) {
            body();
            return as_expected;
          } else {
            return body();
          }
        }) {}

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

/// Runs a case in a process of its own, which has to exit with `status`, and soon.
inline void expect_clean_end(named_case const& one, int status = as_expected) {
  auto const begin = std::chrono::steady_clock::now();
  child_result const child = run_child(one.name);
  EXPECT_TRUE(child.exited) << child.output;
  EXPECT_EQ(child.status, status) << child.output;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, soon);
}

/// Tests whose parameter is a case.
using child_test = testing::TestWithParam<named_case>;

/// For cases that use two devices: skips where there is one.
class case_of_two_devices : public child_test {
 protected:
  void SetUp() override {
    if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  }
};

}  // namespace escrow::test
