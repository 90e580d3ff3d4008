// SPDX-License-Identifier: Apache-2.0
// Graphs with conditional nodes: what their bodies hold is held by the exec, which is bare where
// the bodies were named; and the end of such an exec in flight blocks no other thread.
#include <ostream>

#include "graph_nodes.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

/// A conditional node whose condition has the same value at each launch.
struct node_kind {
  char const* name;
  cudaGraphConditionalNodeType type;
  unsigned value;
  unsigned bodies;
  int runs;  // how many of the bodies run at a launch

  friend void PrintTo(node_kind const& kind, std::ostream* out) { *out << kind.name; }
};
constexpr node_kind if_taken{"IfTaken", cudaGraphCondTypeIf, 1, 1, 1};
constexpr node_kind else_of_if_else{"ElseOfIfElse", cudaGraphCondTypeIf, 0, 2, 1};
constexpr node_kind switch_of_three{"SwitchOfThree", cudaGraphCondTypeSwitch, 2, 3, 1};

/// Adds a node of that kind and returns its empty bodies.
std::vector<cudaGraph_t> add_node(cudaGraph_t graph, node_kind const& kind) {
  auto const condition = make_condition(graph, kind.value);
  return add_conditional_node(graph, condition, kind.type, kind.bodies).bodies;
}

/// A graph with one conditional node. Each body has cargo of its own and adds 1 to the first cell.
struct conditional_graph {
  std::optional<graph> whole{std::in_place};
  std::vector<cudaGraph_t> bodies;
  std::vector<cargo> taken;
};

class Bodies : public world {
 protected:
  [[nodiscard]] conditional_graph make(node_kind const& kind) {
    conditional_graph made;
    made.bodies = add_node(made.whole->get(), kind);
    for (cudaGraph_t const body : made.bodies) fill(body, made.taken.emplace_back(make_cargo()));
    return made;
  }
  void fill(cudaGraph_t body, cargo& taken) {
    capture_into(body, [&](cudaStream_t on) {
      load(taken, on);
      must(launch_add(on, cells.data(), 1));
    });
  }
  // An exec for which `bodies` are named; the graph is destroyed.
  [[nodiscard]] static std::optional<graph_exec> exec_of(conditional_graph& source,
                                                         std::vector<cudaGraph_t> bodies) {
    std::optional<graph_exec> exec(std::in_place, *source.whole,
                                   instantiate_options{.bodies = std::move(bodies)});
    source.whole.reset();
    return exec;
  }
  [[nodiscard]] static std::optional<graph_exec> exec_of(conditional_graph& source) {
    return exec_of(source, source.bodies);
  }
  void expect_kept(conditional_graph& source) {
    for (cargo& each : source.taken) EXPECT_TRUE(is_kept(each));
  }
  void expect_released(conditional_graph& source) {
    for (cargo& each : source.taken) EXPECT_TRUE(is_released(each));
  }
  // `exec` is the only one that holds what the bodies hold. Launches it twice and ends it.
  void expect_only_holder_of(conditional_graph& source, std::optional<graph_exec>& exec,
                             bool is_bare) {
    EXPECT_EQ(exec->is_bare(), is_bare);
    EXPECT_TRUE(!is_bare || has_no_user_object());
    expect_kept(source);
    expect_only_holder(exec, source.taken.back());
    expect_released(source);
  }
};

class BodiesOfKind : public Bodies, public testing::WithParamInterface<node_kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, BodiesOfKind,
                         testing::Values(if_taken, else_of_if_else,
                                         node_kind{"WhileNever", cudaGraphCondTypeWhile, 0, 1, 0},
                                         switch_of_three),
                         [](auto const& kind) { return std::string(kind.param.name); });

TEST_P(BodiesOfKind, AreHeldByTheirExecWhichIsBareIfTheyAreNamed) {
  for (bool const is_named : {true, false}) {
    cells.store(0, 0);
    conditional_graph source = make(GetParam());
    std::optional<graph_exec> exec =
        exec_of(source, is_named ? source.bodies : std::vector<cudaGraph_t>{});
    expect_only_holder_of(source, exec, is_named);
    EXPECT_EQ(cells.load(), 2 * GetParam().runs);
  }
}

TEST_P(BodiesOfKind, AreSwappedByAnUpdateAlsoIfItDoesNotNameThem) {
  for (bool const is_named : {true, false}) {
    conditional_graph first = make(GetParam());
    conditional_graph second = make(GetParam());
    std::optional<graph_exec> exec = exec_of(first);
    exec->launch(two);
    exec->update(*second.whole, is_named ? second.bodies : std::vector<cudaGraph_t>{});
    expect_released(first);
    second.whole.reset();
    expect_only_holder_of(second, exec, is_named);
  }
}

