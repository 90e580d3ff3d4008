// SPDX-License-Identifier: Apache-2.0
// Scratch memory, a pool for each size. What is idle for a stream makes room for its other sizes,
// and comes back; and the errors of scratch pools and their claimers.
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class Scratch : public pool_world {
 protected:
  /// Errors name the function that was called, and the pool as its owner knows it.
  template <class Exception>
  void expect_claim_fails(std::size_t bytes, cudaStream_t on,
                          std::vector<std::string> const& parts) {
    auto const claim = [&] { static_cast<void>(pool.claim(on, bytes)); };
    expect_error<Exception>(claim, {"scratch_pool::claim: "});
    expect_error<Exception>(claim, parts);
    EXPECT_EQ(message_of<Exception>(claim).find("resource_pool"), std::string::npos);
  }

  scratch_pool pool{{.slots_max = 1, .device = 0, .label = "scratch"}};
};

TEST_F(Scratch, MakesBlocksOfFurtherSizesWhenItsDeleterIsGone) {
  std::optional<deleter> its(std::in_place);
  scratch_pool made({.slots_max = 1, .device = 0, .deleter = &*its});
  static_cast<void>(made.claim(one, 256));
  its.reset();
  its.emplace();  // another one, in the same place
  static_cast<void>(made.claim(one, 4096));
  owned_graph const graph = captured_claim(made, 1'000'000);
  EXPECT_EQ(made.stats().bytes_in_graphs, scratch_pool::block_bytes(1'000'000));
  EXPECT_EQ(its->stats().in_graphs, 0U) << "it was given to the other deleter";
}

TEST_F(Scratch, GivesTheSameBlockAgainToItsStream) {
  void* const first = pool.claim(one, 1000)->data();
  EXPECT_EQ(pool.claim(one, 1024)->data(), first);
  EXPECT_NE(pool.claim(one, 1025)->data(), first);
  EXPECT_EQ(pool.bytes(), 1024U + 1280U);
}

TEST_F(Scratch, RefusesClaimsOfAnySizeOnceClosedOrAboveItsLargestBlock) {
  static_cast<void>(pool.claim(one, 1000));
  expect_claim_fails<usage_error>(scratch_pool::bytes_max + 1, one,
                                  {"`bytes` is 1099511627777", "scratch_pool::bytes_max"});
  EXPECT_TRUE(pool.close_for(generous).empty());
  expect_claim_fails<usage_error>(1000, one, {"\"scratch of 1024 bytes\" is closed", "claim befo"});
  expect_claim_fails<usage_error>(1025, one, {"\"scratch of 1280 bytes\" is closed", "claim befo"});
  EXPECT_TRUE(wait_until([&] { return pool.bytes() == 0; }));
}

TEST_F(Scratch, NamesTheCallIfThePoolIsExhaustedOrTheStreamCannotBeClaimedOn) {
  {
    auto const held = pool.claim(one, 256);
    expect_claim_fails<pool_exhausted>(1, one, {"all 1 slots of \"scratch of 256 bytes\" are out"});
  }
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    invalidate(one);
    expect_claim_fails<usage_error>(256, one, {"`stream`"});
  }
  owned_stream const blocking = make_stream(cudaStreamDefault);
  {
    capture captured{blocking, cudaStreamCaptureModeRelaxed};
    expect_claim_fails<usage_error>(256, cudaStreamLegacy, {"`stream`"});
    EXPECT_TRUE(captured.is_active());
  }
}

using ScratchClaimer = pool_world;

TEST_F(ScratchClaimer, OrStreamThatOutlivesThePoolMakesRoomForItsClaimsOfOtherSizes) {
  for (bool const is_lasting : {false, true}) {
    scratch_pool pool(with(options(8), &pool_options::streams_outlive_pool, is_lasting),
                      {.bytes_max = 4096});
    std::optional<scratch_claimer> local;
    if (!is_lasting) local.emplace(pool.on(one));
    for (std::size_t const bytes : {4096U, 2048U, 1024U})
      EXPECT_EQ((local ? local->claim(bytes) : pool.claim(one, bytes))->size(), bytes);
    EXPECT_EQ(pool.claim(one, 4096)->size(), 4096U);
  }
}

TEST_F(ScratchClaimer, GivesBackSizesItUsesNoMoreAtItsNextClaim) {
  scratch_pool pool(options(8));
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  EXPECT_EQ(pool.stats().bytes_idle, 4096U);
  EXPECT_EQ(pool.stats().bytes_in_use, 0U);
  sync(one);
  EXPECT_EQ(pool.trim(), 0U);
  { auto held = local.claim(1024); }
  sync(one);
  EXPECT_EQ(pool.trim(), 4096U);
}

TEST_F(ScratchClaimer, ServesEachSize) {
  scratch_pool pool(options(8));
  scratch_claimer local = pool.on(one);
  void* const first = local.claim(1000)->data();
  void* const second = local.claim(5000)->data();
  EXPECT_EQ(local.claim(1000)->data(), first);
  EXPECT_EQ(local.claim<int>(1250).data(), second);
  local.flush();
  sync(one);
  EXPECT_GT(pool.trim(), 0U);
  EXPECT_EQ(pool.bytes(), 0U);
}

