// Claimers beside closed pools, ended claimers, nodes and captures: what random programs, and bugs
// that were planted, have led to.
#include <optional>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

class ClaimerEdges : public pool_world {};

TEST_F(ClaimerEdges, ThatChecksItsStreamHarmsNoCapture) {
  pool_options given = options(8);
  given.check_streams = true;
  block_pool pool = make_pool(given);
  block_claimer local = pool.on(one);
  std::optional<block_lease> eager = local.claim();
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    { block_lease held = local.claim(); }
    EXPECT_TRUE(captured.is_active());
    expect_error<usage_error>([&] { local.flush(); }, {"claimer::flush", "captured"});
    eager.reset();
    EXPECT_TRUE(captured.is_active());
    must(captured.end());
  }
  { block_lease held = local.claim(); }
  EXPECT_TRUE(leaves_graphs(pool));
}

// CUDA does not promise an answer for a destroyed stream.
TEST_F(ClaimerEdges, ThatChecksItsStreamFindsItsEnd) {
  pool_options given = options(8);
  given.check_streams = true;
  block_pool pool = make_pool(given);
  owned_stream destroyed = make_stream();
  std::optional<block_claimer> local = pool.on(destroyed.get());
  { block_lease held = local->claim(); }
  must(cudaStreamSynchronize(destroyed));
  destroyed.reset();
  expect_error<usage_error>([&] { static_cast<void>(local->claim()); }, {"destroyed"});
  expect_error<usage_error>([&] { local->flush(); }, {"destroyed"});
  local.reset();
  EXPECT_EQ(pool.stats().slots, 0U) << "leaked: whether its work is done is not known";
  lost = 1;
  errors_expected = true;
}

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

TEST_F(ClaimerEdges, OfAScratchPoolInAGroupIsRefusedAfterThePoolAlsoInACapture) {
  pool_options given = options(8);
  given.group = sharing_group();
  std::optional<scratch_pool> pool(std::in_place, given);
  scratch_claimer local = pool->on(one);
  { auto held = pool->claim(two, 5000); }  // of a size that the claimer does not keep
  pool.reset();
  EXPECT_TRUE(drained());
  capture captured{one, cudaStreamCaptureModeRelaxed};
  expect_error<usage_error>([&] { static_cast<void>(local.claim(1000)); }, {"closed"});
  EXPECT_TRUE(captured.is_active());
  must(captured.end());
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

}  // namespace
}  // namespace escrow::test
