// Claimers in the cases where a slot could be lost, kept for ever, or handed out too early: what is
// idle is found by claims for its stream, and one event for many slots holds back each.
#include <functional>
#include <memory>
#include <mutex>
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

TEST_F(IdleOfAClaimer, OfAllIsAtMostHalfOfTheSlotsAlsoIfTheyAreMadeOneByOne) {
  block_pool pool = make_pool(8);
  std::vector<owned_stream> streams;
  std::vector<block_claimer> locals;
  for (std::size_t i = 1; i <= 4; ++i) {
    locals.push_back(pool.on(streams.emplace_back(make_stream())));
    std::vector<block_lease> leases;
    while (leases.size() < 4) {
      auto found = locals.back().try_claim();
      if (!found) break;
      leases.push_back(std::move(*found));
    }
    while (!leases.empty()) leases.pop_back();
    EXPECT_LE(pool.stats().unrecorded, 4U) << i << " claimers";
  }
  EXPECT_TRUE(pool.try_claim(three).has_value());
  // What the first has too much, it gives to the others.
  for (int round = 0; round < 2; ++round) {
    for (block_claimer& each : locals) static_cast<void>(each.claim());
  }
  EXPECT_EQ(pool.stats().unrecorded, 4U);
  locals.clear();
  EXPECT_EQ(pool.stats().unrecorded, 0U);
}

class CallerState : public pool_world {};

TEST_F(CallerState, StaysAsItWasAfterEachCallOfAClaimer) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  for (bool const is_legacy : {false, true}) {
    block_pool pool = make_pool(4);
    cudaStream_t const stream = is_legacy ? cudaStreamLegacy : one.get();
    std::optional<block_claimer> local = pool.on(stream);
    std::optional<block_lease> held;
    auto const expect_same = [](char const* what) {
      int device = -1;
      must(cudaGetDevice(&device));
      EXPECT_EQ(device, 1) << what;
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << what;
      cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
      must(cudaThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(mode, cudaStreamCaptureModeGlobal) << what;
      must(cudaThreadExchangeStreamCaptureMode(&mode));
    };
    must(cudaSetDevice(1));
    held = local->claim();
    expect_same("claim");
    held.reset();
    expect_same("release");
    held = local->claim();
    held.reset();
    local->flush();
    expect_same("flush");
    held = local->claim();
    held.reset();
    local.reset();
    expect_same("end");
    must(cudaSetDevice(0));
    EXPECT_EQ(pool.claim(stream)->number(), is_legacy ? 1 : 0) << "the only one of its pool";
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

// Events that cover slots are shared: the wait of one for its slot leaves the others'.
class CoveredSlots : public pool_world {
 protected:
  /// So many slots, used behind the flag and covered by one event.
  void cover(block_pool& pool, std::size_t count) {
    block_claimer local = pool.on(one);
    std::vector<block_lease> leases;
    while (leases.size() < count) leases.push_back(local.claim());
    for (block_lease& each : leases) keep_busy(each, one);
    leases.clear();
  }
};

TEST_F(CoveredSlots, AreEachHandedOutOnlyAfterTheirWork) {
  block_pool pool = make_pool(4);
  cover(pool, 4);
  std::vector<block_lease> leases;
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

TEST_F(CoveredSlots, AreDestroyedAfterTheirWorkWithThePool) {
  {
    block_pool pool = make_pool(4);
    cover(pool, 3);
  }
  EXPECT_FALSE(drains_soon());
  EXPECT_EQ(counts.alive(), 3);
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_EQ(counts.alive(), 0);
}

TEST_F(CoveredSlots, WaitForTheEventOfTheirNextReleaseInstead) {
  pinned_flag second;
  block_pool pool = make_pool(1);
  cover(pool, 1);
  flag.raise();
  sync(one);
  {
    block_lease held = pool.claim(two);
    must(launch_wait_flag(two, second.get()));
    fill(held, two, 9);
  }
  block_lease next = pool.claim(three);
  check(next, three, 9, mismatches);
  EXPECT_TRUE(stays_busy(three));
  second.raise();
  sync(three);
}

TEST_F(CoveredSlots, OfAGraphAfterTheirWorkAreClaimedOnceItIsGone) {
  block_pool pool = make_pool(1);
  cover(pool, 1);
  flag.raise();
  sync(one);
  captured_use(pool).reset();
  EXPECT_TRUE(is_released(pool));
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

class OnThreads : public pool_world {};

// A claimer's leases end on another thread, while it claims, records, ends and is made again, and
// a third thread asks for what it has.
TEST_F(OnThreads, ClaimersGiveAwayLeasesThatOthersEnd) {
  constexpr int rounds = 400;
  for (bool const is_lasting : {false, true}) {
    pool_options given = options(6);
    given.streams_outlive_pool = is_lasting;
    given.host_wait_max = generous;
    block_pool pool = make_pool(given);
    std::mutex mutex;  // guards the next two
    std::vector<block_lease> given_away;
    bool is_over = false;
    std::jthread ending([&] {
      while (true) {
        std::vector<block_lease> taken;
        bool is_last = false;
        {
          std::lock_guard const lock(mutex);
          std::swap(taken, given_away);
          is_last = is_over;
        }
        if (taken.empty() && is_last) return;
        std::this_thread::yield();
      }
    });
    std::jthread other([&] {
      for (int i = 0; i < rounds; ++i) {
        if (auto found = pool.try_claim(two)) {
          fill(*found, two, i);
          check(*found, two, i, mismatches);
        }
      }
    });
    std::optional<block_claimer> local;
    for (int i = 0; i < rounds; ++i) {
      if (!is_lasting && i % 20 == 0) local.emplace(pool.on(one));
      block_lease held = local ? local->claim() : pool.claim(one);
      fill(held, one, i);
      check(held, one, i, mismatches);
      if (i % 7 == 0 && local) local->flush();
      if (i % 3 == 0) continue;
      std::lock_guard const lock(mutex);
      given_away.push_back(std::move(held));
    }
    {
      std::lock_guard const lock(mutex);
      is_over = true;
    }
    ending.join();
    other.join();
    local.reset();
    sync_all();
    EXPECT_EQ(pool.stats().leased, 0U);
    EXPECT_EQ(pool.stats().deferred, 0U);
  }
}

}  // namespace
}  // namespace escrow::test
