// SPDX-License-Identifier: Apache-2.0
// Launch order: execs that share a slot, or an owner that was moved in, run one after the other;
// execs that share nothing, or only owners that others share too, run concurrently.
#include <array>
#include <escrow/nodes.hpp>
#include <tuple>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

graph around(graph const& child) {
  graph parent;
  parent.add_child(child);
  return parent;
}

/// How two execs are related.
struct relation {
  char const* name;
  std::pair<graph_exec, graph_exec> (*make)(graph const& source);
};
using execs = std::pair<graph_exec, graph_exec>;

constexpr relation relations[] = {
    {"OneGraph", [](graph const& source) { return execs(source, source); }},
    {"AGraphAndItsClone", [](graph const& source) { return execs(source, source.clone()); }},
    {"ACloneAndItsGraph", [](graph const& source) { return execs(source.clone(), source); }},
    {"AChildAndItsParent", [](graph const& source) { return execs(source, around(source)); }},
    {"AParentAndItsChild", [](graph const& source) { return execs(around(source), source); }},
    {"TwoParents", [](graph const& source) { return execs(around(source), around(source)); }}};

using weights = std::shared_ptr<int const>;

class ExecOrder : public world {
 public:
  // What a capture keeps.

  void keep_nothing(cudaStream_t) {}
  void retain_shared(cudaStream_t on) { retain(on, shared); }
  void retire_shared(cudaStream_t on) { worker->retire(on, shared); }
  void retire_moved_copy(cudaStream_t on) {
    weights copy = shared;
    worker->retire(on, std::move(copy));
  }
  void launch_with_shared(cudaStream_t on) {
    launch_config config;
    config.deleter = worker.get();
    launch(on, kernel(kernel_address(kernel_id::check)), config, shared, std::size_t{1}, 0,
           memory.data() + 1);
  }
  void use_slot(cudaStream_t on) { use(*pool, on); }
  void use_slot_and_retire_shared(cudaStream_t on) {
    retire_shared(on);
    use_slot(on);
  }
  void retire_owner(cudaStream_t on) { worker->retire(on, std::make_unique<int>(1)); }

 protected:
  void TearDown() override {
    pool.reset();
    world::TearDown();
  }

  std::optional<block_pool> pool{make_pool(1)};
  device_ints memory{2};  // what is read, and how often it was not 0
  weights shared{memory.data(), [](int const*) {}};
};

/// A way to keep something in a capture.
struct keeping {
  char const* name;
  void (ExecOrder::*keep)(cudaStream_t on);
};
using order_case = std::tuple<keeping, relation>;

std::string name_of_order(testing::TestParamInfo<order_case> const& each) {
  auto const& [kept, related] = each.param;
  return std::string(kept.name) + "_" + related.name;
}

class OrderCase : public ExecOrder, public testing::WithParamInterface<order_case> {
 protected:
  void keep(cudaStream_t on) { (this->*std::get<keeping>(GetParam()).keep)(on); }
  [[nodiscard]] static execs execs_of(graph const& source) {
    return std::get<relation>(GetParam()).make(source);
  }
};

class WrittenInCommon : public OrderCase {};
class ReadOnlyOwner : public OrderCase {};

INSTANTIATE_TEST_SUITE_P(
    Kept, ReadOnlyOwner,
    testing::Combine(testing::Values(keeping{"Nothing", &ExecOrder::keep_nothing},
                                     keeping{"ByRetain", &ExecOrder::retain_shared},
                                     keeping{"ByRetire", &ExecOrder::retire_shared},
                                     keeping{"ByAMovedCopy", &ExecOrder::retire_moved_copy},
                                     keeping{"ByLaunch", &ExecOrder::launch_with_shared}),
                     testing::Values(relations[0], relations[1], relations[3])),
    name_of_order);

TEST_P(ReadOnlyOwner, DoesNotOrderExecs) {
  execs both = execs_of(captured_behind_flag([&](cudaStream_t on) { keep(on); }));
  both.first.launch(two);
  expect_concurrent([&] { both.second.launch(three); });
}

