// A runtime without a past for each test of the simulator, and none of the test's left behind.
#pragma once

#include <gtest/gtest.h>

#include <escrow/sim.hpp>

namespace escrow::test {

class fresh_runtime : public testing::Test {
 protected:
  fresh_runtime() { sim::reset(); }
  ~fresh_runtime() override { sim::reset(); }
};

}  // namespace escrow::test
