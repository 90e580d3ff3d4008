// Leases and captures that do not belong together: clear errors, nothing handed out early, and no
// capture harmed.
#include <thread>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class CaptureMisuse : public captured_pool_test {
 protected:
  owned_stream stream = make_stream();
  owned_stream other = make_stream();
};

TEST_F(CaptureMisuse, AnEagerLeaseReleasedInACaptureIsHeldByTheGraphAndRecordedAfterwards) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  held.release();
  EXPECT_FALSE(held);
  EXPECT_TRUE(captured.is_active());
  EXPECT_FALSE(pool.try_claim(stream).has_value());
  EXPECT_EQ(pool.stats().deferred, 1u);
  EXPECT_EQ(captured.end(), cudaSuccess);
  EXPECT_FALSE(pool.try_claim(stream).has_value()) << "the graph holds it";
  EXPECT_EQ(pool.stats().deferred, 0u);
  captured.graph().reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CaptureMisuse, AnEagerLeaseThatEndsInACaptureHarmsNothingAndComesBack) {
  block_pool pool = make_pool(1);
  capture captured{other, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(stream);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  }
  EXPECT_TRUE(captured.is_active());
  owned_graph graph;
  EXPECT_EQ(cudaStreamEndCapture(stream, graph.out()), cudaSuccess);
  EXPECT_EQ(captured.end(), cudaSuccess);
  graph.reset();
  EXPECT_FALSE(is_back(pool)) << "nothing was recorded";
  EXPECT_TRUE(pool.try_claim(stream).has_value());
}

TEST_F(CaptureMisuse, ALeaseOfOneCaptureReleasedInAnotherIsHeldByBothGraphs) {
  block_pool pool = make_pool(1);
  capture first{stream, cudaStreamCaptureModeRelaxed};
  capture second{other, cudaStreamCaptureModeRelaxed};
  block_lease held = pool.claim(stream);
  held.release(other.get());
  EXPECT_TRUE(first.is_active());
  EXPECT_TRUE(second.is_active());
  EXPECT_EQ(first.end(), cudaSuccess);
  EXPECT_EQ(second.end(), cudaSuccess);
  first.graph().reset();
  EXPECT_FALSE(pool.try_claim(other).has_value());
  EXPECT_EQ(counts.destroyed.load(), 0);
  second.graph().reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CaptureMisuse, ALeaseClaimedBeforeIsNotTakenIntoACapture) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  {
    capture captured{other, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(held.record_stream(other), usage_error);
    EXPECT_TRUE(captured.is_active());
  }
  held.release();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CaptureMisuse, ACapturedLeaseIsNotUsedOutsideItsCapture) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  EXPECT_THROW(held.record_stream(other), usage_error);
  EXPECT_TRUE(held);
  held.release();
  EXPECT_TRUE(pool.try_claim(stream).has_value());
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(CaptureMisuse, AClaimOnAnInvalidatedCaptureSaysSo) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  invalidate(stream);
  auto const expect_refusal = [](std::string const& name, std::function<void()> const& call) {
    std::string const text = message_of<usage_error>(call);
    EXPECT_EQ(text.find("resource_pool::" + name + ":"), 0U) << text;
    EXPECT_NE(text.find("invalidated"), std::string::npos) << text;
  };
  expect_refusal("claim", [&] { static_cast<void>(pool.claim(stream)); });
  expect_refusal("try_claim", [&] { static_cast<void>(pool.try_claim(stream)); });
  expect_refusal("try_claim_for", [&] { static_cast<void>(pool.try_claim_for(stream, generous)); });
  EXPECT_EQ(made(), 0);
}

TEST_F(CaptureMisuse, AClaimThatWaitsSaysSoWhenItsCaptureIsInvalidated) {
  block_pool pool = make_pool(1);
  block_lease const held = pool.claim(other);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  std::thread somebody([&] {
    EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
    invalidate(stream);
  });
  std::string const text =
      message_of<usage_error>([&] { static_cast<void>(pool.try_claim_for(stream, generous)); });
  somebody.join();
  EXPECT_NE(text.find("invalidated"), std::string::npos) << text;
}

