// Leases whose work is on the legacy stream, which nothing may be enqueued on while a blocking
// stream captures: one that ends then loses nothing and harms nobody.
#include <optional>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class LegacyStream : public captured_pool_test {
 protected:
  // Work on the legacy stream that ends when the flag is raised and leaves `value` behind.
  void keep_busy(block_lease& used, int value) {
    must(launch_wait_flag(cudaStreamLegacy, flag.get()));
    fill(used, cudaStreamLegacy, value);
  }
  // The pool's one slot must be handed out, ordered behind that work.
  void expect_next_after_the_work(block_pool& pool, int value) {
    owned_stream const other = make_stream();
    block_lease next = pool.claim(other);
    check(next, other, value, mismatches);
    EXPECT_TRUE(stays_false([&] { return is_idle(other); }))
        << "handed out before its work is done";
    flag.raise();
    sync(other);
    EXPECT_EQ(mismatches.load(), 0);
    EXPECT_EQ(pool.stats().deferred, 0u);
  }

  pinned_flag flag;
  owned_stream stream = make_stream();
  owned_stream blocking = make_stream(cudaStreamDefault);
};

TEST_F(LegacyStream, ALeaseThatEndsWhileABlockingStreamCapturesWaitsForItsRecord) {
  for (cudaStream_t const legacy : {cudaStreamLegacy, cudaStream_t{}}) {
    pinned_flag done;
    block_pool pool = make_pool(1);
    std::optional<block_lease> held = pool.claim(legacy);
    must(launch_wait_flag(cudaStreamLegacy, done.get()));
    fill(*held, cudaStreamLegacy, 7);
    {
      capture captured{blocking, cudaStreamCaptureModeGlobal};
      held.reset();
      EXPECT_TRUE(captured.is_active());
      EXPECT_EQ(pool.stats().deferred, 1u);
      EXPECT_FALSE(pool.try_claim(blocking).has_value()) << "a capture gets what is done";
      done.raise();
      EXPECT_TRUE(captured.is_active());
      EXPECT_EQ(captured.end(), cudaSuccess);
    }
    EXPECT_TRUE(pool.try_claim(legacy).has_value());
    EXPECT_EQ(pool.stats().deferred, 0u);
  }
}

TEST_F(LegacyStream, ALeaseThatEndedInACaptureServesOtherStreamsAfterItsWork) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(cudaStreamLegacy);
  keep_busy(*held, 7);
  {
    capture captured{blocking, cudaStreamCaptureModeGlobal};
    held.reset();
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  EXPECT_TRUE(pool.try_claim(cudaStreamLegacy).has_value());
  expect_next_after_the_work(pool, 7);
}

TEST_F(LegacyStream, ALeaseThatEndedInACaptureIsTheLegacyStreamsOwnAfterwards) {
  block_pool pool = make_pool(2);
  std::optional<block_lease> held = pool.claim(cudaStreamLegacy);
  keep_busy(*held, 7);
  {
    capture captured{blocking, cudaStreamCaptureModeGlobal};
    held.reset();
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  EXPECT_EQ(pool.claim(cudaStreamLegacy)->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
  flag.raise();
}

TEST_F(LegacyStream, ALeaseThatWasAlsoUsedThereEndsAsWell) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(stream);
  held->record_stream(cudaStreamLegacy);
  keep_busy(*held, 5);
  {
    capture captured{blocking, cudaStreamCaptureModeGlobal};
    held.reset();
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  static_cast<void>(pool.try_claim(cudaStreamLegacy));
  expect_next_after_the_work(pool, 5);
}

TEST_F(LegacyStream, ALeaseOfADestroyedPoolThatEndsInACaptureIsLeakedAndCounted) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::optional<block_lease> held = pool->claim(cudaStreamLegacy);
  keep_busy(*held, 7);
  pool.reset();
  capture captured{blocking, cudaStreamCaptureModeGlobal};
  held.reset();
  EXPECT_EQ(worker->stats().leaked, 1u);
  EXPECT_EQ(captured.end(), cudaSuccess);
  flag.raise();
}

}  // namespace
}  // namespace escrow::test