TEST_F(Bodies, OfWhichSomeAreNotNamedAreHeldAllTheSame) {
  // That a body of a node was forgotten is more than Escrow can notice, and does no harm.
  conditional_graph of_three = make(switch_of_three);
  std::optional<graph_exec> exec_of_three =
      exec_of(of_three, {of_three.bodies[1], of_three.bodies[1]});
  EXPECT_EQ(exec_of_three->held().slots, 1U) << "named twice";
  expect_kept(of_three);
  expect_only_holder(exec_of_three, of_three.taken[2]);
  expect_released(of_three);

  conditional_graph with_another = make(if_taken);
  cargo unnamed = make_cargo();
  fill(add_node(with_another.whole->get(), if_taken)[0], unnamed);
  std::optional<graph_exec> exec = exec_of(with_another);
  EXPECT_TRUE(is_kept(unnamed));
  expect_only_holder_of(with_another, exec, false);
  EXPECT_TRUE(is_released(unnamed));
}

TEST_F(Bodies, InsideBodiesOrWithChildGraphsAndOwnersOfTheirOwnAreHeldToo) {
  conditional_graph source = make(if_taken);
  std::vector<cudaGraph_t> const inner = add_node(source.bodies[0], else_of_if_else);
  std::vector<cargo> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(make_cargo());
  fill(inner[0], taken[0]);
  fill(inner[1], taken[1]);
  worker->retire(inner[1], probe(taken[2].fate));
  {
    graph body(inner[1]);
    body.add_child(captured(taken[3]));
    static_cast<void>(body.detach());
  }
  EXPECT_FALSE(graph_exec(*source.whole, {.bodies = source.bodies}).is_bare())
      << "the inner bodies were not named";
  std::optional<graph_exec> exec = exec_of(source, {source.bodies[0], inner[0], inner[1]});
  for (cargo& each : taken) EXPECT_TRUE(is_kept(each));
  expect_only_holder_of(source, exec, true);
  for (cargo& each : taken) EXPECT_TRUE(is_released(each));
  EXPECT_EQ(cells.load(), 6) << "the body, the inner else and its child, twice";
}

// An exec that ends in flight waits for its launches and uploads: in CUDA's own wait, or in a lock
// of Escrow, it would block the calls of all threads.
class ConditionalEnd : public Bodies {
 protected:
  // A graph whose body waits for the flag and then has cargo, if it `holds` something.
  [[nodiscard]] conditional_graph behind_flag(bool holds = true) {
    conditional_graph made;
    made.bodies = add_node(made.whole->get(), if_taken);
    capture_into(made.bodies[0], [&](cudaStream_t on) {
      hold_up(on);
      if (holds) load(made.taken.emplace_back(make_cargo()), on);
      must(launch_add(on, cells.data(), 1));
    });
    return made;
  }
  // Ends the exec on a thread of its own, and meanwhile does what other threads do.
  void end_beside_others(std::optional<graph_exec>& exec) {
    std::atomic<bool> is_over{false};
    {
      std::jthread const ending([&] {
        exec.reset();
        is_over.store(true);
      });
      // Before the thread is waited for, whatever happens.
      std::shared_ptr<void> const raised(nullptr, [this](void*) { flag.raise(); });
      EXPECT_TRUE(stays_false([&] { return is_over.load(); }));
      build_and_launch();
      EXPECT_FALSE(is_over.load()) << "others waited for the launch";
    }
  }
  void build_and_launch() {
    graph const source = captured([](cudaStream_t on) { must(launch_tiny(on)); });
    graph parent;
    parent.add_child(source);
    graph_exec exec(parent);
    exec.launch(three);
    sync(three);
    static_cast<void>(source.clone());
  }
};

TEST_F(ConditionalEnd, BlocksNoOtherThreadAndKeepsWhatThereIsUntilTheLastLaunchIsDone) {
  for (bool const holds : {true, false}) {
    flag.lower();
    cells.store(0, 0);
    conditional_graph source = behind_flag(holds);
    std::optional<graph_exec> exec = exec_of(source);
    for (cudaStream_t const on : {two.get(), asking.get(), two.get()}) exec->launch(on);
    for (cargo& each : source.taken) EXPECT_TRUE(stays_kept(each.fate));
    end_beside_others(exec);
    EXPECT_EQ(cells.load(), 3);
    expect_released(source);
    for (cargo& each : source.taken) end(each.pool);
  }
}

TEST_F(ConditionalEnd, BlocksNoOtherThreadWhileItIsUploaded) {
  conditional_graph source = behind_flag(false);
  std::optional<graph_exec> exec = exec_of(source);
  hold_up(two);
  exec->upload(two);
  exec->upload(asking);  // after the one before, as CUDA serializes them
  end_beside_others(exec);
}

TEST_F(ConditionalEnd, BlocksNoOtherThreadAfterAnUpdateInFlight) {
  conditional_graph first = behind_flag();
  conditional_graph second = behind_flag();
  std::optional<graph_exec> exec = exec_of(first);
  exec->launch(two);
  exec->update(*second.whole, second.bodies);
  second.whole.reset();
  end_beside_others(exec);
  EXPECT_EQ(cells.load(), 1);
  expect_released(first);
  expect_released(second);
}

}  // namespace
}  // namespace escrow::test
