// The worker makes no context on a device that the process does not use.
#include <gtest/gtest.h>

#include <escrow/sim.hpp>
#include <memory>

#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

TEST(WorkerContext, IsOfTheDeviceOfWhatItReclaims) {
  sim::reset({.devices = 2});
  must(cudaSetDevice(1));
  {
    owned_stream const stream = make_stream();
    deleter its;
    its.retire(stream, std::make_unique<int>(1));
    its.drain();
  }
  EXPECT_TRUE(sim::has_context(1));
  EXPECT_FALSE(sim::has_context(0));
}

}  // namespace
}  // namespace escrow::test
