// Which calls block: copies to pageable memory, and destroys of execs with conditional nodes.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "graph_nodes.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

// A call on a thread of its own, because it may block. Its end waits for the call's.
class call_elsewhere {
 public:
  explicit call_elsewhere(std::function<cudaError_t()> call)
      : caller_([this, made = std::move(call)] {
          status_ = made();
          // Release: a reader sees the status, and what the call wrote before it returned.
          returned_.store(true, std::memory_order_release);
        }) {}

  [[nodiscard]] bool stays_blocked() const {
    return stays_false([this] { return has_returned(); });
  }
  [[nodiscard]] bool succeeds_soon() const {
    return wait_until([this] { return has_returned(); }) && status_ == cudaSuccess;
  }

 private:
  [[nodiscard]] bool has_returned() const { return returned_.load(std::memory_order_acquire); }

  cudaError_t status_ = cudaErrorUnknown;
  std::atomic<bool> returned_{false};
  std::jthread caller_;  // the last: it uses the others
};

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

TEST_F(CopiesThatBlock, AnAsynchronousCopyReturnsAfterTheCopyIfItIsToPageableMemory) {
  for (bool const is_pinned : {false, true}) {
    pinned_flag own_flag;
    int* const to = is_pinned ? pinned.data() : pageable.data();
    must(launch_wait_flag(stream, own_flag.get()));
    call_elsewhere const copy(
        [&] { return cudaMemcpyAsync(to, device.data(), bytes, cudaMemcpyDefault, stream); });
    if (!is_pinned) {
      EXPECT_TRUE(copy.stays_blocked());
      own_flag.raise();
    }
    EXPECT_TRUE(copy.succeeds_soon());
    own_flag.raise();
    must(cudaStreamSynchronize(stream));
  }
}

class DestroyInFlight : public testing::Test {
 protected:
  // A body that waits for the flag, then adds 1 to the cell.
  void fill_conditional() {
    cudaGraph_t const body = add_conditional(graph);
    add_kernel(body, add_call(cell.data(), 1), add_kernel(body, wait_flag_call(flag.get())));
  }

  void expect_blocks(owned_exec exec) {
    call_elsewhere const destroy(
        [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
    EXPECT_TRUE(destroy.stays_blocked());
    flag.raise();
    EXPECT_TRUE(destroy.succeeds_soon());
  }
  void expect_does_not_block(pinned_flag& awaited, std::function<cudaError_t()> destroy) {
    call_elsewhere const call(std::move(destroy));
    EXPECT_TRUE(call.succeeds_soon());
    EXPECT_EQ(cell.load(), 0);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    awaited.raise();
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(cell.load(), 1);
  }

  pinned_flag flag;
  pinned_ints cell;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheLaunchIsDone) {
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  expect_blocks(std::move(exec));
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheUploadIsDone) {
  owned_stream const other = make_stream();
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(launch_wait_flag(stream, flag.get()));
  must(cudaGraphUpload(exec, stream));
  must(cudaGraphUpload(exec, other));
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady) << "it is after the one before";
  expect_blocks(std::move(exec));
  EXPECT_EQ(cell.load(), 0);
}

TEST_F(DestroyInFlight, OfAnExecWithoutThemDoesNotBlockNotEvenWithMemoryNodes) {
  for (bool const has_memory_nodes : {false, true}) {
    pinned_flag own_flag;
    cell.store(0, 0);
    graph = make_graph();
    allocation const memory = has_memory_nodes ? add_alloc(graph, 1) : allocation{};
    auto* const waits = add_kernel(graph, wait_flag_call(own_flag.get()), memory.node);
    auto* const last = add_kernel(graph, add_call(cell.data(), 1), waits);
    if (has_memory_nodes) add_free(graph, memory, last);
    owned_exec exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
    expect_does_not_block(own_flag,
                          [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
  }
}

TEST_F(DestroyInFlight, OfAGraphWithConditionalNodesDoesNotBlock) {
  fill_conditional();
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  expect_does_not_block(flag, [handle = graph.release()] { return cudaGraphDestroy(handle); });
}

}  // namespace
}  // namespace escrow::test
