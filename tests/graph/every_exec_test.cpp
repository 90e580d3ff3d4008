// SPDX-License-Identifier: Apache-2.0
// Every way from a captured piece of work to an exec of it: what the exec keeps, until when,
// and that execs of one graph do not overlap.
#include "world.hpp"

#include <tuple>

namespace escrow::test {
namespace {

/// An exec that Escrow made, or a plain call.
struct any_exec {
  std::optional<graph_exec> ours = {};
  owned_exec plain = {};

  void launch(cudaStream_t on) {
    if (ours) {
      ours->launch(on);
    } else {
      must(cudaGraphLaunch(plain, on));
    }
  }
};

struct EveryExec;

/// A way to a graph that has the work, and uses `taken`. No other graph with it is left.
struct graph_way {
  char const* name;
  graph (EveryExec::*make)(cargo& taken);
  int runs = 1;          // of the work, at a launch
  bool is_known = true;  // Escrow sees what it holds
};
/// A way to an exec of it.
struct exec_way {
  char const* name;
  any_exec (EveryExec::*make)(graph const& source);
};
using way = std::tuple<graph_way, exec_way>;

struct EveryExec : world, testing::WithParamInterface<way> {
  // Graphs. A launch counts itself as started, waits for the flag, uses the cargo, and counts
  // itself as ended.

  void work(cudaStream_t on, cargo& taken) {
    must(launch_add(on, started(), 1));
    hold_up(on);
    load(taken, on);
    must(launch_add(on, ended(), 1));
  }
  static graph around(graph const& child, int times = 1) {
    graph parent;
    for (int i = 0; i < times; ++i) parent.add_child(child);
    return parent;
  }
  static graph take_over(owned_graph native) { return graph(native.release()); }

  graph by_capture(cargo& taken) { return captured_behind_flag(taken); }
  graph by_plain_capture(cargo& taken) {
    return take_over(captured_plainly([&](cudaStream_t on) { work(on, taken); }));
  }
  graph by_capture_of_two_streams(cargo& taken) {
    return take_over(captured_plainly([&](cudaStream_t on) {
      order(on, two);
      work(two, taken);
      order(two, on);
    }));
  }
  graph by_hand(cargo& taken) {
    graph built = take_over(
        chain({add_call(started(), 1), wait_flag_call(flag.get()), add_call(ended(), 1)}));
    worker->retire(built.get(), probe(taken.fate));
    return built;
  }
  graph by_capture_into(cargo& taken) {
    graph built = take_over(tiny_graph());
    capture_into(built.get(), [&](cudaStream_t on) { work(on, taken); });
    return built;
  }
  graph by_clone(cargo& taken) { return by_capture(taken).clone(); }
  graph by_child(cargo& taken) { return around(by_capture(taken)); }
  graph by_same_child_twice(cargo& taken) { return around(by_capture(taken), 2); }
  graph by_clone_of_parent(cargo& taken) { return around(around(by_capture(taken))).clone(); }
  graph by_plain_clone(cargo& taken) { return take_over(test::clone(by_capture(taken).get())); }
  graph by_plain_child(cargo& taken) {
    graph parent;
    add_child(parent.get(), by_capture(taken).get());
    return parent;
  }
  graph by_child_of_plain_clone(cargo& taken) { return around(by_plain_clone(taken)); }

  // Execs.

  any_exec of_graph(graph const& source) { return {.ours = graph_exec(source)}; }
  any_exec by_update(graph const& source) {
    std::optional<cargo> before(make_cargo());
    any_exec exec = of_graph(make_graph(*before));
    exec.ours->update(source);
    EXPECT_TRUE(is_released(*before)) << "the exec keeps what it had before the update";
    before.reset();
    EXPECT_TRUE(drained());  // cudaFree would wait for a launch, and everything for cudaFree
    return exec;
  }
  any_exec by_plain_call(graph const& source) { return {.plain = instantiate(source.get())}; }
  any_exec beside_plain_execs(graph const& source) {
    owned_exec const before = instantiate(source.get());
    any_exec exec{.ours = graph_exec(source.get())};
    owned_exec const after = instantiate(source.get());
    return exec;
  }

  // Where a graph or an exec holds just the cargo.
  void expect_held(resource_usage const& held, cargo const& taken) {
    if (!from().is_known) return;
    EXPECT_EQ(held.slots, taken.has_slot ? 1U : 0U);
    EXPECT_EQ(held.owners, 1U);
  }

  // What the parameter chooses.

