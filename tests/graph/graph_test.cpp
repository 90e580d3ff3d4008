// Captures as function calls, and graphs as values: what each operation gives, and that none of
// them harms a capture.
#include <escrow/nodes.hpp>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "world.hpp"

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

INSTANTIATE_TEST_SUITE_P(Modes, Capture, testing::ValuesIn(all_capture_modes));

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

// What is done with graphs while a stream is captured.
class CaptureSafety : public Graph {
 protected:
  // Launches five times.
  void use_graphs() {
    graph source;
    build(source).add(kernel_node(kernel(kernel_address(kernel_id::add)), {}, cells.data(), 1));
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
    stream_launcher(std::move(exec), two).launch();
    exec_set set;
    exec_set::member const first = set.add(source.clone());
    set.launch(set.add(std::move(source)), two);
    set.launch(first, two);
  }
};

TEST_F(CaptureSafety, OfEverythingOnTheThreadOfTheCaptureAndOnAnother) {
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    test::capture open{one, mode};
    use_graphs();
    std::thread([this] { use_graphs(); }).join();
    must(launch_tiny(one));
    EXPECT_EQ(open.end(), cudaSuccess) << mode;
  }
  sync(two);
  EXPECT_EQ(cells.load(), 6 * 5);
}

}  // namespace
}  // namespace escrow::test