INSTANTIATE_TEST_SUITE_P(
    Kept, WrittenInCommon,
    testing::Combine(testing::Values(keeping{"Slot", &ExecOrder::use_slot},
                                     keeping{"SlotAndSharedOwner",
                                             &ExecOrder::use_slot_and_retire_shared},
                                     keeping{"MovedOwner", &ExecOrder::retire_owner}),
                     testing::ValuesIn(relations)),
    name_of_order);

TEST_P(WrittenInCommon, OrdersExecs) {
  execs both = execs_of(captured_behind_flag([&](cudaStream_t on) { keep(on); }));
  both.first.launch(two);
  expect_ordered([&] { both.second.launch(three); });
}

TEST_F(ExecOrder, ExecsThatShareNothingRunConcurrently) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph_exec blocked(captured_behind_flag(taken));
  graph_exec free(captured_behind_flag(other));
  blocked.launch(two);
  expect_concurrent([&] { free.launch(three); });
}

TEST_F(ExecOrder, ASlotClaimedAfterItsInstantiationDoesNotOrderAnExec) {
  graph const source = captured_behind_flag([&](cudaStream_t on) { retire_shared(on); });
  graph_exec first(source);
  capture_into(source.get(), [&](cudaStream_t on) { use_slot(on); });
  graph_exec second(source);
  first.launch(two);
  expect_concurrent([&] { second.launch(three); });  // the first uses no slot
}

TEST_F(ExecOrder, ASlotOrdersExecsFromBeforeAndAfterAnotherCaptureIntoTheGraph) {
  cargo late = make_cargo();
  graph const source = captured_behind_flag([&](cudaStream_t on) { use_slot(on); });
  graph_exec first(source);
  capture_into(source.get(), [&](cudaStream_t on) { load(late, on); });
  graph_exec second(source);
  first.launch(two);
  expect_ordered([&] { second.launch(three); });
}

// What becomes of the first exec while its launch is in flight.

TEST_F(ExecOrder, AnExecDestroyedInFlightOrdersEarlierAndLaterExecs) {
  graph const source = captured_behind_flag([&](cudaStream_t on) { use_slot(on); });
  graph_exec second(source);
  {
    graph_exec first(source);
    owned_stream const passing = make_stream();
    first.launch(passing);
  }
  graph_exec third(source);
  auto const launch = [&] { second.launch(three), third.launch(one); };
  expect_ordered(launch, 3);
}

// Four execs that share two slots crosswise, each launched by a thread of its own: no two launches
// use a slot at the same time, and no thread waits without end.
TEST_F(ExecOrder, HoldsForLaunchesFromSeveralThreads) {
  std::array<cargo, 2> taken{make_cargo(), make_cargo()};
  auto const captured_alone = [&](std::size_t room) {
    int* const inside = memory.data() + room;  // how many launches are
    return captured([&](cudaStream_t on) {
      must(launch_add(on, inside, 1));
      load(taken[room], on);
      must(launch_sleep(on, 20));  // long enough for another to begin
      must(launch_check(on, inside, 1, 1, mismatches.data()));
      must(launch_add(on, inside, -1));
      must(launch_add(on, cells.data() + room, 1));
    });
  };
  graph const x = captured_alone(0);
  graph const y = captured_alone(1);
  graph xy = around(x);
  xy.add_child(y);
  graph yx = around(y);
  yx.add_child(x);
  {
    std::vector<std::jthread> threads;
    for (graph const* const source : std::array<graph const*, 4>{&x, &y, &xy, &yx}) {
      threads.emplace_back([exec = graph_exec(*source), stream = make_stream()]() mutable {
        for (int i = 0; i < 300; ++i) exec.launch(stream);
        sync(stream);
      });
    }
  }
  EXPECT_EQ(cells.load(0), 900);
  EXPECT_EQ(cells.load(1), 900);
}

}  // namespace
}  // namespace escrow::test
