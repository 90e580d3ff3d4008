// SPDX-License-Identifier: Apache-2.0
// Claimers beside what else there is: another current device, closed pools, leases of others,
// nodes, and streams that are destroyed before them.
#include <stdexcept>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

class CallerState : public pool_world {};

TEST_F(CallerState, StaysAsItWasAfterEachCallOfAClaimer) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  for (cudaStream_t const stream : {one.get(), cudaStreamLegacy}) {
    block_pool pool = make_pool(4);
    std::optional<block_claimer> local = pool.on(stream);
    std::optional<block_lease> held;
    int const before = made();
    {
      device_scope const other(1);
      auto const claim = [&] { held = local->claim(); };
      auto const release = [&] { held.reset(); };
      for (std::function<void()> const& call : std::vector<std::function<void()>>{
               claim, release, claim, release, [&] { local->flush(); }, claim, release,
               [&] { local.reset(); }}) {
        call();
        EXPECT_EQ(current_device(), 1);
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        EXPECT_EQ(thread_mode(), cudaStreamCaptureModeGlobal);
      }
    }
    EXPECT_EQ(pool.claim(stream)->number(), before) << "the only one of its pool";
  }
}

TEST_F(CallerState, AStreamOfAnotherDeviceTakesNoShareOfWhatMayBeIdle) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  block_pool pool = make_pool(with(options(2), &pool_options::streams_outlive_pool, true));
  owned_stream const elsewhere = make_stream_of(1);
  expect_error<usage_error>([&] { return pool.claim(elsewhere); }, {"device"});
  pool.claim(one).release();
  EXPECT_EQ(pool.stats().unrecorded, 1U);
}

class ClaimerEdges : public pool_world {};

TEST_F(ClaimerEdges, DoesNotKeepWhatALeaseOfAnEarlierOneReleases) {
  block_pool pool = make_pool(8);
  std::optional<block_claimer> earlier = pool.on(one);
  std::optional<block_lease> held = earlier->claim();
  keep_busy(*held, one);
  earlier.reset();
  block_claimer local = pool.on(two);
  { block_lease its = local.claim(); }
  held.reset();
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  EXPECT_EQ(local.claim()->number(), 1) << "of another stream, without a wait";
}

TEST_F(ClaimerEdges, ALeaseOfANodeGoesBackWithItsGraph) {
  block_pool pool = make_pool(8);
  block_claimer local = pool.on(one);
  std::optional<block_lease> held = local.claim();
  slot_share share = held->share_with_node();
  held.reset();
  EXPECT_EQ(local.claim()->number(), 1) << "a node has the first";
}

#ifdef ESCROW_TEST_RUNTIME_SIM
// pool_options::check_streams: a stream that was destroyed before its claimer is noticed if another
// has its handle. CUDA crashes in calls with a handle that no stream has (measured).
class DestroyedStream : public pool_world {
 protected:
  DestroyedStream() { errors_expected = true; }
  [[nodiscard]] pool_options checking() {
    return with(options(4), &pool_options::check_streams, true);
  }
  /// Another stream gets its handle.
  void destroy() {
    cudaStream_t const handle = stream.get();
    stream.reset();
    stream = make_stream();
    EXPECT_EQ(stream, handle);
  }
  owned_stream stream = make_stream();
};

TEST_F(DestroyedStream, IsRefusedByClaimsAndReleases) {
  lost = 2;
  {
    block_pool pool = make_pool(checking());
    block_claimer local = pool.on(stream);
    block_lease plain = local.claim();
    block_lease shared = local.claim();
    shared.record_stream(one);
    destroy();
    expect_error<usage_error>([&] { return local.claim(); }, {"claimer::claim", "destroyed"});
    expect_error<usage_error>([&] { local.flush(); }, {"claimer::flush", "destroyed"});
    expect_error<usage_error>([&] { plain.release(); }, {"lease::release", "destroyed"});
    expect_error<usage_error>([&] { shared.release(); }, {"lease::release", "destroyed"});
    EXPECT_TRUE(plain && shared);
  }
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_EQ(errors->size(), 2U) << errors->all();
}

