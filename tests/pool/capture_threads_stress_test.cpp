// Several threads that claim in one capture at once, each on its own branch: the graph still holds
// as many slots as its widest moment.
#include <thread>

#include "capture_fixture.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

constexpr int rounds = is_sanitized ? 2'000 : 20'000;
constexpr std::size_t width = 3;

class CaptureThreads : public captured_pool_test {
 protected:
  // Captures on a branch for each thread, forked off one node and joined at the end.
  template <class Work>
  void capture_on_threads(Work const& work) {
    owned_stream const origin = make_stream();
    std::vector<owned_stream> branches(width);
    capture captured{origin, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(origin));
    for (owned_stream& branch : branches) {
      branch = make_stream();
      order(origin, branch);
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < width; ++i) {
      threads.emplace_back([&, i] { work(branches[i].get(), static_cast<int>(i)); });
    }
    for (std::thread& each : threads) each.join();
    for (owned_stream const& branch : branches) order(branch, origin);
    ASSERT_EQ(captured.end(), cudaSuccess);
    graph = std::move(captured.graph());
  }

  owned_graph graph;
};

TEST_F(CaptureThreads, ThatClaimAtOnceShareWhatWasReleasedBefore) {
  block_pool pool = make_pool(64);
  capture_on_threads([&](cudaStream_t branch, int) {
    // Nothing is captured in between, so that each slot may serve every branch.
    for (int i = 0; i < rounds; ++i) static_cast<void>(pool.claim(branch));
  });
  EXPECT_LE(pool.stats().in_graphs, width);
  EXPECT_LE(made(), static_cast<int>(width));
  graph.reset();
}

// A slot that one thread has just released belongs to the next, with what that one notes of it.
TEST_F(CaptureThreads, ThatRecordStreamsAndReleaseAtOnceLoseNoRecord) {
  block_pool pool = make_pool(64);
  capture_on_threads([&](cudaStream_t branch, int) {
    for (int i = 0; i < rounds; ++i) {
      block_lease held = pool.claim(branch);
      held.record_stream(branch);
    }
  });
  EXPECT_LE(pool.stats().in_graphs, width);
  graph.reset();
}

// A node's share ends on any thread, also while the capture of the lease goes on.
TEST_F(CaptureThreads, ThatReleaseWhileASharesEndIsReclaimedDoNotMeet) {
  block_pool pool = make_pool(1);
  owned_stream const stream = make_stream();
  for (int i = 0; i < 20; ++i) {
    capture captured{stream, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(stream));
    {
      block_lease held = pool.claim(stream);
      static_cast<void>(held.share_with_node());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the worker takes the share
    }
    ASSERT_EQ(captured.end(), cudaSuccess);
    captured.graph().reset();
    ASSERT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  }
}

TEST_F(CaptureThreads, ThatWorkAtOnceKeepEachASlotAndNeverHaveOneInTwoHands) {
  block_pool pool = make_pool(64);
  std::vector<std::atomic<int>> users(64);
  std::atomic<int> shared{0};
  capture_on_threads([&](cudaStream_t branch, int value) {
    for (int i = 0; i < 100; ++i) {
      block_lease held = pool.claim(branch);
      auto& in_use = users[static_cast<std::size_t>(held->number())];
      shared.fetch_add(in_use.fetch_add(1));
      fill(held, branch, value);
      check(held, branch, value, mismatches);
      in_use.fetch_sub(1);
    }
  });
  EXPECT_EQ(shared.load(), 0);
  EXPECT_LE(pool.stats().in_graphs, width);
  owned_stream const stream = make_stream();
  owned_exec const exec = instantiate(graph);
  for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_EQ(mismatches.load(), 0);
  graph.reset();
}

}  // namespace
}  // namespace escrow::test
