// Two threads that make or end what is of one graph: CUDA corrupts the heap, the simulator says so
// and ends the process.
#include <gtest/gtest.h>

#include <atomic>
#include <escrow/core/family_turn.hpp>
#include <optional>
#include <thread>

#include "build_graph.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

cudaGraph_t plain_clone(cudaGraph_t original) {
  cudaGraph_t made = nullptr;
  must(cudaGraphClone(&made, original));
  return made;
}

// Two threads make and end clones of the first graph and of the second, until they met or have
// had their time. `in_turn`: one at a time.
void clone_and_end(cudaGraph_t first, cudaGraph_t second, std::chrono::milliseconds time,
                   bool in_turn) {
  std::atomic<bool> is_over{false};
  auto const work = [&](cudaGraph_t original) {
    while (!is_over.load(std::memory_order_relaxed)) {
      std::optional<family_turn> turn;
      if (in_turn) turn.emplace();
      must(cudaGraphDestroy(plain_clone(original)));
    }
  };
  std::thread one(work, first);
  std::thread other(work, second);
  static_cast<void>(wait_until([] { return false; }, time));
  is_over.store(true, std::memory_order_relaxed);
  one.join();
  other.join();
}

TEST(SimFamilies, EndTheProcessIfTwoThreadsAreAtOneOfThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        owned_graph const graph = tiny_graph();
        clone_and_end(graph, graph, generous, false);
      },
      "both make or end what is of one graph");
}

TEST(SimFamilies, MayBeAnotherForEachThread) {
  owned_graph const one = tiny_graph();
  owned_graph const other(plain_clone(one));  // its clones are no clones of the first
  clone_and_end(one, other, std::chrono::milliseconds{100}, false);
}

TEST(SimFamilies, MayBeOneIfThreadsTakeTurns) {
  owned_graph const graph = tiny_graph();
  clone_and_end(graph, graph, std::chrono::milliseconds{100}, true);
}

}  // namespace
}  // namespace escrow::test
