// Leases that end where nothing can be recorded on their stream: the slot is neither given out
// early nor lost, but waits until the pool is given that stream outside of captures.
#include <optional>

#include "../pool/capture_fixture.hpp"

namespace escrow::test {
namespace {

class DeferredRecord : public captured_pool_test {
 protected:
  // A lease that was claimed in a capture, whose graph is destroyed, and then used eagerly, until
  // the flag is raised.
  [[nodiscard]] std::optional<block_lease> used_after_its_capture(block_pool& pool) {
    capture captured{stream, cudaStreamCaptureModeRelaxed};
    std::optional<block_lease> held = pool.claim(stream);
    must(captured.end());
    must(launch_wait_flag(stream, flag.get()));
    fill(*held, stream, 4);
    return held;
  }
  void expect_after_the_work(block_pool& pool) {
    block_lease next = pool.claim(other);
    check(next, other, 4, mismatches);
    EXPECT_TRUE(stays_false([&] { return is_idle(other); })) << "given out before its work is done";
    flag.raise();
    sync(other);
    EXPECT_EQ(mismatches.load(), 0);
  }

  pinned_flag flag;
  owned_stream stream = make_stream();
  owned_stream other = make_stream();
};

TEST_F(DeferredRecord, ALeaseThatEndsInAnotherInvalidatedCaptureIsNotGivenOutBeforeItsWork) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  {
    capture second{stream, cudaStreamCaptureModeGlobal};
    invalidate(stream);
    held.reset();
  }
  ASSERT_TRUE(drained());
  EXPECT_FALSE(pool.try_claim(other).has_value());
  EXPECT_TRUE(pool.try_claim(stream).has_value());
  expect_after_the_work(pool);
}

TEST_F(DeferredRecord, ADestroyedPoolDoesNotDestroyTheResourceUnderSuchWork) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(*pool);
  {
    capture second{stream, cudaStreamCaptureModeGlobal};
    invalidate(stream);
    held.reset();
  }
  pool.reset();
  ASSERT_TRUE(drained());
  EXPECT_EQ(counts.destroyed.load(), 0);
  EXPECT_EQ(worker->stats().leaked, 1u);
  flag.raise();
  sync(stream);
}

TEST_F(DeferredRecord, ALeaseThatEndsInAnotherCaptureIsHeldByThatGraphTooAndComesBack) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  capture second{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  held.reset();
  EXPECT_TRUE(second.is_active());
  must(second.end());
  EXPECT_FALSE(pool.try_claim(stream).has_value()) << "the second graph holds it";
  second.graph().reset();
  ASSERT_TRUE(drained());
  expect_after_the_work(pool);
  EXPECT_TRUE(errors->size() == 0) << errors->all();
}

TEST_F(DeferredRecord, IsMadeByAnyCallThatIsGivenTheStream) {
  block_pool pool = make_pool(2);
  for (int way = 0; way < 3; ++way) {
    std::optional<block_lease> late = pool.claim(stream);
    std::optional<block_lease> later = pool.claim(way == 1 ? other : stream);
    {
      capture captured{stream, cudaStreamCaptureModeGlobal};
      late.reset();
      must(captured.end());
    }
    ASSERT_EQ(pool.stats().deferred, 1u);
    if (way == 0) later->release();
    if (way == 1) later->record_stream(stream);
    if (way == 2) static_cast<void>(pool.try_claim(stream));
    EXPECT_EQ(pool.stats().deferred, 0u) << way;
    later.reset();
    ASSERT_TRUE(drained());
  }
}

TEST_F(DeferredRecord, IsNotMadeOnAStreamThatWasMadeWithTheHandleOfADestroyedOne) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::vector<owned_stream> made;
  cudaStream_t old = nullptr;
  {
    owned_stream gone = make_stream();
    old = gone.get();
    std::optional<block_lease> held;
    {
      capture first{gone, cudaStreamCaptureModeGlobal};
      held = pool->claim(gone);
      must(first.end());
    }
    capture second{gone, cudaStreamCaptureModeGlobal};
    held.reset();
    must(second.end());
  }
  bool is_used_again = false;
  for (int i = 0; i < 100 && !is_used_again; ++i) {
    made.push_back(make_stream());
    is_used_again = made.back().get() == old;
    static_cast<void>(pool->try_claim(made.back()));
  }
  EXPECT_EQ(pool->stats().deferred, 1u);
  pool.reset();
  EXPECT_EQ(worker->stats().leaked, 1u);
  if (!is_used_again) GTEST_SKIP() << "handles are not used again here";
}

// What that rests on.
TEST_F(DeferredRecord, AStreamThatIsMadeLaterHasALargerId) {
  std::uint64_t last = 0;
  std::vector<owned_stream> kept;
  for (int i = 0; i < 200; ++i) {
    owned_stream made = make_stream(i % 3 == 0 ? cudaStreamDefault : cudaStreamNonBlocking);
    EXPECT_GT(stream_id(made), last);
    last = stream_id(made);
    if (i % 4 == 0) kept.push_back(std::move(made));
  }
}

TEST_F(DeferredRecord, OnOneStreamDoesNotHideTheWorkOfTheStreamThatWasRecordedAtTheRelease) {
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(stream);
    held.record_stream(other);
    must(launch_wait_flag(stream, flag.get()));
    fill(held, stream, 4);
    capture captured{other, cudaStreamCaptureModeGlobal};
    held.release();
    must(captured.end());
  }
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
  {
    block_lease late = pool.claim(stream);
    late.record_stream(elsewhere);
    capture captured{elsewhere, cudaStreamCaptureModeGlobal};
    late.release();
    must(captured.end());
  }
  EXPECT_THROW(static_cast<void>(pool.try_claim(elsewhere)), usage_error);
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_TRUE(pool.try_claim(other).has_value());
}

TEST_F(DeferredRecord, IsNamedByAPoolThatIsClosedAndStillMade) {
  block_pool pool = make_pool(2);
  block_lease last = pool.claim(stream);
  {
    block_lease const late = pool.claim(stream);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  }
  owned_graph graph;
  must(cudaStreamEndCapture(stream, graph.out()));
  graph.reset();
  ASSERT_TRUE(drained());
  auto const left = pool.close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].waits_for, stream.get());
  EXPECT_EQ(left[0].slots, 1u);
  EXPECT_EQ(left[1].waits_for, nullptr);
  EXPECT_EQ(left[1].slots, 1u);
  last.release();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

}  // namespace
}  // namespace escrow::test
