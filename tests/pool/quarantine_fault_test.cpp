// Slots in quarantine: which they are, and what becomes of them.
#include "fault_world.hpp"

namespace escrow::test {
namespace {

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
  EXPECT_EQ(world.pool->stats().deferred, 1u);
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
  EXPECT_EQ(world.pool->stats().deferred, 1u);
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
  EXPECT_EQ(world.pool->stats().deferred, 1u);
  EXPECT_FALSE(world.pool->try_claim(world.one).has_value());
  EXPECT_FALSE(world.pool->try_claim(world.other).has_value());
}

TEST_F(Quarantine, AnEndingLeaseReportsWhatFailed) {
  world.make_pool(1);
  claim_on(world, world.one);
  sim::fail_call("cudaEventRecord", cudaErrorUnknown);
  world.held.reset();
  EXPECT_EQ(world.errors->size(), 1u) << world.errors->all();
  EXPECT_EQ(world.pool->stats().deferred, 1u);
}

TEST_F(Quarantine, AFailedQueryOnlyMeansThatTheSlotIsNotDoneYet) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.held->release();
  sync(world.one);
  sim::fail_call("cudaEventQuery", cudaErrorUnknown);
  claim_on(world, world.other);
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  EXPECT_EQ(world.pool->stats().deferred, 0u);
}

}  // namespace
}  // namespace escrow::test
