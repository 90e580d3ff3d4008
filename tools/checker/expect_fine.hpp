// SPDX-License-Identifier: Apache-2.0
// What the model tests of the library share: a program that must be right in each execution.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "checker.hpp"

namespace escrow::model {

inline void expect_fine(options const& how, program const& what) {
  report const result = explore(how, what);
  print(how, result);
  EXPECT_EQ(result.error, "") << result.trace;
  EXPECT_TRUE(result.is_complete || how.random != 0);
}

// How many executions at random of a whole hub or pool.
inline std::uint64_t executions(std::uint64_t usual) {
  return is_deep() ? usual * 50 : usual;
}

}  // namespace escrow::model
