// Owned graphs: what they hold, for how long, and how they are put together.
#include "escrow/graph/graph.hpp"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owner.hpp"

namespace escrow {
namespace {

static_assert(!std::is_copy_constructible_v<graph> && !std::is_copy_assignable_v<graph>);
static_assert(std::is_nothrow_move_constructible_v<graph>);
static_assert(std::is_nothrow_move_assignable_v<graph>);
static_assert(!std::is_convertible_v<cudaGraph_t, graph>, "taking over must be said");

class Graph : public testing::Test {
 protected:
  test::pinned_ints cell_;
  test::owned_stream stream_ = test::make_stream();
  deleter deleter_;
  test::watched_owner watched_;

  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !watched_.is_gone();
  }
  [[nodiscard]] int run(graph const& what) {
    graph_exec exec(what);
    exec.launch(stream_);
    test::must(cudaStreamSynchronize(stream_));
    return cell_.load();
  }
};

TEST_F(Graph, IsEmptyWhenNew) {
  EXPECT_EQ(test::node_count(graph().get()), 0U);
}

TEST_F(Graph, LetsGoOfWhatItHeldAtItsEnd) {
  {
    graph const it;
    deleter_.retire(it.get(), watched_.owner());
    EXPECT_TRUE(lives());
  }
  EXPECT_TRUE(watched_.wait());
}

TEST_F(Graph, IsNullOnceMovedFromOrDetached) {
  graph first;
  cudaGraph_t const handle = first.get();
  graph second = std::move(first);
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(second.get(), handle);
  graph third;
  third = std::move(second);
  EXPECT_EQ(second.get(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(third.get(), handle);
  test::owned_graph const kept(third.detach());
  EXPECT_EQ(third.get(), nullptr);
  EXPECT_EQ(kept.get(), handle);
}

TEST_F(Graph, LetsGoOfWhatItHeldWhenAssignedAnother) {
  graph it;
  deleter_.retire(it.get(), watched_.owner());
  graph other;
  it = std::move(other);
  EXPECT_TRUE(watched_.wait()) << "the moved-from graph keeps what the other held";
}

TEST_F(Graph, StaysWhatItIsWhenAssignedToItself) {
  graph it;
  deleter_.retire(it.get(), watched_.owner());
  graph& same = it;
  it = std::move(same);
  ASSERT_NE(it.get(), nullptr);
  EXPECT_TRUE(lives());
}

TEST_F(Graph, ACloneHoldsWhatTheOriginalHolds) {
  graph original(test::chain({test::add_call(cell_.data(), 3)}).release());
  deleter_.retire(original.get(), watched_.owner());
  graph copy = original.clone();
  EXPECT_NE(copy.get(), original.get());
  original = graph();
  EXPECT_TRUE(lives());
  EXPECT_EQ(run(copy), 3);
  copy = graph();
  EXPECT_TRUE(watched_.wait());
}

TEST_F(Graph, AChildsCopyHoldsWhatTheChildHolds) {
  graph parent;
  {
    graph const child(test::chain({test::add_call(cell_.data(), 5)}).release());
    deleter_.retire(child.get(), watched_.owner());
    EXPECT_NE(parent.add_child(child), nullptr);
  }
  EXPECT_TRUE(lives());
  EXPECT_EQ(run(parent), 5);
  EXPECT_TRUE(lives());
  parent = graph();
  EXPECT_TRUE(watched_.wait());
}

TEST_F(Graph, AChildComesAfterEverythingThatIsThere) {
  // Two branches, then a child, then another: each child waits for all before it.
  graph parent(test::make_graph().release());
  cudaGraphNode_t const left = test::add_kernel(parent.get(), test::tiny_call());
  cudaGraphNode_t const right = test::add_kernel(parent.get(), test::tiny_call());
  cudaGraphNode_t const first = parent.add_child(graph(test::tiny_graph().release()));
  EXPECT_EQ(test::edge_count(parent.get()), 2U);
  cudaGraphNode_t const second = parent.add_child(graph(test::tiny_graph().release()));
  EXPECT_EQ(test::edge_count(parent.get()), 3U);
  std::size_t count = 2;
  cudaGraphNode_t before[2] = {};
  test::must(cudaGraphNodeGetDependencies(first, before, nullptr, &count));
  ASSERT_EQ(count, 2U);
  EXPECT_TRUE((before[0] == left && before[1] == right) ||
              (before[0] == right && before[1] == left));
  count = 2;
  test::must(cudaGraphNodeGetDependencies(second, before, nullptr, &count));
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(before[0], first);
}

TEST_F(Graph, OperationsOnNothingAreErrors) {
  graph const nothing(cudaGraph_t{});
  graph parent;
  EXPECT_THROW(static_cast<void>(nothing.clone()), usage_error);
  EXPECT_THROW(parent.add_child(nothing), usage_error);
  EXPECT_EQ(test::node_count(parent.get()), 0U);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(Graph, MayBeDestroyedWhileItsOwnThreadCaptures) {
  graph it;
  deleter_.retire(it.get(), watched_.owner());
  test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
  it = graph();
  EXPECT_TRUE(watched_.wait());
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow
