// Every CUDA call of every operation of a pool fails once, with each of several errors.
#include "failing_call.hpp"
#include "fault_world.hpp"

namespace escrow::test {
namespace {

class PoolCudaFault : public testing::TestWithParam<std::tuple<fault_scenario, cudaError_t>> {};

// What must be as before, whatever failed. Events are kept for reuse, and counted by the test.
sim::counts balance(int lost) {
  sim::counts now = sim::alive();
  now.events = 0;
  now.device_allocations -= static_cast<std::size_t>(lost);
  now.device_bytes -= static_cast<std::size_t>(lost) * block::length * sizeof(int);
  return now;
}

void expect_thread_as_before() {
  int device = -1;
  must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

// Returns how many CUDA calls the operation made.
std::uint64_t run_one(fault_scenario const& scenario, std::uint64_t n, cudaError_t error,
                      int& lost) {
  fault_world world;
  scenario.prepare(world);
  std::string thrown;
  std::uint64_t made = 0;
  {
    failing_call const failing(n, error);
    thrown = thrown_by(scenario, world);
    made = failing.made();
  }
  if (n > made && std::string{scenario.name} != "ReleaseInAForeignCapture") {
    EXPECT_EQ(thrown, "") << "nothing failed";
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  expect_thread_as_before();
  expect_sound(world);
  lost += end_world(world);
  return made;
}

TEST_P(PoolCudaFault, LeavesNothingLostSharedOrFreedEarly) {
  auto const& [scenario, error] = GetParam();
  int lost = 0;
  static_cast<void>(run_one(scenario, 1'000'000, error, lost));  // fills the event cache
  std::size_t const events = sim::alive().events;
  sim::counts const before = balance(lost);
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    ASSERT_LT(n, 200u) << "the operation has no end";
    bool const is_last = run_one(scenario, n, error, lost) < n;
    EXPECT_EQ(balance(lost), before);
    if (HasFailure() || is_last) break;
  }
  // A lost slot keeps its events; nothing else may.
  EXPECT_LE(sim::alive().events, events + 4 * static_cast<std::size_t>(lost) + 4);
  EXPECT_EQ(sim::calls_in_callbacks(), 0u);
}

std::string name_of(testing::TestParamInfo<std::tuple<fault_scenario, cudaError_t>> const& info) {
  return std::string{std::get<0>(info.param).name} + "_" +
         cudaGetErrorName(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Every, PoolCudaFault,
    testing::Combine(testing::ValuesIn(fault_scenarios()),
                     testing::Values(cudaErrorUnknown, cudaErrorMemoryAllocation,
                                     cudaErrorInvalidResourceHandle, cudaErrorNotReady)),
    name_of);

class Quarantine : public testing::Test {
 protected:
  fault_world world;
  int lost = 0;  // for each pool: resources that are kept for ever

  void TearDown() override {
    sim::clear_faults();
    EXPECT_EQ(end_world(world), lost);
  }
};

TEST_F(Quarantine, ASlotWhoseRecordFailedOnceIsNotHandedOutAndIsDestroyedAfterItsWork) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.keep_busy(*world.held, world.one);
  sim::fail_call("cudaEventRecord", cudaErrorUnknown);
  EXPECT_THROW(world.held->release(), cuda_error);
  EXPECT_FALSE(*world.held);
  EXPECT_EQ(world.pool->stats().quarantined, 1u);
  EXPECT_FALSE(world.pool->try_claim(world.one).has_value());
  world.pool.reset();
  world.worker->poll();
  EXPECT_EQ(world.counts.destroyed.load(), 0);
  world.flag.raise();
  sync(world.one);
  EXPECT_TRUE(world.worker->drain_for(generous));
  EXPECT_EQ(world.counts.destroyed.load(), 1);
}

TEST_F(Quarantine, ASlotThatNothingTellsOfIsNeitherHandedOutNorDestroyedAndIsCounted) {
  lost = 1;
  world.make_pool(1);
  claim_on(world, world.one);
  sim::fail_call("cudaEventRecord", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(world.held->release(), cuda_error);
  sim::clear_faults();
  EXPECT_EQ(world.pool->stats().quarantined, 1u);
  EXPECT_FALSE(world.pool->try_claim(world.one).has_value());
  EXPECT_TRUE(world.pool->close_for(std::chrono::nanoseconds{0}).empty());
  EXPECT_TRUE(world.worker->drain_for(generous));
  EXPECT_EQ(world.counts.destroyed.load(), 0);
  EXPECT_EQ(world.worker->stats().held, 1u);
}

TEST_F(Quarantine, ASlotWhoseWaitFailedIsNotHandedOutAndTheClaimThrows) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.keep_busy(*world.held, world.one);
  world.held->release();
  sim::fail_call("cudaStreamWaitEvent", cudaErrorUnknown);
  EXPECT_THROW(claim_on(world, world.other), cuda_error);
  EXPECT_EQ(world.pool->stats().quarantined, 1u);
  EXPECT_FALSE(world.pool->try_claim(world.one).has_value());
  EXPECT_FALSE(world.pool->try_claim(world.other).has_value());
}

TEST_F(Quarantine, AnEndingLeaseReportsWhatFailed) {
  world.make_pool(1);
  claim_on(world, world.one);
  sim::fail_call("cudaEventRecord", cudaErrorUnknown);
  world.held.reset();
  EXPECT_EQ(world.errors->size(), 1u) << world.errors->all();
  EXPECT_EQ(world.pool->stats().quarantined, 1u);
}

TEST_F(Quarantine, AFailedQueryOnlyMeansThatTheSlotIsNotDoneYet) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.held->release();
  sync(world.one);
  sim::fail_call("cudaEventQuery", cudaErrorUnknown);
  claim_on(world, world.other);
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  EXPECT_EQ(world.pool->stats().quarantined, 0u);
}

}  // namespace
}  // namespace escrow::test
