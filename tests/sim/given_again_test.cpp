// SPDX-License-Identifier: Apache-2.0
// Handles that are given again: at once if the runtime runs free, as the seed says if it is
// stepped. The same sources are in tests/conformance for what a GPU shows, too.
#include <set>

#include "deep.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// One of each kind that has a handle, made in this order and destroyed.
struct handles {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaGraphNode_t node = nullptr;

  handles() {
    owned_stream const its_stream = make_stream();
    owned_event const its_event = make_event();
    owned_graph const its_graph = make_graph();
    must(cudaGraphAddEmptyNode(&node, its_graph, nullptr, 0));
    owned_exec const its_exec = instantiate(its_graph);
    stream = its_stream, event = its_event, graph = its_graph, exec = its_exec;
  }
};

// Keeps the heap from giving the same memory again by itself.
std::vector<std::unique_ptr<char[]>> what_the_heap_has() {
  std::vector<std::unique_ptr<char[]>> taken;
  for (std::size_t bytes = 8; bytes < 1024; bytes += 8) taken.emplace_back(new char[bytes]);
  return taken;
}

unsigned long long id_of(cudaStream_t stream) {
  unsigned long long id = 0;
  must(cudaStreamGetId(stream, &id));
  return id;
}

using GivenAgain = fresh_runtime;

TEST_F(GivenAgain, AtOnceIfTheRuntimeRunsFree) {
  for (int i = 0; i < 3; ++i) {
    handles const first;
    auto const taken = what_the_heap_has();
    handles const second;
    EXPECT_EQ(second.stream, first.stream);
    EXPECT_EQ(second.event, first.event);
    EXPECT_EQ(second.graph, first.graph);
    EXPECT_EQ(second.exec, first.exec);
    // A node's handle is its address, which AddressSanitizer watches.
    EXPECT_EQ(second.node == first.node, !built_with_asan);
  }
}

TEST_F(GivenAgain, TheNewestFirst) {
  cudaStream_t const older = make_stream().release();
  cudaStream_t const newer = make_stream().release();
  must(cudaStreamDestroy(older));
  must(cudaStreamDestroy(newer));
  owned_stream const first = make_stream();
  owned_stream const second = make_stream();
  EXPECT_EQ(first, newer);
  EXPECT_EQ(second, older);
  EXPECT_NE(id_of(first), id_of(second));
}

TEST_F(GivenAgain, ActsOnTheNewStreamWhoeverHoldsTheOldHandle) {
  pinned_flag flag;
  pinned_ints cell;
  owned_stream old = make_stream();
  must(launch_wait_flag(old, flag.get()));
  must(launch_add(old, cell.data(), 1));
  cudaStream_t const stale = old.get();
  auto const old_id = id_of(old);
  old.reset();
  owned_stream const fresh = make_stream();
  ASSERT_EQ(fresh, stale);
  EXPECT_NE(id_of(stale), old_id);
  EXPECT_EQ(cudaStreamQuery(stale), cudaSuccess);
  EXPECT_EQ(sim::alive().streams, 1U);
  flag.raise();
  must(cudaDeviceSynchronize());
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(GivenAgain, NeverIfTheOptionsSayThat) {
  for (bool const is_stepped : {false, true}) {
    sim::reset({.stepped = is_stepped, .reuses_handles = false});
    std::set<void const*> seen;
    constexpr std::size_t rounds = 20;
    for (std::size_t i = 0; i < rounds; ++i) {
      handles const each;
      for (void const* handle :
           {static_cast<void const*>(each.stream), static_cast<void const*>(each.event),
            static_cast<void const*>(each.graph), static_cast<void const*>(each.exec),
            static_cast<void const*>(each.node)})
        seen.insert(handle);
    }
    EXPECT_EQ(seen.size(), 5 * rounds);
  }
}

// For each of some rounds, whether each handle was given again.
std::string given_again_in_this_run() {
  std::string result;
  handles last;
  for (int i = 0; i < 10; ++i) {
    auto const taken = what_the_heap_has();
    handles const next;
    for (bool const is_same :
         {next.stream == last.stream, next.event == last.event, next.graph == last.graph,
          next.exec == last.exec, !built_with_asan && next.node == last.node})
      result += is_same ? 'y' : 'n';
    last = next;
  }
  return result;
}

TEST_F(GivenAgain, AsTheSeedSaysIfTheRuntimeIsStepped) {
  std::set<std::string> all;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    sim::reset({.stepped = true, .seed = seed});
    auto const once = given_again_in_this_run();
    EXPECT_NE(once.find('y'), std::string::npos);
    EXPECT_NE(once.find('n'), std::string::npos);
    all.insert(once);
    sim::reset({.stepped = true, .seed = 100});
    handles const before;
    sim::reseed(seed);
    EXPECT_EQ(given_again_in_this_run(), once) << "what earlier runs gave up does not count";
  }
  EXPECT_EQ(all.size(), 20U);
}

TEST_F(GivenAgain, NoOtherChoiceOfARunDependsOnIt) {
  std::vector<std::string> orders;
  for (bool const does_reuse : {false, true}) {
    sim::reset({.stepped = true, .reuses_handles = does_reuse, .seed = 3});
    std::string order;
    std::vector<std::pair<std::string*, char>> letters;
    for (char const letter : std::string("abcdef")) letters.emplace_back(&order, letter);
    for (auto& each : letters) {
      owned_stream const stream = make_stream();  // its work outlives it
      must(cudaLaunchHostFunc(
          stream,
          [](void* argument) {
            auto const& [to, letter] = *static_cast<std::pair<std::string*, char>*>(argument);
            to->push_back(letter);
          },
          &each));
    }
    must(cudaDeviceSynchronize());
    orders.push_back(order);
  }
  EXPECT_EQ(orders[0], orders[1]);
}

}  // namespace
}  // namespace escrow::test
