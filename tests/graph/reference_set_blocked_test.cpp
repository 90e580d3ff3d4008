// A destructor that blocks the worker delays no claim, whatever graph its owner was in.
#include <optional>
#include <utility>
#include <vector>

#include "reference_set_fixture.hpp"

namespace escrow::test {
namespace {

class BlockingOwner : public reference_set_test {
 protected:
  // In the order in which a reclaiming thread might meet them.
  [[nodiscard]] graph with_slots_around(block_pool& pool, fate_ptr const& blocking) {
    return captured([&](cudaStream_t on) {
      block_lease const before = pool.claim(on);
      retire(on, blocking);
      block_lease const after = pool.claim(on);
      must(launch_tiny(on));
    });
  }
  void expect_slots_while_blocked(block_pool& pool) {
    EXPECT_TRUE(wait_until([this] { return is_blocking.load(); }));
    {
      std::optional<block_lease> first;
      std::optional<block_lease> second;
      EXPECT_TRUE(wait_until([&] {
        if (!first) first = pool.try_claim(asking);
        if (first && !second) second = pool.try_claim(asking);
        return second.has_value();
      })) << "a claim waits for a destructor";
    }
    EXPECT_FALSE(may_end.load());
    may_end.store(true);
  }
};

TEST_F(BlockingOwner, OfAGraphThatIsDestroyedDoesNotKeepItsSlots) {
  block_pool pool = make_pool(2);
  { graph const source = with_slots_around(pool, make_blocking()); }
  expect_slots_while_blocked(pool);
}

TEST_F(BlockingOwner, OfAnExecThatIsDestroyedInFlightDoesNotKeepItsSlots) {
  block_pool pool = make_pool(2);
  {
    graph_exec exec(with_slots_around(pool, make_blocking()));
    must(launch_wait_flag(two, flag.get()));
    exec.launch(two);
  }
  EXPECT_TRUE(is_kept(pool));
  flag.raise();
  expect_slots_while_blocked(pool);
}

TEST_F(BlockingOwner, OfAPlainExecDoesNotKeepItsSlots) {
  block_pool pool = make_pool(2);
  {
    graph const source = with_slots_around(pool, make_blocking());
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    sync(two);
  }
  expect_slots_while_blocked(pool);
}

TEST_F(BlockingOwner, OfAnotherGraphDoesNotKeepTheSlotsOfManyGraphsThatAreDestroyedMeanwhile) {
  constexpr int graphs = 40;
  block_pool pool = make_pool(graphs);
  std::vector<graph> sources;
  for (int i = 0; i < graphs; ++i) {
    sources.push_back(captured([&](cudaStream_t on) {
      library_work(pool, on, 1, mismatches);
      retire(on, make_fate());
    }));
  }
  worker->retire(probe(make_blocking()));
  EXPECT_TRUE(wait_until([this] { return is_blocking.load(); }));
  sources.clear();
  std::vector<block_lease> claimed;
  EXPECT_TRUE(wait_until([&] {
    while (auto each = pool.try_claim(asking)) claimed.push_back(std::move(*each));
    return claimed.size() == graphs;
  })) << claimed.size()
      << " slots came back";
  may_end.store(true);
  claimed.clear();
}

}  // namespace
}  // namespace escrow::test