  static graph_way const& from() { return std::get<graph_way>(GetParam()); }
  graph make_graph(cargo& taken) { return (this->*from().make)(taken); }
  any_exec make_exec(graph const& source) {
    return (this->*std::get<exec_way>(GetParam()).make)(source);
  }
};

/// Whose launches Escrow can order: it does not know of plain copies.
constexpr graph_way known_ways[] = {{"Capture", &EveryExec::by_capture},
                                    {"PlainCapture", &EveryExec::by_plain_capture},
                                    {"CaptureOfTwoStreams", &EveryExec::by_capture_of_two_streams},
                                    {"ByHand", &EveryExec::by_hand},
                                    {"CaptureInto", &EveryExec::by_capture_into},
                                    {"Clone", &EveryExec::by_clone},
                                    {"Child", &EveryExec::by_child},
                                    {"SameChildTwice", &EveryExec::by_same_child_twice, 2},
                                    {"CloneOfParent", &EveryExec::by_clone_of_parent}};
constexpr graph_way plain_copies[] = {
    {"PlainClone", &EveryExec::by_plain_clone, 1, false},
    {"PlainChild", &EveryExec::by_plain_child, 1, false},
    {"ChildOfPlainClone", &EveryExec::by_child_of_plain_clone, 1, false}};

constexpr exec_way by_escrow[] = {{"OfGraph", &EveryExec::of_graph},
                                  {"ByUpdate", &EveryExec::by_update}};
constexpr exec_way other_ways[] = {{"ByPlainCall", &EveryExec::by_plain_call},
                                   {"BesidePlainExecs", &EveryExec::beside_plain_execs}};

std::string name_of(testing::TestParamInfo<way> const& each) {
  auto const& [graph, exec] = each.param;
  return std::string(graph.name) + exec.name;
}

INSTANTIATE_TEST_SUITE_P(Known, EveryExec,
                         testing::Combine(testing::ValuesIn(known_ways),
                                          testing::Values(by_escrow[0], by_escrow[1], other_ways[0],
                                                          other_ways[1])),
                         name_of);
INSTANTIATE_TEST_SUITE_P(PlainCopies, EveryExec,
                         testing::Combine(testing::ValuesIn(plain_copies),
                                          testing::ValuesIn(by_escrow)),
                         name_of);

TEST_P(EveryExec, KeepsWhatItsWorkUsesUntilItIsDestroyed) {
  flag.raise();
  cargo taken = make_cargo();
  std::optional<graph> source(make_graph(taken));
  any_exec exec = make_exec(*source);
  source.reset();
  EXPECT_TRUE(is_kept(taken));
  if (exec.ours && from().is_known) {
    expect_held(exec.ours->held(), taken);
    EXPECT_TRUE(exec.ours->is_bare());
    EXPECT_TRUE(has_no_user_object()) << "a user object is in an exec that says it is bare";
  }
  exec.launch(two);
  exec.launch(three);
  sync_all();
  EXPECT_EQ(cells.load(2), 2 * from().runs);
  EXPECT_TRUE(stays_kept(taken)) << "it can be launched again";
  exec = {};
  EXPECT_TRUE(is_released(taken));
}

TEST_P(EveryExec, ReleasesAfterItsLastLaunchIfItIsDestroyedInFlight) {
  cargo taken = make_cargo();
  {
    graph const source = make_graph(taken);
    any_exec exec = make_exec(source);
    exec.launch(two);
    exec.launch(three);
  }
  ASSERT_TRUE(have_started(1));
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(is_released(taken));
  EXPECT_EQ(cells.load(2), 2 * from().runs) << "released before the last launch was done";
}

TEST_P(EveryExec, LeavesItsGraphWhatThatHolds) {
  flag.raise();
  cargo taken = make_cargo();
  {
    graph const source = make_graph(taken);
    for (int i = 0; i < 3; ++i) {
      any_exec exec = make_exec(source);
      exec.launch(two);
      sync(two);
      expect_held(source.held(), taken);
    }
    EXPECT_TRUE(is_kept(taken));
  }
  EXPECT_TRUE(is_released(taken));
}

struct OrderedExec : EveryExec {};

INSTANTIATE_TEST_SUITE_P(Known, OrderedExec,
                         testing::Combine(testing::ValuesIn(known_ways),
                                          testing::ValuesIn(by_escrow)),
                         name_of);

TEST_P(OrderedExec, DoesNotOverlapAnotherExecOfItsGraph) {
  cargo taken = make_cargo();
  graph const source = make_graph(taken);
  any_exec first = make_exec(source);
  graph_exec second(source);
  first.launch(two);
  expect_ordered([&] { second.launch(three); }, 2 * from().runs);
}

}  // namespace
}  // namespace escrow::test
