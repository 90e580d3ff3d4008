// Leases that end where nothing can be recorded on their stream: the slot is neither claimed early
// nor lost, but waits until the pool is given that stream outside of captures.
#include <optional>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

class DeferredRecord : public world {
 protected:
  /// A lease that was claimed in a capture, whose graph is destroyed, and that eager work uses
  /// until the flag is raised.
  [[nodiscard]] std::optional<block_lease> used_after_its_capture(block_pool& pool) {
    capture claiming{one, cudaStreamCaptureModeRelaxed};
    std::optional<block_lease> held = pool.claim(one);
    must(claiming.end());
    hold_up(one);
    fill(*held, one, 4);
    return held;
  }
  static void end_in_invalidated_capture(std::optional<block_lease>& held, cudaStream_t stream) {
    capture second{stream, cudaStreamCaptureModeGlobal};
    EXPECT_NE(cudaStreamQuery(stream), cudaSuccess);
    static_cast<void>(cudaGetLastError());
    held.reset();
  }
  static void end_in_capture(std::optional<block_lease>& held, cudaStream_t stream) {
    capture second{stream, cudaStreamCaptureModeGlobal};
    held.reset();
    must(second.end());
  }
  void expect_after_the_work(block_pool& pool) {
    block_lease next = pool.claim(two);
    check(next, two, 4, mismatches);
    EXPECT_TRUE(stays_false([&] { return is_idle(two); })) << "claimed before its work is done";
    flag.raise();
    sync(two);
    EXPECT_EQ(mismatches.load(), 0);
  }
};

TEST_F(DeferredRecord, ALeaseThatEndsInAnotherInvalidatedCaptureIsNotGivenOutBeforeItsWork) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  end_in_invalidated_capture(held, one);
  ASSERT_TRUE(drained());
  EXPECT_FALSE(pool.try_claim(two).has_value());
  EXPECT_TRUE(pool.try_claim(one).has_value());
  expect_after_the_work(pool);
}

TEST_F(DeferredRecord, ADestroyedPoolDoesNotDestroyTheResourceUnderSuchWork) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(*pool);
  end_in_invalidated_capture(held, one);
  pool.reset();
  ASSERT_TRUE(drained());
  EXPECT_EQ(counts.destroyed.load(), 0);
  EXPECT_EQ(worker->stats().leaked, 1u);
}

TEST_F(DeferredRecord, ALeaseThatEndsInAnotherCaptureIsHeldByThatGraphTooAndComesBack) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  capture second{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  held.reset();
  EXPECT_TRUE(second.is_active());
  must(second.end());
  EXPECT_FALSE(pool.try_claim(one).has_value()) << "the second graph holds it";
  second.graph().reset();
  ASSERT_TRUE(drained());
  expect_after_the_work(pool);
}

TEST_F(DeferredRecord, IsMadeByAnyCallThatIsGivenTheStream) {
  block_pool pool = make_pool(2);
  for (int way = 0; way < 3; ++way) {
    std::optional<block_lease> late = pool.claim(one);
    std::optional<block_lease> later = pool.claim(way == 1 ? two : one);
    end_in_capture(late, one);
    ASSERT_EQ(pool.stats().deferred, 1u);
    if (way == 0) later->release();
    if (way == 1) later->record_stream(one);
    if (way == 2) static_cast<void>(pool.try_claim(one));
    EXPECT_EQ(pool.stats().deferred, 0u) << way;
    later.reset();
    ASSERT_TRUE(drained());
  }
}

TEST_F(DeferredRecord, IsNotMadeOnAStreamThatHasTheHandleOfADestroyedOne) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::vector<owned_stream> made;
  cudaStream_t old = nullptr;
  {
    owned_stream const destroyed = make_stream();
    old = destroyed.get();
    std::optional<block_lease> held;
    {
      capture first{destroyed, cudaStreamCaptureModeGlobal};
      held = pool->claim(destroyed);
      must(first.end());
    }
    end_in_capture(held, destroyed);
  }
  bool is_used_again = false;
  std::uint64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    owned_stream later = make_stream(i % 3 == 0 ? cudaStreamDefault : cudaStreamNonBlocking);
    EXPECT_GT(stream_id(later), last) << "a stream that is made later has a larger id";
    last = stream_id(later);
    is_used_again = is_used_again || later.get() == old;
    static_cast<void>(pool->try_claim(later));
    if (i % 4 != 0) made.push_back(std::move(later));
  }
  EXPECT_EQ(pool->stats().deferred, 1u);
  pool.reset();
  EXPECT_EQ(worker->stats().leaked, 1u);
  if (!is_used_again) GTEST_SKIP() << "handles are not used again here";
}

TEST_F(DeferredRecord, OnOneStreamDoesNotHideTheWorkOfTheStreamThatWasRecordedAtTheRelease) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(one);
  held->record_stream(two);
  hold_up(one);
  fill(*held, one, 4);
  end_in_capture(held, two);
  expect_after_the_work(pool);
}

TEST_F(DeferredRecord, OnAStreamOfAnotherDeviceLeavesTheSlotToThePoolsOwn) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  must(cudaSetDevice(1));
  owned_stream const elsewhere = make_stream();
  must(cudaSetDevice(0));
  block_pool pool = make_pool(1);
  std::optional<block_lease> late = pool.claim(one);
  late->record_stream(elsewhere);
  end_in_capture(late, elsewhere);
  EXPECT_THROW(static_cast<void>(pool.try_claim(elsewhere)), usage_error);
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_TRUE(pool.try_claim(two).has_value());
}

TEST_F(DeferredRecord, IsNamedByAPoolThatIsClosedAndStillMade) {
  block_pool pool = make_pool(2);
  block_lease last = pool.claim(one);
  std::optional<block_lease> late = pool.claim(one);
  end_in_capture(late, one);
  ASSERT_TRUE(drained());
  auto const left = pool.close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].waits_for, one.get());
  EXPECT_EQ(left[0].slots, 1u);
  EXPECT_EQ(left[1].waits_for, nullptr);
  EXPECT_EQ(left[1].slots, 1u);
  last.release();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

}  // namespace
}  // namespace escrow::test
