// A destructor that blocks the worker delays no claim: slots of graphs and execs come back
// meanwhile, whether its owner was in the same graph or not.
#include <escrow/nodes.hpp>
#include <optional>
#include <string>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

class BlockedWorker : public world {
 protected:
  static constexpr std::size_t bytes = 256;

  // Ends before the memory of the pool is freed: cudaFree waits for the device.
  void TearDown() override {
    flag.raise();
    may_end.store(true);
    blocks.reset();
    EXPECT_TRUE(drained());
    world::TearDown();
  }
  [[nodiscard]] bool has_free_slot() { return blocks->try_claim(two.get()).has_value(); }

  std::optional<resource_pool<device_block>> blocks{std::in_place, options(1),
                                                    [] { return device_block(bytes); }};
};

TEST_F(BlockedWorker, TheSlotOfALeaseThatANodeSharesIsClaimedAgain) {
  {
    graph built(*worker);
    auto held = blocks->claim(two.get());
    build(built)
        .add(kernel_node(kernel(kernel_address(kernel_id::wait_flag)), {}, flag.get()))
        .add(memset_node(held, {.width = bytes}));
    graph_exec exec(built);
    exec.launch(two);
    held.release();
  }
  block_worker();
  EXPECT_FALSE(has_free_slot()) << "the launch still uses it";
  flag.raise();
  sync(two);
  EXPECT_TRUE(has_free_slot());
}

TEST_F(BlockedWorker, TheSlotOfAGraphThatWasNeverLaunchedIsClaimedAgain) {
  block_worker();
  graph built(*worker);
  {
    auto held = blocks->claim(two.get());
    build(built).add(memset_node(held, {.width = bytes}));
  }
  EXPECT_FALSE(has_free_slot()) << "the graph has a share";
  built = graph(*worker);
  EXPECT_TRUE(has_free_slot());
}

TEST_F(BlockedWorker, TheSlotsOfManyGraphsThatAreDestroyedAreClaimedAgain) {
  constexpr int graphs = 40;
  block_pool pool = make_pool(graphs);
  std::vector<graph> sources;
  for (int i = 0; i < graphs; ++i) {
    sources.push_back(captured([&](cudaStream_t on) {
      use(pool, on);
      retire(on, make_fate());
    }));
  }
  block_worker();
  sources.clear();
  EXPECT_TRUE(can_claim(pool, graphs));
  EXPECT_FALSE(may_end.load());
}

/// The parameter is what becomes of a graph whose owner blocks the worker.
class BlockingOwner : public world, public testing::WithParamInterface<char const*> {
 protected:
  static void launch_and_end(graph const& source, cudaStream_t on) {
    std::string const what = GetParam();
    if (what == "LaunchedByAnExec") return graph_exec(source).launch(on);
    if (what == "Destroyed") return;
    must(what == "LaunchedByAPlainExec", "that becomes of it");
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, on));
  }
};

INSTANTIATE_TEST_SUITE_P(Ends, BlockingOwner,
                         testing::Values("Destroyed", "LaunchedByAnExec", "LaunchedByAPlainExec"),
                         [](auto const& each) { return std::string(each.param); });

TEST_P(BlockingOwner, DoesNotKeepTheSlotsOfItsGraph) {
  block_pool pool = make_pool(2);
  // In the order in which a reclaiming thread might meet them.
  std::optional<graph> source = captured([&](cudaStream_t on) {
    block_lease const before = pool.claim(on);
    retire(on, make_blocking());
    block_lease const after = pool.claim(on);
    must(launch_tiny(on));
  });
  hold_up(two);
  launch_and_end(*source, two);
  source.reset();
  flag.raise();
  EXPECT_TRUE(wait_until([this] { return is_blocking.load(); }));
  EXPECT_TRUE(can_claim(pool, 2)) << "a claim waits for a destructor";
  EXPECT_FALSE(may_end.load());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
