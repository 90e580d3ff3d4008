// Captures as function calls, and graphs and execs as values: what each operation gives, what is
// misuse, and that none of them harms a capture.
#include "world.hpp"

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace escrow::test {
namespace {

template <class Value>
constexpr bool is_move_only =
    !std::is_copy_constructible_v<Value> && !std::is_copy_assignable_v<Value> &&
    std::is_nothrow_move_constructible_v<Value> && std::is_nothrow_move_assignable_v<Value> &&
    !std::is_convertible_v<cudaGraph_t, Value>;
static_assert(is_move_only<graph> && is_move_only<graph_exec> && is_move_only<hoisted>);

class Capture : public world, public testing::WithParamInterface<cudaStreamCaptureMode> {
 protected:
  template <class Enqueue>
  [[nodiscard]] graph capture_one(Enqueue&& enqueue) {
    return escrow::capture(one.get(), std::forward<Enqueue>(enqueue), GetParam());
  }
  [[nodiscard]] bool is_capturing() { return !capture_of(one.get()).is_none(); }
  void expect_dropped() {
    EXPECT_TRUE(is_released(fate)) << "what was captured was not dropped";
    EXPECT_FALSE(is_capturing());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_NO_THROW(static_cast<void>(capture_one([](stream_ref) {})));
  }

  fate_ptr fate = make_fate();
};

INSTANTIATE_TEST_SUITE_P(Modes, Capture,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed));

TEST_P(Capture, ReturnsTheGraphOfWhatWasEnqueuedAndRunsNothing) {
  struct once {
    cudaStream_t stream;
    int* cell;
    void operator()(stream_ref on) && {
      EXPECT_EQ(on.get(), stream);
      EXPECT_TRUE(capture_of(on).is_active());
      must(launch_add(on.get(), cell, 1));
      must(launch_add(on.get(), cell, 10));
    }
  };
  graph const made = capture_one(once{one, cells.data()});
  EXPECT_FALSE(is_capturing());
  EXPECT_EQ(node_count(made.get()), 2U);
  sync(one);
  EXPECT_EQ(cells.load(), 0);
  run(made);
  EXPECT_EQ(cells.load(), 11);
}

TEST_P(Capture, ThatThrowsIsEndedAndDropped) {
  EXPECT_THROW(static_cast<void>(capture_one([&](stream_ref on) {
                 must(launch_tiny(on.get()));
                 retire(on.get(), fate);
                 throw std::logic_error("out");
               })),
               std::logic_error);
  expect_dropped();
}

TEST_P(Capture, OfAScopeThatIsNotEndedIsDropped) {
  {
    capture_scope const scope(one.get(), GetParam());
    retire(one, fate);
  }
  expect_dropped();
}

TEST_P(Capture, ThatWasInvalidatedIsAnErrorAndIsDropped) {
  try {
    static_cast<void>(capture_one([&](stream_ref on) {
      retire(on.get(), fate);
      static_cast<void>(cudaDeviceSynchronize());
    }));
    FAIL() << "an invalidated capture gave a graph";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureInvalidated);
    EXPECT_STREQ(error.api(), "cudaStreamEndCapture");
  }
  expect_dropped();
}

TEST_P(Capture, WithAForkThatWasNotJoinedIsAnErrorAndEndsOnBothStreams) {
  EXPECT_THROW(static_cast<void>(capture_one([&](stream_ref on) {
                 retire(on.get(), fate);
                 order(on.get(), two);
                 must(launch_tiny(two));
               })),
               cuda_error);
  EXPECT_TRUE(capture_of(two.get()).is_none());
  expect_dropped();
}

TEST_P(Capture, OfAStreamThatIsCapturedAlreadyIsAnErrorAndHarmsNothing) {
  graph const outer = capture_one([&](stream_ref on) {
    must(launch_tiny(on.get()));
    EXPECT_THROW(static_cast<void>(capture_one([](stream_ref) {})), cuda_error);
    graph const of_other = escrow::capture(
        two.get(), [](stream_ref) {}, GetParam());
    EXPECT_EQ(node_count(of_other.get()), 0U);
  });
  EXPECT_EQ(node_count(outer.get()), 1U);
}

class Graph : public world {
 protected:
  [[nodiscard]] graph adding(int value) {
    return graph(chain({add_call(cells.data(), value)}).release());
  }
  fate_ptr fate = make_fate();
};

TEST_F(Graph, ReleasesWhatItHeldWhenItIsDestroyedOrAssignedAnother) {
  graph assigned;
  worker->retire(assigned.get(), probe(fate));
  graph& same = assigned;
  assigned = std::move(same);
  ASSERT_NE(assigned.get(), nullptr);
  EXPECT_TRUE(is_kept(fate)) << "of an assignment to itself";
  graph other;
  assigned = std::move(other);
  EXPECT_TRUE(is_released(fate)) << "the moved-from graph keeps what the other held";
}

