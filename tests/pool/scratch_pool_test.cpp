// Scratch memory: sizes, reuse, captures, closing, and what its errors say.
#include "escrow/pool/scratch_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "handles.hpp"
#include "message_of.hpp"
#include "status.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

TEST(ScratchPool, GivesAtLeastWhatWasAskedForAndLessThanTwice) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{256}, std::size_t{257},
                                  std::size_t{4096}, std::size_t{1'000'000}}) {
    auto const block = pool.claim(stream.get(), bytes);
    EXPECT_GE(block->size(), bytes);
    EXPECT_LE(block->size(), std::max(2 * bytes - 1, scratch_pool::bytes_min));
    EXPECT_EQ(cudaMemsetAsync(block->data(), 1, bytes, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST(ScratchPool, GivesTheSameBlockAgainToItsStream) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  void* const first = pool.claim(stream.get(), 1000)->data();
  EXPECT_EQ(pool.claim(stream.get(), 1024)->data(), first);
  EXPECT_NE(pool.claim(stream.get(), 1025)->data(), first);
  EXPECT_EQ(pool.bytes(), 1024U + 2048U);
}

TEST(ScratchPool, LeavesABlockWithTheGraphThatUsesIt) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  capture captured{stream, cudaStreamCaptureModeGlobal};
  { auto const block = pool.claim(stream.get(), 4096); }
  ASSERT_EQ(captured.end(), cudaSuccess);
  auto const holders = pool.close_for(std::chrono::milliseconds(1));
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_NE(holders.front().capture_id, 0U);
  EXPECT_NE(holders.front().label.find("4096"), std::string::npos);
  captured.graph().reset();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST(ScratchPool, RefusesClaimsOfAnySizeOnceClosed) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  { auto const block = pool.claim(stream.get(), 1000); }
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), 1000)), usage_error);
  EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), 1'000'000)), usage_error);
  EXPECT_EQ(pool.bytes(), 0U);
}

TEST(ScratchPool, RefusesMoreThanItsLargestBlock) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), scratch_pool::bytes_max + 1)),
               usage_error);
}

// Errors name the function that was called, the pool as its owner knows it, and what is wrong.
class ScratchErrors : public ::testing::Test {
 protected:
  template <class Exception>
  void expect_claim_fails(std::size_t bytes, cudaStream_t on,
                          std::initializer_list<char const*> parts) {
    std::string const text =
        message_of<Exception>([&] { static_cast<void>(pool.claim(on, bytes)); });
    EXPECT_EQ(text.find("scratch_pool::claim: "), 0U) << text;
    for (char const* const part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(text.find("resource_pool"), std::string::npos) << text;
  }

  owned_stream stream = make_stream();
  scratch_pool pool{{.slots_max = 1, .device = 0, .label = "scratch"}};
};

TEST_F(ScratchErrors, NameTheCallAndThePoolForAStreamOfAnotherDevice) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  owned_stream other;
  {
    device_scope const there(1);
    other = make_stream();
  }
  expect_claim_fails<usage_error>(300, other,
                                  {"`stream` is not of device 0", "\"scratch of 512 bytes\"",
                                   "use a pool of the stream's device"});
}

TEST_F(ScratchErrors, NameTheCallAndThePoolOnceItIsClosedForSizesThatItHadAndOthers) {
  static_cast<void>(pool.claim(stream.get(), 1000));
  EXPECT_TRUE(pool.close_for(generous).empty());
  expect_claim_fails<usage_error>(1000, stream,
                                  {"\"scratch of 1024 bytes\" is closed", "claim before"});
  expect_claim_fails<usage_error>(1025, stream,
                                  {"\"scratch of 2048 bytes\" is closed", "claim before"});
}

TEST_F(ScratchErrors, NameTheCallAndThePoolThatIsExhausted) {
  auto const held = pool.claim(stream.get(), 256);
  expect_claim_fails<pool_exhausted>(1, stream,
                                     {"all 1 slots of \"scratch of 256 bytes\" are out"});
}

TEST_F(ScratchErrors, NameTheCallForMoreThanTheLargestBlock) {
  expect_claim_fails<usage_error>(scratch_pool::bytes_max + 1, stream,
                                  {"`bytes` is 1099511627777", "scratch_pool::bytes_max"});
}

TEST_F(ScratchErrors, NameTheCallInACaptureThatIsInvalid) {
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  EXPECT_NE(cudaDeviceSynchronize(), cudaSuccess);  // which invalidates it
  expect_claim_fails<usage_error>(256, stream, {"`stream`"});
}

TEST_F(ScratchErrors, NameTheCallOnTheLegacyStreamWhileABlockingStreamCaptures) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  capture captured{blocking, cudaStreamCaptureModeRelaxed};
  expect_claim_fails<usage_error>(256, cudaStreamLegacy, {"`stream`"});
  EXPECT_TRUE(captured.is_active());
}

}  // namespace
}  // namespace escrow::test
