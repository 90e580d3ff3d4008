// No idle slot is overlooked: a claim throws pool_exhausted, or waits for work, only if there is
// none.
#include <optional>
#include <thread>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class NoSlotOverlooked : public captured_pool_test {};

TEST_F(NoSlotOverlooked, BehindManyBusyStreams) {
  // A GPU has few hardware queues: a stream that shares one with a blocked stream waits, too.
  std::size_t const busy = is_simulated() ? 48 : 3;
  for (std::size_t const idle : {std::size_t{0}, busy / 2, busy - 1}) {
    pinned_flag flag;
    int const before = made();
    std::vector<owned_stream> streams(busy);
    block_pool pool = make_pool(busy);
    std::vector<block_lease> leases;
    for (owned_stream& stream : streams) {
      stream = make_stream();
      leases.push_back(pool.claim(stream));
    }
    for (std::size_t i = 0; i < busy; ++i) {
      if (i != idle) must(launch_wait_flag(streams[i], flag.get()));
      leases[i].release();
    }
    sync(streams[idle]);
    owned_stream const eager = make_stream();
    EXPECT_EQ(pool.claim(eager)->number(), before + static_cast<int>(idle));
    EXPECT_EQ(pool.stats().stream_waits, 0u);
    owned_stream const captured_stream = make_stream();
    capture captured{captured_stream, cudaStreamCaptureModeGlobal};
    EXPECT_TRUE(pool.try_claim(captured_stream).has_value());
    must(captured.end());
    flag.raise();
    for (owned_stream const& stream : streams) sync(stream);
  }
}

TEST_F(NoSlotOverlooked, ThatAGraphReturnsBehindABusyOneOfItsStream) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(2);
  owned_graph graph;
  {
    capture captured{stream, cudaStreamCaptureModeRelaxed};
    block_lease first = pool.claim(stream);
    must(captured.end());
    graph = std::move(captured.graph());
    block_lease second = pool.claim(stream);
    first.release();
    sync(stream);
    must(launch_wait_flag(stream, flag.get()));
    second.release();
  }
  graph.reset();
  ASSERT_TRUE(drained());
  {
    capture captured{other, cudaStreamCaptureModeGlobal};
    EXPECT_TRUE(pool.try_claim(other).has_value());
  }
  flag.raise();
  sync(stream);
}

TEST_F(NoSlotOverlooked, WhoseWarmUpOnTheStreamThatIsCapturedNextIsStillRunning) {
  pinned_flag flag;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
  }
  std::thread raising([&] {
    EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
    flag.raise();
  });
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  raising.join();
  must(captured.end());
}

TEST_F(NoSlotOverlooked, AndAClaimInACaptureDoesNotWaitForLeases) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  block_lease const held = pool.claim(other);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_THROW(static_cast<void>(pool.claim(stream)), pool_exhausted);
  EXPECT_EQ(pool.stats().host_waits, 0u);
}

TEST_F(NoSlotOverlooked, AfterAStreamGivenToRecordStreamWasDestroyedTooEarly) {
  if (!is_simulated()) GTEST_SKIP() << "CUDA crashes";
  errors_expected = true;
  lost = 1;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(stream);
    owned_stream gone = make_stream();
    held.record_stream(gone);
    gone.reset();
  }
  EXPECT_EQ(errors->size(), 1u) << errors->all();
  EXPECT_EQ(worker->stats().leaked, 1u);
  EXPECT_TRUE(pool.try_claim(stream).has_value()) << "the pool makes another in its place";
}

}  // namespace
}  // namespace escrow::test