TEST_F(Graph, IsNullOnceMovedFromOrDetached) {
  graph first;
  cudaGraph_t const handle = first.get();
  EXPECT_EQ(node_count(handle), 0U);
  graph second = std::move(first);
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is tested
  EXPECT_EQ(second.get(), handle);
  owned_graph const kept(second.detach());
  EXPECT_EQ(second.get(), nullptr);
  EXPECT_EQ(kept.get(), handle);
}

TEST_F(Graph, AddsAChildBehindEverythingThatIsThere) {
  graph parent;
  cudaGraphNode_t const left = add_kernel(parent.get(), tiny_call());
  cudaGraphNode_t const right = add_kernel(parent.get(), tiny_call());
  cudaGraphNode_t const first = parent.add_child(adding(5));
  cudaGraphNode_t const second = parent.add_child(adding(7));
  auto const before = [](cudaGraphNode_t node) {
    std::size_t count = 0;
    must(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    must(cudaGraphNodeGetDependencies(node, nodes.data(), nullptr, &count));
    return std::set<cudaGraphNode_t>(nodes.begin(), nodes.end());
  };
  EXPECT_EQ(before(first), (std::set{left, right}));
  EXPECT_EQ(before(second), std::set{first});
  run(parent);
  EXPECT_EQ(cells.load(), 12);
}

TEST_F(Graph, RunsAtEachLaunchOfItsExec) {
  graph_exec exec(adding(2));
  exec.upload(two);
  for (int i = 0; i < 5; ++i) exec.launch(two);
  sync(two);
  EXPECT_EQ(cells.load(), 10);
}

TEST_F(Graph, IsNotLaunchedIntoACapture) {
  graph_exec exec(adding(1));
  test::capture const open{two, cudaStreamCaptureModeThreadLocal};
  try {
    exec.launch(two);
    FAIL() << "launched";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureUnsupported);
    EXPECT_STREQ(error.api(), "cudaGraphLaunch");
  }
}

TEST_F(Graph, MisuseIsAnErrorThatNamesTheCall) {
  graph const source = adding(1);
  graph parent;
  graph none = adding(1);
  graph const taken_none = std::move(none);
  graph_exec moved(source);
  graph_exec exec = std::move(moved);
  struct row {
    std::string call;
    std::string text;  // what the message says
    std::function<void()> misuse;
  };
  // NOLINTBEGIN(bugprone-use-after-move): that is tested
  std::vector<row> const rows{
      {"graph::clone", "moved", [&] { static_cast<void>(none.clone()); }},
      {"graph::add_child", "moved", [&] { parent.add_child(none); }},
      {"graph::add_child", "moved", [&] { none.add_child(source); }},
      {"graph_exec::launch", "moved", [&] { moved.launch(two); }},
      {"graph_exec::upload", "moved", [&] { moved.upload(two); }},
      {"graph_exec::update", "moved", [&] { moved.update(source); }},
  };
  // NOLINTEND(bugprone-use-after-move)
  for (row const& each : rows) {
    std::string const text = message_of<usage_error>(each.misuse);
    EXPECT_EQ(text.find(each.call), 0U) << text;
    EXPECT_NE(text.find(each.text), std::string::npos) << text;
  }
  EXPECT_EQ(node_count(parent.get()), 0U);
  EXPECT_THROW(graph_exec(cudaGraph_t{nullptr}), usage_error);
  EXPECT_THROW(static_cast<void>(escrow::capture(cudaStreamLegacy, [](stream_ref) {})), cuda_error);
}

// What is done with graphs while a stream is captured: on the thread of the capture in any mode,
// and on another thread in Global mode.
class CaptureSafety : public Graph {
 protected:
  void use_graphs(graph const& source) {
    worker->retire(source.get(), probe(make_fate()));
    graph copy = source.clone();
    graph parent;
    parent.add_child(source);
    graph_exec exec(source);
    EXPECT_EQ(exec.held().owners, source.held().owners);
    exec.launch(two);
    exec.update(copy);
    exec.launch(two);
    hoisted held = hoist(parent);
    held.release_after(two);
    hoist(copy).release();
    parent = graph();
  }
};

TEST_F(CaptureSafety, OfEverythingOnTheThreadOfTheCapture) {
  for (cudaStreamCaptureMode const mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    graph const source = adding(1);
    test::capture open{one, mode};
    use_graphs(source);
    EXPECT_EQ(open.end(), cudaSuccess) << mode;
  }
}

TEST_F(CaptureSafety, OfEverythingOnAnotherThread) {
  constexpr int rounds = 100;
  test::capture open{one, cudaStreamCaptureModeGlobal};
  std::thread([this] {
    for (int i = 0; i < rounds; ++i) use_graphs(adding(1));
  }).join();
  EXPECT_EQ(open.end(), cudaSuccess);
  sync(two);
  EXPECT_EQ(cells.load(), 2 * rounds);
}

}  // namespace
}  // namespace escrow::test
