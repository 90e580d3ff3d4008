// Claimers beside closed pools, leases of ended claimers, and nodes: what random programs, and bugs
// that were planted, have led to.
#include <optional>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using block_claimer = claimer<block>;

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

}  // namespace
}  // namespace escrow::test
