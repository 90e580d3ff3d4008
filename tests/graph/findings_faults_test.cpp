// The end of a launch that cannot be recorded: other execs can be launched, what the graph held is
// released after its last launch, and the end of a conditional exec does not block other threads.
#include <atomic>
#include <cstdint>
#include <escrow/sim.hpp>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "allocation_watch.hpp"
#include "lifetime_fixture.hpp"

namespace escrow::test {
namespace {

constexpr std::uint64_t while_launching = 1'000'000;

// How often in a row cudaEventRecord fails: in two tries of one launch, or in all of them.
class UnrecordedEnd : public lifetime_test, public testing::WithParamInterface<std::uint64_t> {
 protected:
  UnrecordedEnd() { errors_expected = true; }
  void TearDown() override {
    sim::clear_faults();
    lifetime_test::TearDown();
  }

  // A graph that writes to a slot, so that its execs are ordered, and that ends by itself: a launch
  // may wait for its own end if it cannot be recorded.
  [[nodiscard]] graph using_slot(block_pool& pool) {
    return captured([&](cudaStream_t on) {
      library_work(pool, on, 1, mismatches);
      must(launch_add(on, ended(), 1));
    });
  }
  // Launches while nothing can be recorded. Whether it throws is up to launch(): the graph runs.
  void launch_unrecorded(graph_exec& exec) {
    sim::fail_call_here("cudaEventRecord", cudaErrorMemoryAllocation, 1, GetParam());
    try {
      exec.launch(two);
    } catch (cuda_error const& error) {
      EXPECT_STREQ(error.api(), "cudaEventRecord");
    }
    sim::clear_faults();
    static_cast<void>(cudaGetLastError());
    ASSERT_TRUE(have_ended(1));
    sync(two);
  }
};

INSTANTIATE_TEST_SUITE_P(Failures, UnrecordedEnd, testing::Values(2, while_launching));

TEST_P(UnrecordedEnd, OfAnExecThatWasDestroyedLeavesTheOtherExecsOfTheGraphUsable) {
  block_pool pool = make_pool(1);
  graph const source = using_slot(pool);
  graph_exec other(source);
  {
    graph_exec exec(source);
    launch_unrecorded(exec);
  }
  EXPECT_NO_THROW(other.launch(three));
  EXPECT_NO_THROW(graph_exec(source).launch(three));
  graph const copy = source.clone();
  EXPECT_NO_THROW(graph_exec(copy).launch(three));
  EXPECT_TRUE(have_ended(4));
}

TEST_P(UnrecordedEnd, OfAnExecThatIsAliveLeavesTheOtherExecsOfTheGraphUsable) {
  block_pool pool = make_pool(1);
  graph const source = using_slot(pool);
  graph_exec other(source);
  graph_exec exec(source);
  launch_unrecorded(exec);
  EXPECT_NO_THROW(other.launch(three));
  EXPECT_NO_THROW(exec.launch(two));
  EXPECT_TRUE(have_ended(3));
}

TEST_P(UnrecordedEnd, LeaksNothing) {
  block_pool pool = make_pool(1);
  auto const fate = make_fate();
  {
    graph_exec exec(captured([&](cudaStream_t on) {
      library_work(pool, on, 1, mismatches);
      retire(on, fate);
      must(launch_add(on, ended(), 1));
    }));
    launch_unrecorded(exec);
  }
  EXPECT_TRUE(is_released(fate));
  EXPECT_TRUE(is_released(pool));
  EXPECT_EQ(worker->stats().leaked, 0u);
}

class FailedGraph : public lifetime_test {
 protected:
  void TearDown() override {
    sim::clear_faults();
    lifetime_test::TearDown();
  }
  // A plain capture of a retirement. Its graph may have any handle that is free.
  [[nodiscard]] owned_graph retired_in_capture(fate_ptr const& fate) {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    retire(one, fate);
    must(captured.end());
    return std::move(captured.graph());
  }
};

// CUDA gives the handle of a graph that could not be taken over to the next graphs. What these hold
// is told apart all the same.
TEST_F(FailedGraph, LeavesNothingBehindThatMixesUpLaterGraphsWithItsHandle) {
  for (int i = 0; i < 20; ++i) {
    sim::fail_call_here("cudaGetDevice", cudaErrorUnknown);
    EXPECT_THROW(graph(), cuda_error);
    sim::clear_faults();
    owned_graph first = retired_in_capture(make_fate());
    cudaGraph_t const handle = first.get();
    owned_exec exec = instantiate(first);
    first.reset();
    auto const fate = make_fate();
    owned_graph const second = retired_in_capture(fate);
    exec.reset();
    if (second.get() != handle) continue;
    ASSERT_TRUE(is_kept(fate)) << "its graph is alive";
  }
}

// Whatever allocation fails.
TEST_F(FailedGraph, ThatCouldNotBeDetachedStillKnowsWhatItHolds) {
  bool has_failed = true;
  for (std::uint64_t n = 1; has_failed; ++n) {
    graph source;
    auto const fate = make_fate();
    capture_into(source.get(), [&](cudaStream_t on) { retire(on, fate); });
    has_failed = false;
    owned_graph detached;
    try {
      allocation_watch const watch(n);
      *detached.out() = source.detach();
    } catch (std::bad_alloc const&) {
      has_failed = true;
    }
    if (!has_failed) break;
    ASSERT_LE(n, 100u);
    EXPECT_EQ(source.held().owners, 1u) << "allocation " << n;
    graph_exec const exec(source);
    EXPECT_TRUE(exec.is_bare());
    EXPECT_EQ(exec.held().owners, 1u) << "allocation " << n;
  }
}

class ConditionalExec : public lifetime_test {
 protected:
  ConditionalExec() { errors_expected = true; }
  void TearDown() override {
    sim::clear_faults();
    lifetime_test::TearDown();
  }
  // What other threads do meanwhile.
  void build_and_launch() {
    owned_stream const own = make_stream();
    owned_graph const tiny = tiny_graph();
    graph_exec exec(tiny.get());
    exec.launch(own.get());
    sync(own);
  }
};

// CUDA waits for the launches of an exec with conditional nodes as it destroys it, and blocks other
// threads meanwhile, so Escrow has to know that they are done; also if it could not record an
// event.
TEST_F(ConditionalExec, WhoseLaunchWasNotRecordedDoesNotBlockOtherThreadsAtItsEnd) {
  owned_graph source = make_graph();
  cudaGraph_t const body = add_conditional(source);
  add_kernel(body, wait_flag_call(flag.get()));
  std::optional<graph_exec> exec(source.get());
  std::atomic<bool> is_over{false};
  std::atomic<bool> is_built{false};
  auto const records = sim::calls("cudaEventRecord");
  {
    std::jthread const ending([&] {
      sim::fail_call_here("cudaEventRecord", cudaErrorMemoryAllocation, 1, 2);
      try {
        exec->launch(two);
      } catch (cuda_error const&) {
        static_cast<void>(cudaGetLastError());
      }
      exec.reset();
      is_over.store(true, std::memory_order_release);
    });
    EXPECT_TRUE(wait_until([&] { return sim::calls("cudaEventRecord") >= records + 2; }));
    EXPECT_TRUE(stays_false([&] { return is_over.load(std::memory_order_acquire); }));
    std::jthread const building([&] {
      build_and_launch();
      is_built.store(true, std::memory_order_release);
    });
    EXPECT_TRUE(wait_until([&] { return is_built.load(std::memory_order_acquire); }))
        << "other threads wait for the launch";
    flag.raise();
  }
}

}  // namespace
}  // namespace escrow::test
