// A case in a process of its own that has to end well, and soon.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "../support/child.hpp"
#include "../support/sanitizers.hpp"

namespace escrow::test {

/// The end of a process may wait a second for a pass of the worker (deleter/worker.cpp) and, on the
/// simulated runtime, two for a kernel; starting one on a GPU takes half a second.
inline constexpr std::chrono::seconds soon{is_sanitized ? 20 : 10};

/// Runs the case `name`: it has to exit with `status`, and soon.
inline void expect_clean_end(std::string const& name, int status = 0) {
  auto const begin = std::chrono::steady_clock::now();
  child_result const result = run_child(name);
  EXPECT_TRUE(result.exited) << result.output;
  EXPECT_EQ(result.status, status) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, soon);
}

}  // namespace escrow::test
