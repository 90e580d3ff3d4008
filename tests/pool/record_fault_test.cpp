// Records and waits that fail: what becomes of the slot.
#include "fault_world.hpp"

namespace escrow::test {
namespace {

class RecordFault : public testing::Test {
 protected:
  fault_world world;
  int lost = 0;  // resources that are leaked

  void TearDown() override {
    sim::clear_faults();
    EXPECT_EQ(end_world(world), lost);
  }
};

TEST_F(RecordFault, ASlotWhoseRecordFailedOnceServesOn) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.keep_busy(*world.held, world.one);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown);
  EXPECT_NO_THROW(world.held->release());
  EXPECT_EQ(world.pool->stats().deferred, 0u);
  world.pool.reset();
  world.worker->poll();
  EXPECT_EQ(world.counts.destroyed.load(), 0);
  world.flag.raise();
  sync(world.one);
  EXPECT_TRUE(world.worker->drain_for(generous));
  EXPECT_EQ(world.counts.destroyed.load(), 1);
}

TEST_F(RecordFault, EachFailedRecordCostsNoSlot) {
  world.make_pool(2);
  for (int i = 0; i < 2; ++i) {
    claim_on(world, world.one);
    sim::fail_call_here("cudaEventRecord", cudaErrorMemoryAllocation, 1, 100);
    EXPECT_THROW(world.held->release(), cuda_error);
    sim::clear_faults();
  }
  block_lease const first = world.pool->claim(world.one);
  block_lease const second = world.pool->claim(world.one);
  EXPECT_EQ(world.pool->stats().slots, 2u);
}

TEST_F(RecordFault, ASlotThatCannotBeRecordedWaitsForItsStream) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.keep_busy(*world.held, world.one);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(world.held->release(), cuda_error);
  sim::clear_faults();
  EXPECT_FALSE(*world.held);
  EXPECT_EQ(world.pool->stats().deferred, 1u);
  EXPECT_FALSE(world.pool->try_claim(world.other).has_value());
  EXPECT_TRUE(world.pool->try_claim(world.one).has_value());
  EXPECT_EQ(world.pool->stats().deferred, 0u);
  world.held = world.pool->claim(world.other);
  EXPECT_EQ(cudaStreamQuery(world.other), cudaErrorNotReady) << "it waits for the work before";
  static_cast<void>(cudaGetLastError());
}

TEST_F(RecordFault, ASlotThatIsNeverRecordedIsNamedByCloseAndLeakedWithThePool) {
  lost = 1;
  world.make_pool(1);
  claim_on(world, world.one);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(world.held->release(), cuda_error);
  sim::clear_faults();
  auto const left = world.pool->close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].waits_for, world.one.get());
  EXPECT_EQ(left[0].slots, 1u);
  world.pool.reset();
  EXPECT_TRUE(world.worker->drain_for(generous));
  EXPECT_EQ(world.counts.destroyed.load(), 0);
  EXPECT_EQ(world.worker->stats().leaked, 1u);
}

TEST_F(RecordFault, ASlotWhoseWaitFailedIsNotLostAndTheClaimThrows) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.keep_busy(*world.held, world.one);
  world.held->release();
  sim::fail_call_here("cudaStreamWaitEvent", cudaErrorUnknown);
  EXPECT_THROW(claim_on(world, world.other), cuda_error);
  world.held = world.pool->claim(world.other);
  EXPECT_EQ(cudaStreamQuery(world.other), cudaErrorNotReady) << "it waits for the work before";
  static_cast<void>(cudaGetLastError());
}

TEST_F(RecordFault, AnEndingLeaseReportsWhatFailed) {
  world.make_pool(1);
  claim_on(world, world.one);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  world.held.reset();
  sim::clear_faults();
  EXPECT_EQ(world.errors->size(), 1u) << world.errors->all();
  EXPECT_EQ(world.pool->stats().deferred, 1u);
  static_cast<void>(world.pool->claim(world.one));
}

TEST_F(RecordFault, AClaimWaitsInItsStreamWhereNoOtherResourceCanBeMade) {
  int made = 0;
  deleter polled{deleter_options{.own_worker = false}};
  resource_pool<int> pool({.slots_max = 64, .deleter = &polled}, [&] {
    if (made == 1) throw cuda_error(cudaErrorMemoryAllocation, "cudaMalloc");
    return made++;
  });
  {
    auto const held = pool.claim(world.one);
    must(launch_wait_flag(world.one, world.flag.get()));
  }
  EXPECT_EQ(*pool.claim(world.other), 0);
  EXPECT_EQ(pool.stats().stream_waits, 1u);
  auto const all_out = pool.claim(world.other);
  EXPECT_THROW(static_cast<void>(pool.claim(world.other)), cuda_error);
  world.flag.raise();
}

TEST_F(RecordFault, AFailedQueryOnlyMeansThatTheSlotIsNotDoneYet) {
  world.make_pool(1);
  claim_on(world, world.one);
  world.held->release();
  sync(world.one);
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown);
  claim_on(world, world.other);
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  EXPECT_EQ(world.pool->stats().deferred, 0u);
}

}  // namespace
}  // namespace escrow::test
