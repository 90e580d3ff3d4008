// A destructor that blocks the worker delays no claim: slots of graphs and execs come back
// meanwhile, whether its owner was in the same graph or not.
#include <escrow/nodes.hpp>
#include <optional>
#include <ostream>
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

/// What becomes of a graph whose owner blocks the worker.
struct graph_end {
  char const* name;
  void (*run)(graph source, cudaStream_t on);

  friend void PrintTo(graph_end const& each, std::ostream* out) { *out << each.name; }
};

class BlockingOwner : public world, public testing::WithParamInterface<graph_end> {};

INSTANTIATE_TEST_SUITE_P(Ends, BlockingOwner,
                         testing::Values(graph_end{"Destroyed", [](graph, cudaStream_t) {}},
                                         graph_end{"LaunchedByAnExecThatIsDestroyed",
                                                   [](graph source, cudaStream_t on) {
                                                     graph_exec(source).launch(on);
                                                   }},
                                         graph_end{"LaunchedByAPlainExec",
                                                   [](graph source, cudaStream_t on) {
                                                     owned_exec const exec =
                                                         instantiate(source.get());
                                                     must(cudaGraphLaunch(exec, on));
                                                   }}),
                         [](auto const& each) { return std::string(each.param.name); });

TEST_P(BlockingOwner, DoesNotKeepTheSlotsOfItsGraph) {
  block_pool pool = make_pool(2);
  // In the order in which a reclaiming thread might meet them.
  graph source = captured([&](cudaStream_t on) {
    block_lease const before = pool.claim(on);
    retire(on, make_blocking());
    block_lease const after = pool.claim(on);
    must(launch_tiny(on));
  });
  hold_up(two);
  GetParam().run(std::move(source), two);
  flag.raise();
  EXPECT_TRUE(wait_until([this] { return is_blocking.load(); }));
  EXPECT_TRUE(can_claim(pool, 2)) << "a claim waits for a destructor";
  EXPECT_FALSE(may_end.load());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
