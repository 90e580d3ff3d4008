// A claim that recycles what a graph held destroys nothing of the user's.
#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class PoolEndInClaim : public captured_pool_test {};

TEST_F(PoolEndInClaim, IsLeftToTheWorker) {
  owned_stream const stream = make_stream();
  deleter polled{deleter_options{.own_worker = false}};
  pool_options chosen = options(1);
  chosen.deleter = &polled;
  {
    auto ended = std::make_unique<block_pool>(make_pool(chosen));
    block_pool other = make_pool(chosen);
    owned_graph graph = captured_work(*ended, stream);
    block_lease const only = other.claim(stream);
    ended.reset();
    graph.reset();
    EXPECT_FALSE(other.try_claim(stream).has_value());
    EXPECT_EQ(counts.destroyed.load(), 0);
    EXPECT_TRUE(polled.drain_for(generous));
    EXPECT_EQ(counts.destroyed.load(), 1);
  }
  sync(stream);
  EXPECT_TRUE(polled.drain_for(generous));
}

}  // namespace
}  // namespace escrow::test
