// pool_options::check_streams: a stream that was destroyed before its claimer is noticed. CUDA
// crashes in calls with a destroyed stream whose handle no other stream has (measured).
#include <optional>
#include <string>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

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

TEST_F(DestroyedStream, LeaksWhatItsClaimerHasWithAReport) {
  lost = 2;
  {
    block_pool pool = make_pool(checking());
    block_claimer local = pool.on(stream);
    {
      block_lease first = local.claim();
      block_lease second = local.claim();
    }
    EXPECT_EQ(pool.stats().unrecorded, 2U);
    stream.reset();
  }
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_GE(errors->size(), 1U);
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

TEST_F(DestroyedStream, OfAnEmptyClaimerLeaksNothing) {
  errors_expected = false;
  block_pool pool = make_pool(checking());
  block_claimer local = pool.on(stream);
  { block_lease used = local.claim(); }
  local.flush();
  stream.reset();
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

TEST_F(DestroyedStream, ThatShouldHaveOutlivedThePoolIsReported) {
  lost = 1;
  {
    pool_options given = checking();
    given.streams_outlive_pool = true;
    block_pool pool = make_pool(given);
    pool.claim(stream).release();
    EXPECT_EQ(pool.stats().unrecorded, 1U);
    stream.reset();
    EXPECT_TRUE(pool.try_claim(one).has_value());
  }
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_NE(errors->all().find("destroyed"), std::string::npos) << errors->all();
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

}  // namespace
}  // namespace escrow::test
