// Two threads that make or end what is of one graph: CUDA corrupts the heap, the simulator says so
// and ends the process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "build_graph.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

/// A graph, and what may be made of it.
struct family {
  owned_graph original = tiny_graph();
  owned_graph copy;
  owned_graph parent;
  owned_exec exec;
};

cudaGraph_t plain_clone(cudaGraph_t original) {
  cudaGraph_t made = nullptr;
  must(cudaGraphClone(&made, original));
  return made;
}

// Each makes and ends something, and leaves the family as it was.
void clone_and_end(family& of) {
  must(cudaGraphDestroy(plain_clone(of.original)));
}
void instantiate_and_end(family& of) {
  static_cast<void>(instantiate(of.original));
}
void embed_and_end(family& of) {
  owned_graph const parent = make_graph();
  add_child(parent, of.original);
}
void add_and_destroy_child(family& of) {
  must(cudaGraphDestroyNode(add_child(of.parent, of.original)));
}
void add_and_destroy_node(family& of) {
  must(cudaGraphDestroyNode(add_kernel(of.original, tiny_call())));
}
void update(family& of) {
  cudaGraphExecUpdateResultInfo info{};
  must(cudaGraphExecUpdate(of.exec, of.original, &info));
}
// Nothing of the original's.
void instantiate_the_copy(family& of) {
  static_cast<void>(instantiate(of.copy));
}
void instantiate_the_parent(family& of) {
  static_cast<void>(instantiate(of.parent));
}
void change_the_copy(family& of) {
  must(cudaGraphDestroyNode(add_kernel(of.copy, tiny_call())));
}
void launch(family& of) {
  owned_stream const stream = make_stream();
  must(cudaGraphLaunch(of.exec, stream));
  must(cudaStreamSynchronize(stream));
}

using deed = void (*)(family&);

// Two threads, until they met or have each had their time and some rounds. `in_turn`: one at a
// time.
void fight(deed one, deed other, std::chrono::milliseconds time, bool in_turn = false) {
  family of;
  of.copy = owned_graph(plain_clone(of.original));
  of.parent = make_graph();
  add_child(of.parent, of.original);
  of.exec = instantiate(of.original);
  std::atomic<bool> is_over{false};
  std::mutex turns;
  auto const work = [&](deed done) {
    constexpr int rounds_min = 10;
    for (int round = 0; round < rounds_min || !is_over.load(std::memory_order_relaxed); ++round) {
      std::unique_lock lock(turns, std::defer_lock);
      if (in_turn) lock.lock();
      done(of);
    }
  };
  std::thread first(work, one);
  std::thread second(work, other);
  static_cast<void>(wait_until([] { return false; }, time));
  is_over.store(true, std::memory_order_relaxed);
  first.join();
  second.join();
}

struct pair {
  char const* name;
  deed one;
  deed other;
};
constexpr auto name_of = [](auto const& each) { return each.param.name; };

class SimFamilies : public testing::TestWithParam<pair> {};
TEST_P(SimFamilies, EndTheProcessIfTwoThreadsAreAtOneOfThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(fight(GetParam().one, GetParam().other, generous),
               "both make or end what is of one graph");
}
INSTANTIATE_TEST_SUITE_P(
    ThatWould, SimFamilies,
    testing::Values(pair{"CloneAndClone", clone_and_end, clone_and_end},
                    pair{"InstantiateAndClone", instantiate_and_end, clone_and_end},
                    pair{"EmbedAndClone", embed_and_end, clone_and_end},
                    pair{"DestroyAChildAndClone", add_and_destroy_child, clone_and_end},
                    pair{"DestroyANodeAndInstantiate", add_and_destroy_node, instantiate_and_end},
                    pair{"UpdateAndInstantiate", update, instantiate_and_end}),
    name_of);

class SimFamiliesApart : public testing::TestWithParam<pair> {};
TEST_P(SimFamiliesApart, AreNoConcernOfEachOther) {
  fight(GetParam().one, GetParam().other, std::chrono::milliseconds{50});
}
INSTANTIATE_TEST_SUITE_P(
    As, SimFamiliesApart,
    testing::Values(pair{"AnExecOfTheCloneAndAClone", instantiate_the_copy, clone_and_end},
                    pair{"AnExecOfTheParentAndAClone", instantiate_the_parent, clone_and_end},
                    pair{"ANodeOfTheCloneAndAClone", change_the_copy, clone_and_end},
                    pair{"LaunchesAndAClone", launch, clone_and_end}),
    name_of);

TEST(SimFamiliesInTurn, MayBeOneForTwoThreads) {
  fight(instantiate_and_end, clone_and_end, std::chrono::milliseconds{50}, true);
}

}  // namespace
}  // namespace escrow::test
