// Which copies hold up the call that enqueues them: those from the device to pageable memory, also
// in a graph that is launched.
#include <gtest/gtest.h>

#include <vector>

#include "build_graph.hpp"
#include "call_elsewhere.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

class CopiesThatBlock : public testing::Test {
 protected:
  static constexpr std::size_t bytes = sizeof(int);

  // Waits for the flag, sets the device's cell to 5 and copies it.
  [[nodiscard]] owned_exec exec_that_copies_to(int* to) {
    owned_graph const graph = make_graph();
    cudaGraphNode_t const waited = add_kernel(graph, wait_flag_call(flag.get()));
    cudaGraphNode_t const set = add_fill(graph, fill_params(device.data(), 5, 4, 1), waited);
    add_copy(graph, to, device.data(), bytes, set);
    return instantiate(graph);
  }
  // All kernels and fills are loaded: the first launch of one may block by itself.
  void SetUp() override {
    pinned_flag raised;
    raised.raise();
    must(launch_wait_flag(stream, raised.get()));
    must(cudaMemsetAsync(device.data(), 0, bytes, stream));
    must(cudaStreamSynchronize(stream));
  }

  pinned_flag flag;
  device_ints device;
  pinned_ints pinned;
  std::vector<int> pageable = std::vector<int>(1);
  owned_stream stream = make_stream();
};

TEST_F(CopiesThatBlock, ALaunchOfAGraphThatCopiesToPageableMemoryReturnsAfterTheCopy) {
  owned_exec const exec = exec_that_copies_to(pageable.data());
  call_elsewhere const launch([&] { return cudaGraphLaunch(exec, stream); });
  EXPECT_TRUE(launch.stays_blocked());
  flag.raise();
  EXPECT_TRUE(launch.succeeds_soon());
  EXPECT_EQ(pageable[0], 5);
}

TEST_F(CopiesThatBlock, ALaunchOfAGraphThatCopiesToPinnedMemoryDoesNotWait) {
  owned_exec const exec = exec_that_copies_to(pinned.data());
  call_elsewhere const launch([&] { return cudaGraphLaunch(exec, stream); });
  EXPECT_TRUE(launch.succeeds_soon());
  EXPECT_EQ(pinned.load(), 0);
  flag.raise();
  must(cudaStreamSynchronize(stream));
  EXPECT_EQ(pinned.load(), 5);
}

TEST_F(CopiesThatBlock, AnAsynchronousCopyToPageableMemoryReturnsAfterTheCopy) {
  must(launch_wait_flag(stream, flag.get()));
  call_elsewhere const copy([&] {
    return cudaMemcpyAsync(pageable.data(), device.data(), bytes, cudaMemcpyDefault, stream);
  });
  EXPECT_TRUE(copy.stays_blocked());
  flag.raise();
  EXPECT_TRUE(copy.succeeds_soon());
}

TEST_F(CopiesThatBlock, AnAsynchronousCopyToPinnedMemoryDoesNotWait) {
  must(launch_wait_flag(stream, flag.get()));
  call_elsewhere const copy([&] {
    return cudaMemcpyAsync(pinned.data(), device.data(), bytes, cudaMemcpyDefault, stream);
  });
  EXPECT_TRUE(copy.succeeds_soon());
  flag.raise();
}

}  // namespace
}  // namespace escrow::test
