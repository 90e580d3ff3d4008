// The programming guide's two schemes that captures break, done with a pool and a deleter: library
// calls that do not know whether they are captured.
#include <algorithm>
#include <escrow/graph.hpp>
#include <thread>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class LibraryCall : public captured_pool_test {
 protected:
  /// The guide's "create now, destroy after the work": the resource goes to the deleter.
  void work_with_own_resource(cudaStream_t stream, int value) {
    std::unique_ptr<block> own;
    {
      relaxed_capture_scope const relaxed;
      own = std::make_unique<block>(counts);
    }
    must(launch_fill(stream, own->data(), block::length, value));
    must(launch_check(stream, own->data(), block::length, value, mismatches.data()));
    worker->retire(stream, std::move(own));
  }
};

TEST_F(LibraryCall, GivesTheSameResultEagerAndCapturedInEveryMode) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(4);
  library_work(pool, stream, 1, mismatches);
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    capture captured{stream, mode};
    library_work(pool, stream, 2, mismatches);
    EXPECT_TRUE(captured.is_active()) << testing::PrintToString(mode);
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, stream));
    library_work(pool, stream, 3, mismatches);
    sync(stream);
  }
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(LibraryCall, WithARetiredResourceGivesTheSameResultEagerAndCaptured) {
  owned_stream const stream = make_stream();
  work_with_own_resource(stream, 1);
  sync(stream);
  EXPECT_TRUE(drained());
  EXPECT_EQ(counts.alive(), 0);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  work_with_own_resource(stream, 2);
  must(captured.end());
  owned_exec exec = instantiate(captured.graph());
  captured.graph().reset();
  for (int i = 0; i < 100; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_TRUE(drained());
  EXPECT_EQ(counts.alive(), 1);
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(LibraryCall, CapturedWithTheGraphPartGivesTheSameResult) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  graph const captured = escrow::capture(
      stream.get(), [&](stream_ref on) { library_work(pool, on.get(), 5, mismatches); });
  {
    graph_exec exec{captured};
    for (int i = 0; i < 10; ++i) exec.launch(stream.get());
    sync(stream);
  }
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
}

TEST_F(LibraryCall, ThatThrowsInTheGraphPartsCaptureLosesNothing) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  EXPECT_THROW(static_cast<void>(escrow::capture(stream.get(),
                                                 [&](stream_ref on) {
                                                   block_lease const held = pool.claim(on);
                                                   throw std::runtime_error{"no"};
                                                 })),
               std::runtime_error);
  EXPECT_TRUE(is_back(pool));
}

TEST_F(LibraryCall, RelaunchedAThousandTimesBesideEagerClaimantsNeverSharesASlot) {
  constexpr int launches = 1000;
  constexpr int claimants = 3;
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(8);
  pinned_ints graph_mismatches;
  std::vector<int> of_graph;
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  for (int call = 0; call < 3; ++call) {
    block_lease held = pool.claim(stream);
    of_graph.push_back(held->number());
    fill(held, stream, 100 + call);
    check(held, stream, 100 + call, graph_mismatches);
  }
  must(captured.end());
  owned_exec exec = instantiate(captured.graph());

  std::atomic<bool> stop{false};
  std::atomic<int> shared{0};
  std::atomic<int> claims{0};
  std::vector<std::unique_ptr<pinned_ints>> seen;
  for (int i = 0; i < claimants; ++i) seen.push_back(std::make_unique<pinned_ints>());
  std::vector<std::thread> threads;
  for (int i = 0; i < claimants; ++i) {
    threads.emplace_back([&, i] {
      owned_stream const own = make_stream();
      for (int value = 0; !stop.load(std::memory_order_relaxed); ++value) {
        block_lease held = pool.claim(own);
        if (std::ranges::count(of_graph, held->number()) != 0) shared.fetch_add(1);
        fill(held, own, i * 1'000'000 + value);
        check(held, own, i * 1'000'000 + value, *seen[static_cast<std::size_t>(i)]);
        held.release();
        claims.fetch_add(1, std::memory_order_relaxed);
        if (value % 64 == 0) sync(own);
      }
      sync(own);
    });
  }
  for (int i = 0; i < launches; ++i) must(cudaGraphLaunch(exec, stream));
  sync(stream);
  EXPECT_TRUE(wait_until([&] { return claims.load() > 100; }));
  stop.store(true);
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(shared.load(), 0);
  EXPECT_EQ(graph_mismatches.load(), 0);
  for (auto const& each : seen) EXPECT_EQ(each->load(), 0);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
  exec.reset();
  captured.graph().reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
}

}  // namespace
}  // namespace escrow::test