TEST_F(ScratchClaimer, GivesBackAtItsNextCallAfterAClaimThatFoundNoRoom) {
  scratch_pool pool(options(8), {.bytes_max = 4096});
  scratch_claimer local = pool.on(one);
  { auto held = local.claim(4096); }
  EXPECT_THROW(static_cast<void>(pool.claim(two, 2048)), pool_exhausted);
  { auto held = local.claim(4096); }
  sync(one);
  EXPECT_EQ(pool.claim(two, 2048)->size(), 2048U);
}

TEST_F(ScratchClaimer, GivesAlsoWhatAnotherOfItsStreamKeepsOfTheSameSize) {
  scratch_pool pool(options(8), {.bytes_max = 4096});
  scratch_claimer local = pool.on(one);
  scratch_claimer other = pool.on(one);
  other.claim(2048).release();
  EXPECT_EQ(pool.stats().bytes_unrecorded, 2048U);
  EXPECT_THROW(static_cast<void>(pool.claim(two, 4096)), pool_exhausted);
  local.claim(2048).release();  // gets what it gives, and gives it again
  EXPECT_EQ(pool.stats().bytes_unrecorded, 0U);
  sync(one);
  EXPECT_EQ(pool.claim(two, 4096)->size(), 4096U);
}

TEST_F(ScratchClaimer, EndsWithWhatALeaseOfTheOneBeforeItReleases) {
  scratch_pool pool(options(8));
  std::optional<scratch_claimer> local = pool.on(one);
  std::optional held = local->claim(4096);
  local.reset();
  local.emplace(pool.on(one));
  for (std::size_t const bytes : {1U, 1024U, 2048U}) local->claim(bytes).release();
  held.reset();
  local.reset();
  EXPECT_EQ(pool.stats().bytes_unrecorded, 0U);
}

TEST_F(ScratchClaimer, RecordsWhatACaptureDeferredInAllSizes) {
  for (bool const is_flushed : {false, true}) {
    scratch_pool pool(options(1));
    scratch_claimer local = pool.on(one);
    local.claim(5000).release();
    auto held = pool.claim(two, 1000);
    static_cast<void>(captured_plainly([&](cudaStream_t on) { held.release(on); }));
    ASSERT_TRUE(drained());
    EXPECT_EQ(pool.stats().bytes_in_use, 1024U);
    if (is_flushed) local.flush();
    if (!is_flushed) local.claim(5000).release();
    EXPECT_EQ(pool.stats().bytes_in_use, 0U);
  }
}

TEST_F(ScratchClaimer, OfThePerThreadStreamIsOfItsThreadAlsoInASharingGroup) {
  pool_options given = options(8);
  given.group.emplace();
  scratch_pool pool(given);
  owned_graph const first = captured_claim(pool, 1000);
  scratch_claimer local = pool.on(cudaStreamPerThread);
  std::thread([&] {
    capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { return local.claim(1000); },
                              {"cudaStreamPerThread", "on each thread"});
    must(captured.end());
  }).join();
}

TEST_F(ScratchClaimer, OfThePerThreadStreamIsOfItsDeviceAlsoInASharingGroup) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  pool_options given = options(8);
  given.group.emplace();
  scratch_pool pool(given);
  scratch_claimer local = pool.on(cudaStreamPerThread);
  static_cast<void>(local.claim(1000));
  device_scope const other(1);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
  EXPECT_EQ(local.claim(1000)->size(), 1024U);
  EXPECT_EQ(pool.stats().bytes_in_graphs, 0U);
  must(captured.end());
}

TEST_F(ScratchClaimer, NamesTheCallInErrors) {
  scratch_pool pool(options(1));
  scratch_claimer made = pool.on(one);
  scratch_claimer local = std::move(made);
  auto const claim = [](scratch_claimer& from, std::size_t bytes) {
    return [&from, bytes] { static_cast<void>(from.claim(bytes)); };
  };
  std::string const call = "scratch_claimer::claim: ";
  expect_error<usage_error>([&] { made.flush(); },
                            {"scratch_claimer::flush: ", "moved"});  // NOLINT
  expect_error<usage_error>(claim(made, 1), {call, "moved"});        // NOLINT: moved from
  expect_error<usage_error>(claim(local, scratch_pool::bytes_max + 1), {call, "bytes"});
  auto const held = local.claim(1000);
  expect_error<pool_exhausted>(claim(local, 1000), {call, "all 1 slots"});
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { local.flush(); }, {"scratch_claimer::flush: ", "captured"});
    must(captured.end());
  }
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds(0)).size(), 1U);
  expect_error<usage_error>(claim(local, 1000), {call, "closed"});
  expect_error<usage_error>(claim(local, 5000), {call, "closed"});
  expect_error<usage_error>([&] { return pool.on(two); }, {"scratch_pool::on: ", "closed"});
}

}  // namespace
}  // namespace escrow::test
