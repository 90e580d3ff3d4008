// SPDX-License-Identifier: Apache-2.0
// On the simulator only: large numbers of objects and threads, threads that claim in one capture at
// once, and graphs by the hundred thousand, of which nothing may be left.
#include <malloc.h>

#include "stress_world.hpp"

// Of the sanitizers' runtimes; not every compiler brings the header.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();

namespace escrow::test {
namespace {

// Each thread has a branch of one capture. CUDA promises nothing for that.
class CaptureThreads : public world {
 protected:
  static constexpr int rounds = is_sanitized ? 1'000 : 20'000;
  static constexpr std::size_t width = 3;

  /// In a mode that allows the threads' own calls.
  [[nodiscard]] owned_graph captured_relaxed(auto const& work) {
    capture open(one, cudaStreamCaptureModeRelaxed);
    must(launch_tiny(one));
    work();
    must(open.end());
    return std::move(open.graph());
  }
  /// Each thread's branch forks off one node and is joined at the end.
  [[nodiscard]] owned_graph capture_on_threads(auto const& work) {
    std::vector<owned_stream> branches(width);
    for (owned_stream& branch : branches) branch = make_stream();
    return captured_relaxed([&] {
      for (owned_stream const& branch : branches) order(one, branch);
      {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < width; ++i) {
          threads.emplace_back([&, i] { work(branches[i].get(), static_cast<int>(i)); });
        }
      }
      for (owned_stream const& branch : branches) order(branch, one);
    });
  }
};

// Nothing is captured in between, so that each slot may serve every branch; a slot that one thread
// released belongs to the next, with the streams that this one records.
TEST_F(CaptureThreads, ShareTheSlotsThatWereReleased) {
  for (bool const records : {false, true}) {
    block_pool pool = make_pool(64);
    owned_graph const graph = capture_on_threads([&](cudaStream_t branch, int) {
      for (int i = 0; i < rounds; ++i) {
        block_lease held = pool.claim(branch);
        if (records) held.record_stream(branch);
      }
    });
    EXPECT_LE(pool.stats().in_graphs, width);
    EXPECT_LE(pool.stats().slots, width);
  }
}

// A share of a node ends on any thread, also while the lease's capture goes on.
TEST_F(CaptureThreads, MayReleaseWhileTheWorkerReclaimsAShareOfTheLease) {
  block_pool pool = make_pool(1);
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(captured_relaxed([&] {
      block_lease held = pool.claim(one.get());
      static_cast<void>(held.share_with_node());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the worker takes the share
    }));
    ASSERT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  }
}

TEST_F(CaptureThreads, HaveASlotEachAtATime) {
  block_pool pool = make_pool(64);
  std::vector<std::atomic<int>> users(64);
  std::atomic<int> shared{0};
  owned_graph const graph = capture_on_threads([&](cudaStream_t branch, int value) {
    for (int i = 0; i < 100; ++i) {
      block_lease held = pool.claim(branch);
      auto& in_use = users[static_cast<std::size_t>(held->number())];
      shared.fetch_add(in_use.fetch_add(1));
      fill(held, branch, value);
      check(held, branch, value, mismatches);
      in_use.fetch_sub(1);
    }
  });
  EXPECT_EQ(shared, 0);
  EXPECT_LE(pool.stats().in_graphs, width);
  owned_exec const exec = instantiate(graph);
  for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, two));
  sync(two);
}

// Enough rounds that what caches take once, up to some 40 KB by chance, is a few bytes a round.
constexpr int many = built_with_tsan ? 6'000 : built_with_asan ? 12'000 : 100'000;
constexpr int some = built_with_tsan ? 6'000 : built_with_asan ? 12'000 : 20'000;

class GraphGrowth;

/// What is done again and again to a graph or an exec that stays, if any.
struct growing {
  char const* name;
  void (GraphGrowth::*round)();
  int rounds = some;
  bool keeps_graph = false;
  bool keeps_exec = false;
  // AddressSanitizer keeps freed memory, and with it the simulator's handles, from being used
  // again.
  bool reuses_handles = false;
};

class GraphGrowth : public world, public testing::WithParamInterface<growing> {
 public:
  void capture_and_launch() { graph_exec(made_graph()).launch(two); }
  void hoist_and_release() { hoist(made_graph()).release(); }
  void instantiate_and_launch() { graph_exec(*source).launch(two); }
  void update_and_launch() {
    exec->update(made_graph());
    exec->launch(two);
  }
  void clone() { static_cast<void>(source->clone()); }
  void embed_and_launch() {
    graph parent(*worker);
    parent.add_child(*source);
    graph_exec(parent).launch(two);
  }

 protected:
  [[nodiscard]] graph made_graph() {
    return captured([&](cudaStream_t on) {
      use(*pool, on);
      worker->retire(on, std::make_shared<int>(1));
    });
  }
  void round() { (this->*GetParam().round)(); }
  void settle() {
    sync(two);
    ASSERT_TRUE(drained());
  }
  /// Bytes of the heap that are in use, once all that can be reclaimed has been.
  [[nodiscard]] std::size_t settled_heap() {
    settle();
    if constexpr (is_sanitized) {
      return __sanitizer_get_current_allocated_bytes();
    } else {
      return mallinfo2().uordblks;
    }
  }

  std::optional<block_pool> pool;
  std::optional<graph> source;
  std::optional<graph_exec> exec;
};

TEST_P(GraphGrowth, LeavesNothingOnTheHeapAndInPools) {
  growing const& given = GetParam();
  if (built_with_asan && given.reuses_handles) GTEST_SKIP() << "handles are not used again here";
  pool_options chosen = options(8);
  chosen.host_wait_max = generous;  // for graphs that were just destroyed
  pool.emplace(make_pool(chosen));
  if (given.keeps_graph) source = made_graph();
  if (given.keeps_exec) exec.emplace(made_graph());
  for (int i = 0; i < given.rounds / 10; ++i) round();  // for the caches
  std::size_t const before = settled_heap();
  for (int i = 0; i < given.rounds; ++i) {
    round();
    if (i % 64 == 0) settle();
  }
  std::size_t const after = settled_heap();
  auto const rounds = static_cast<std::size_t>(given.rounds);
  EXPECT_LT(after, before + rounds * 8) << (after - before) / rounds << " bytes a round";
  source.reset();
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return drained() && worker->stats().in_graphs == 0; }));
  EXPECT_EQ(pool->stats().in_graphs, 0U);
  EXPECT_TRUE(graph_registry::global().is_empty());
  pool.reset();
}

using g = GraphGrowth;
constexpr growing all_growing[] = {
    {.name = "Captures", .round = &g::capture_and_launch, .rounds = many},
    {.name = "Hoisted", .round = &g::hoist_and_release},
    {.name = "Execs", .round = &g::instantiate_and_launch, .keeps_graph = true},
    {.name = "Updates", .round = &g::update_and_launch, .keeps_exec = true},
    {.name = "Clones", .round = &g::clone, .keeps_graph = true, .reuses_handles = true},
    {.name = "Parents", .round = &g::embed_and_launch, .keeps_graph = true, .reuses_handles = true},
};
INSTANTIATE_TEST_SUITE_P(Of, GraphGrowth, testing::ValuesIn(all_growing),
                         [](auto const& given) { return given.param.name; });

}  // namespace
}  // namespace escrow::test
