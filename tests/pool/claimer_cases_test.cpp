// Claimers in the cases where a slot could be lost, kept for ever, or handed out too early: what is
// idle is found by claims for its stream, one event for many slots holds back each, and their
// stream may be destroyed before them.
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

class IdleOfAClaimer : public pool_world {};

// A release on another thread may come after the claim has looked there, as this one does.
TEST_F(IdleOfAClaimer, IsFoundByItsClaimThatBeganBeforeTheRelease) {
  bool is_limited = false;
  std::optional<block_lease> held;
  block_pool pool(options(4), [&] {
    if (is_limited) {
      held.reset();
      throw std::runtime_error("no more");
    }
    return block{counts};
  });
  block_claimer local = pool.on(one);
  held = local.claim();
  is_limited = true;
  EXPECT_EQ(local.claim()->number(), 0);
}

TEST_F(IdleOfAClaimer, IsFoundByAllClaimsForItsStreamThatFindNothingElse) {
  block_pool pool = make_pool(4);
  block_claimer local = pool.on(one);
  block_claimer second = pool.on(one);
  std::vector<block_lease> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(pool.claim(two));
  for (int i = 0; i < 2; ++i) static_cast<void>(local.claim());
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  hold_up(one);
  { block_lease found = second.claim(); }
  { block_lease found = pool.claim(one); }
  EXPECT_FALSE(is_idle(one));
  EXPECT_EQ(made(), 4);
}

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

class InACapture : public pool_world {};

// Nothing may be recorded, however often others ask.
TEST_F(InACapture, NoCallOfAClaimerOrItsLeasesRecords) {
  block_pool pool = make_pool(with(options(4), &pool_options::unrecorded_max, 1));
  for (auto const mode : all_capture_modes) {
    std::optional<block_claimer> local = pool.on(one);
    std::optional<block_lease> eager = local->claim();
    for (int i = 0; i < 2; ++i) static_cast<void>(local->claim());
    EXPECT_EQ(pool.stats().unrecorded, 1U);
    capture captured{one, mode};
    EXPECT_TRUE(pool.try_claim(two).has_value());
    std::optional<block_lease> mine = local->claim();
    for (int i = 0; i < 3; ++i) static_cast<void>(pool.try_claim(two));
    mine.reset();
    eager->release(one.get());
    local.reset();
    EXPECT_TRUE(captured.is_active());
    EXPECT_EQ(pool.stats().deferred, 2U);
    must(captured.end());
    EXPECT_TRUE(pool.try_claim(one).has_value());
    EXPECT_EQ(pool.stats().deferred, 0U);
    captured.graph().reset();
    EXPECT_TRUE(leaves_graphs(pool));
  }
}

class CoveredSlots : public pool_world {};

// The event is shared: the wait of one for its slot leaves the others'.
TEST_F(CoveredSlots, AreEachHandedOutOnlyAfterTheirWork) {
  block_pool pool = make_pool(4);
  std::vector<block_lease> leases;
  {
    block_claimer local = pool.on(one);
    while (leases.size() < 4) leases.push_back(local.claim());
    for (block_lease& each : leases) keep_busy(each, one);
    leases.clear();
  }
  for (cudaStream_t const stream : {two.get(), three.get(), two.get()}) {
    leases.push_back(pool.claim(stream));
    check(leases.back(), stream, 7, mismatches);
  }
  EXPECT_TRUE(stays_false([&] { return is_idle(two) || is_idle(three); }));
  capture captured{three, cudaStreamCaptureModeRelaxed};
  EXPECT_FALSE(pool.try_claim(three).has_value()) << "a capture gets what is done";
  must(captured.end());
  flag.raise();
}

class ClaimerEdges : public pool_world {};

TEST_F(ClaimerEdges, AClosedPoolGetsEachSlotAtItsRelease) {
  block_pool pool = make_pool(16);
  block_claimer local = pool.on(one);
  std::vector<block_lease> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(local.claim());
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds(0)).size(), 1U);
  leases.clear();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
  EXPECT_TRUE(pool.close_for(generous).empty());
}

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
// pool_options::check_streams: a stream that was destroyed before its claimer is noticed. CUDA
// crashes in calls with a destroyed stream whose handle no other stream has (measured).
class DestroyedStream : public pool_world {
 protected:
  DestroyedStream() { errors_expected = true; }
  [[nodiscard]] pool_options checking() {
    return with(options(4), &pool_options::check_streams, true);
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
    stream.reset();
    expect_error<usage_error>([&] { return local.claim(); }, {"claimer::claim", "destroyed"});
    expect_error<usage_error>([&] { local.flush(); }, {"claimer::flush", "destroyed"});
    expect_error<usage_error>([&] { plain.release(); }, {"lease::release", "destroyed"});
    expect_error<usage_error>([&] { shared.release(); }, {"lease::release", "destroyed"});
    EXPECT_TRUE(plain && shared);
  }
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_EQ(errors->size(), 2U) << errors->all();
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
    stream.reset();
    if (is_lasting) {
      EXPECT_TRUE(pool.try_claim(one).has_value());
    }
  }
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_NE(errors->all().find("destroyed"), std::string::npos) << errors->all();
}

TEST_F(DestroyedStream, WhoseHandleIsReusedIsAnother) {
  lost = 1;
  {
    block_pool pool = make_pool(checking());
    block_claimer local = pool.on(stream);
    { block_lease used = local.claim(); }
    cudaStream_t const old = stream.get();
    stream.reset();
    stream = make_stream();
    if (stream.get() != old) GTEST_SKIP() << "it is not reused";
    expect_error<usage_error>([&] { return local.claim(); }, {"destroyed"});
  }
  EXPECT_EQ(worker->stats().leaked, 1U);
}

TEST_F(DestroyedStream, IsNotAskedAboutIfAClaimerEndsBeforeIt) {
  errors_expected = false;
  block_pool pool = make_pool(checking());
  std::optional<block_claimer> local = pool.on(stream);
  std::optional<block_lease> held = local->claim();
  local.reset();
  held.reset();
  stream.reset();
  EXPECT_TRUE(pool.try_claim(one).has_value());
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
