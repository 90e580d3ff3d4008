// Scratch memory: sizes, reuse, captures, and closing.
#include "escrow/pool/scratch_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>

#include "capturing.hpp"
#include "escrow/core/usage_error.hpp"
#include "handles.hpp"
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

}  // namespace
}  // namespace escrow::test
