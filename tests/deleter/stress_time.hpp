// How long stress tests run.
#pragma once

#include <chrono>
#include <cstdlib>

#include "sanitizers.hpp"

namespace escrow::test {

/// ESCROW_STRESS_SECONDS, or 3: shared by the tests of one program.
[[nodiscard]] inline std::chrono::milliseconds stress_time() {
  char const* const given = std::getenv("ESCROW_STRESS_SECONDS");
  double const seconds = given == nullptr ? 3.0 : std::strtod(given, nullptr);
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

}  // namespace escrow::test
