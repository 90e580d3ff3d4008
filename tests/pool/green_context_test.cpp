// Streams of a green context, which has a part of a device's multiprocessors, are as others.
#include <cuda.h>

#include <escrow/graph.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

/// A function of the driver.
template <class Function>
Function* driver_function(char const* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned since = 12080;
  must(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result));
  return reinterpret_cast<Function*>(found);
}
#define DRIVER(name) driver_function<decltype(name)>(#name)

class GreenContext : public pool_world {
 protected:
  void SetUp() override {
    pool_world::SetUp();
    CUdevResource all{};
    CUdevResource part{};
    unsigned count = 1;
    constexpr unsigned multiprocessors = 16;
    CUdevResourceDesc described{};
    ok(DRIVER(cuDeviceGetDevResource)(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    ok(DRIVER(cuDevSmResourceSplitByCount)(&part, &count, &all, nullptr, 0, multiprocessors));
    ok(DRIVER(cuDevResourceGenerateDesc)(&described, &part, 1));
    ok(DRIVER(cuGreenCtxCreate)(&context, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    ok(DRIVER(cuGreenCtxStreamCreate)(&green, context, CU_STREAM_NON_BLOCKING, 0));
  }
  void TearDown() override {
    must(cudaStreamDestroy(green));
    pool_world::TearDown();
    ok(DRIVER(cuGreenCtxDestroy)(context));
  }
  static void ok(CUresult status) { must(status == CUDA_SUCCESS, "driver call"); }

  CUgreenCtx context = nullptr;
  cudaStream_t green = nullptr;
};

TEST_F(GreenContext, ItsStreamHandsSlotsOnAfterItsWork) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, green);
  expect_next_waits(pool, one);
}

TEST_F(GreenContext, ItsStreamWaitsForOthers) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, one);
  expect_next_waits(pool, green);
}

TEST_F(GreenContext, AClaimerOfItsStreamFlushesForOthers) {
  block_pool pool = make_pool(4);
  auto local = pool.on(green);
  {
    block_lease held = local.claim();
    keep_busy(held, green);
  }
  EXPECT_EQ(local.claim()->number(), 0);
  local.flush();
  std::vector<block_lease> others;
  for (int i = 0; i < 3; ++i) others.push_back(pool.claim(two));
  expect_next_waits(pool, one);
}

TEST_F(GreenContext, AGraphThatIsCapturedOnItsStreamHoldsItsSlots) {
  block_pool pool = make_pool(2);
  {
    capture captured{green, cudaStreamCaptureModeGlobal};
    use(pool, green, 1);
    use(pool, green, 2);
    expect_right_results(captured);
    EXPECT_EQ(pool.stats().in_graphs, 1U);
  }
  EXPECT_TRUE(leaves_graphs(pool));
}

TEST_F(GreenContext, AnExecThatIsLaunchedOnItsStreamKeepsItsSlotsUntilTheEnd) {
  block_pool pool = make_pool(1);
  {
    owned_graph const graph = captured_use(pool);
    graph_exec exec(graph.get());
    hold_up(green);
    exec.launch(green);
  }
  EXPECT_TRUE(stays_false([&] { return pool.stats().in_graphs == 0; }));
  flag.raise();
  sync(green);
  EXPECT_TRUE(leaves_graphs(pool));
}

}  // namespace
}  // namespace escrow::test
