// Claiming and retiring on two branches of one capture from two threads while a call fails.
#include <array>
#include <atomic>
#include <escrow/sim.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "reference_set_fixture.hpp"

namespace escrow::test {
namespace {

// Two threads on two branches of one capture, one of whose calls fails.
class TwoBranches : public reference_set_test, public testing::WithParamInterface<char const*> {
 protected:
  struct branch {
    cudaStream_t stream;
    std::vector<fate_ptr> kept, refused;
    int claims_refused = 0;
  };

  TwoBranches() { errors_expected = true; }
  void TearDown() override {
    sim::clear_faults();
    reference_set_test::TearDown();
  }

  // Waits, for a moment at most, until the other thread is in its first retirement, too.
  [[nodiscard]] std::function<void()> meeting() {
    return [this] {
      arrived.fetch_add(1);
      static_cast<void>(
          wait_until([this] { return arrived.load() >= 2; }, std::chrono::milliseconds(5)));
    };
  }
  template <class Operation>
  static bool attempt(Operation operation) {
    try {
      operation();
      return true;
    } catch (cuda_error const&) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
  }
  void work_on(branch& on, block_pool& pool, bool claims_first) {
    if (claims_first) claim(on, pool);
    for (int i = 0; i < 3; ++i) {
      auto const fate = make_fate();
      bool const taken = attempt([&] {
        worker->retire(on.stream, hooked_owner(
                                      fate, i == 0 ? meeting() : [] {}));
      });
      (taken ? on.kept : on.refused).push_back(fate);
    }
    claim(on, pool);
  }
  void claim(branch& on, block_pool& pool) {
    if (!attempt([&] { library_work(pool, on.stream, 1, mismatches); })) ++on.claims_refused;
  }
  // One capture on both branches. Ends it and returns the graph.
  [[nodiscard]] owned_graph capture_both(std::array<branch, 2>& both, block_pool& pool,
                                         unsigned round) {
    arrived.store(0);
    owned_graph result;
    must(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    order(one, two);
    sim::fail_call(GetParam(), cudaErrorMemoryAllocation, 1 + round % 3);
    {
      std::jthread const other([&] { work_on(both[1], pool, round % 4 == 3); });
      work_on(both[0], pool, round % 4 >= 2);
    }
    sim::clear_faults();
    order(two, one);
    must(cudaStreamEndCapture(one, result.out()));
    return result;
  }

  std::atomic<int> arrived{0};
};

INSTANTIATE_TEST_SUITE_P(Failing, TwoBranches,
                         testing::Values("cudaUserObjectCreate", "cudaGraphRetainUserObject"),
                         [](auto const& each) { return std::string(each.param); });

TEST_P(TwoBranches, AFailureOnOneBranchNeitherReleasesEarlyNorLeaksWhatTheOtherRetires) {
  block_pool pool = make_pool(8);
  int refused = 0;
  for (unsigned round = 0; round < 150; ++round) {
    std::array<branch, 2> both{branch{one.get(), {}, {}}, branch{two.get(), {}, {}}};
    owned_graph source = capture_both(both, pool, round);
    {
      graph_exec exec(source.get());
      source.reset();
      exec.launch(three);
      sync(three);
      static_cast<void>(worker->drain_for(std::chrono::milliseconds(20)));
      for (branch const& each : both) {
        refused += each.claims_refused + static_cast<int>(each.refused.size());
        for (auto const& fate : each.kept) ASSERT_FALSE(fate->was_destroyed()) << round;
      }
    }
    for (branch const& each : both) {
      for (auto const& fate : each.kept) ASSERT_TRUE(is_released(fate)) << round;
      for (auto const& fate : each.refused) ASSERT_TRUE(is_released(fate)) << round;
    }
    ASSERT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; })) << round;
  }
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_EQ(worker->stats().leaked, 0u);
  // At least the first round's first call fails, whatever calls the others make.
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace escrow::test