TEST_F(DestroyedStream, IsRefusedByReleasesOfOtherLeases) {
  lost = 1;
  {
    block_pool pool = make_pool(checking());
    block_lease held = pool.claim(stream);
    destroy();
    expect_error<usage_error>(
        [&] { held.release(); },
        {"lease::release", "the stream of a lease of \"blocks\" was destroyed"});
    EXPECT_TRUE(held);
  }
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(errors->size(), 1U) << errors->all();
}

TEST_F(DestroyedStream, LeaksWithAReportWhatIsKeptForIt) {
  lost = 2;
  for (bool const is_lasting : {false, true}) {  // or a claimer's
    pool_options given = checking();
    given.streams_outlive_pool = is_lasting;
    stream = make_stream();
    block_pool pool = make_pool(given);
    std::optional<block_claimer> local;
    if (!is_lasting) local.emplace(pool.on(stream));
    static_cast<void>(local ? local->claim() : pool.claim(stream));
    EXPECT_EQ(pool.stats().unrecorded, 1U);
    destroy();
    if (is_lasting) {
      EXPECT_TRUE(pool.try_claim(one).has_value());
    }
  }
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_NE(errors->all().find("destroyed"), std::string::npos) << errors->all();
}

// The release fails before it can tell.
TEST_F(DestroyedStream, IsReportedAlsoWhereTheReleaseFailsForAnotherReason) {
  lost = 1;
  {
    block_pool pool = make_pool(checking());
    block_claimer local = pool.on(stream);
    std::optional<block_lease> held = local.claim();
    destroy();
    for (char const* const each : {"cudaStreamGetId", "cudaStreamIsCapturing"})
      sim::fail_call_here(each, cudaErrorUnknown, 1, 2);
    held.reset();
    sim::clear_faults();
  }
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(errors->size(), 2U) << errors->all();
  EXPECT_NE(errors->all().find("lease::~lease"), std::string::npos) << errors->all();
  EXPECT_NE(errors->all().find("destroyed"), std::string::npos) << errors->all();
}

// Asking a capturing stream for its id would invalidate the capture.
TEST_F(DestroyedStream, IsNotAskedForWhileItCaptures) {
  errors_expected = false;
  for (auto const mode : all_capture_modes) {
    block_pool pool = make_pool(checking());
    std::optional<block_claimer> local = pool.on(stream);
    for (int i = 0; i < 2; ++i) static_cast<void>(local->claim());
    block_lease eager = local->claim();
    capture captured{stream, mode};
    { block_lease held = local->claim(); }
    EXPECT_TRUE(captured.is_active());
    eager.release();
    EXPECT_TRUE(captured.is_active());
    local.reset();
    EXPECT_TRUE(captured.is_active());
    must(captured.end());
    EXPECT_TRUE(pool.try_claim(stream).has_value());
    captured.graph().reset();
    EXPECT_TRUE(leaves_graphs(pool));
  }
}

// Their ids are others on each device, and on each thread.
TEST_F(DestroyedStream, IsNotTheNullStreamOrThatOfAThread) {
  errors_expected = false;
  block_pool pool = make_pool(checking());
  std::optional<block_claimer> null = pool.on(cudaStream_t{});
  { block_lease used = null->claim(); }
  if (has_two_devices()) must(cudaSetDevice(1));
  { block_lease used = null->claim(); }
  null.reset();
  must(cudaSetDevice(0));
  std::optional<block_claimer> local = pool.on(cudaStreamPerThread);
  { block_lease used = local->claim(); }
  std::thread([&] { local.reset(); }).join();
  EXPECT_EQ(worker->stats().leaked, 0U);
  EXPECT_TRUE(pool.try_claim(cudaStreamPerThread).has_value());
  EXPECT_EQ(pool.stats().deferred, 0U);
}
#endif

}  // namespace
}  // namespace escrow::test