TEST_F(CaptureMisuse, ALeaseReleasedOnAnInvalidatedCaptureComesBackWhenItsStreamIsGivenAgain) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  invalidate(stream);
  EXPECT_NO_THROW(held.release());
  EXPECT_NE(captured.end(), cudaSuccess);
  EXPECT_FALSE(is_back(pool)) << "CUDA does not say which capture was invalidated";
  EXPECT_TRUE(pool.try_claim(stream).has_value());
}

TEST_F(CaptureMisuse, ALeaseThatOutlivesItsInvalidatedCaptureComesBackAtItsRelease) {
  block_pool pool = make_pool(1);
  std::optional<capture> captured;
  captured.emplace(stream, cudaStreamCaptureModeGlobal);
  block_lease held = pool.claim(stream);
  invalidate(stream);
  EXPECT_NE(captured->end(), cudaSuccess);
  captured.reset();
  EXPECT_FALSE(is_back(pool));
  held.release();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(CaptureMisuse, AnEagerLeaseReleasedWhileItsStreamsCaptureIsInvalidatedComesBack) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    invalidate(stream);
    EXPECT_NO_THROW(held.release());
    EXPECT_FALSE(held);
  }
  EXPECT_TRUE(pool.try_claim(stream).has_value());
}

TEST_F(CaptureMisuse, TheLegacyStreamIsRefusedWhileABlockingStreamCapturesAndWorksAfterwards) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  block_pool pool = make_pool(2);
  block_lease held = pool.claim(cudaStreamLegacy);
  {
    capture captured{blocking, cudaStreamCaptureModeGlobal};
    for (std::function<void()> const& call :
         {std::function<void()>([&] { static_cast<void>(pool.claim(cudaStreamLegacy)); }),
          std::function<void()>([&] { held.record_stream(cudaStreamLegacy); })}) {
      std::string const text = message_of<usage_error>(call);
      EXPECT_NE(text.find("legacy"), std::string::npos) << text;
      EXPECT_TRUE(captured.is_active());
    }
    library_work(pool, blocking, 1, mismatches);
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  ASSERT_TRUE(held);
  held.release();
  EXPECT_EQ(pool.claim(cudaStreamLegacy)->number(), 0);
}

TEST_F(CaptureMisuse, AStreamOfALeaseThatBeginsToCaptureIsRecordedOnAfterwards) {
  block_pool pool = make_pool(2);
  block_lease held = pool.claim(stream);
  held.record_stream(other);
  capture captured{other, cudaStreamCaptureModeGlobal};
  // An event recorded now would be the capture's, and asking about it later would invalidate it.
  held.release();
  EXPECT_TRUE(captured.is_active());
  EXPECT_EQ(pool.stats().deferred, 1u);
  owned_stream const third = make_stream();
  pool.claim(third).release();
  EXPECT_TRUE(captured.is_active());
  EXPECT_EQ(captured.end(), cudaSuccess);
  static_cast<void>(pool.claim(other));
  EXPECT_EQ(pool.stats().deferred, 0u);
}

TEST_F(CaptureMisuse, AThreadsOwnStreamInACaptureIsNotMistakenForAnotherThreads) {
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  order(stream, cudaStreamPerThread);
  block_lease held = pool.claim(stream);
  int const number = held->number();
  held.record_stream(cudaStreamPerThread);
  must(launch_tiny(cudaStreamPerThread));
  std::thread{[&] {
    try {
      held.release();
    } catch (usage_error const&) {
      // As good: the release says that it cannot be done on this thread.
    }
  }}.join();
  // The branch was not joined, so its slot is not free for the origin stream.
  EXPECT_NE(pool.claim(stream)->number(), number);
  order(cudaStreamPerThread, stream);
  if (held) held.release();
  EXPECT_EQ(captured.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
