// Records, waits and hooks that fail: what becomes of the slot; and a capture on two branches, in
// one of which a call fails.
#include <array>
#include <atomic>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "allocation_watch.hpp"
#include "pool_stage.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

class RecordFault : public testing::Test {
 protected:
  void TearDown() override {
    sim::clear_faults();
    EXPECT_EQ(in.end_pool(), leaked);
  }
  /// Releases while nothing can be recorded.
  void release_unrecorded() {
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    EXPECT_THROW(in.held->release(), cuda_error);
    sim::clear_faults();
    EXPECT_FALSE(*in.held);
  }
  void expect_waits_for_the_work() {
    in.held = in.pool->claim(in.other);
    EXPECT_FALSE(is_idle(in.other)) << "it waits for the work before";
  }

  pool_stage in;
  std::size_t leaked = 0;
};

TEST_F(RecordFault, EachFailedRecordCostsNoSlot) {
  in.make_pool(2);
  for (int i = 0; i < 2; ++i) {
    in.claim_on(in.one);
    release_unrecorded();
  }
  block_lease const first = in.pool->claim(in.one);
  block_lease const second = in.pool->claim(in.one);
  EXPECT_EQ(in.pool->stats().slots, 2u);
}

TEST_F(RecordFault, ASlotThatCannotBeRecordedWaitsForItsStream) {
  in.make_pool(1);
  in.claim_on(in.one);
  in.keep_busy(*in.held, in.one);
  release_unrecorded();
  EXPECT_EQ(in.pool->stats().deferred, 1u);
  EXPECT_FALSE(in.pool->try_claim(in.other).has_value());
  EXPECT_TRUE(in.pool->try_claim(in.one).has_value());
  EXPECT_EQ(in.pool->stats().deferred, 0u);
  expect_waits_for_the_work();
}

TEST_F(RecordFault, ASlotThatIsNeverRecordedIsNamedByCloseAndLeakedWithThePool) {
  leaked = 1;
  in.make_pool(1);
  in.claim_on(in.one);
  release_unrecorded();
  auto const left = in.pool->close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].waits_for, in.one.get());
  EXPECT_EQ(left[0].slots, 1u);
  in.pool.reset();
  EXPECT_TRUE(in.worker->drain_for(generous));
  EXPECT_EQ(in.counts.destroyed.load(), 0);
  EXPECT_EQ(in.worker->stats().leaked, 1u);
}

TEST_F(RecordFault, AClaimWaitsInItsStreamWhereNoOtherResourceCanBeMade) {
  int made = 0;
  deleter polled{deleter_options{.own_worker = false}};
  resource_pool<int> pool({.slots_max = 64, .deleter = &polled}, [&] {
    if (made == 1) throw cuda_error(cudaErrorMemoryAllocation, "cudaMalloc");
    return made++;
  });
  {
    auto const held = pool.claim(in.one);
    must(launch_wait_flag(in.one, in.flag.get()));
  }
  EXPECT_EQ(*pool.claim(in.other), 0);
  EXPECT_EQ(pool.stats().stream_waits, 1u);
  auto const all_out = pool.claim(in.other);
  EXPECT_THROW(static_cast<void>(pool.claim(in.other)), cuda_error);
  in.flag.raise();
}

TEST_F(RecordFault, AFailedQueryMeansThatTheSlotIsNotDoneYet) {
  in.make_pool(1);
  in.claim_on(in.one);
  in.held->release();
  sync(in.one);
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown);
  in.claim_on(in.other);
  EXPECT_EQ(in.pool->stats().stream_waits, 1u);
  EXPECT_EQ(in.pool->stats().deferred, 0u);
}

TEST(ScratchPoolFault, IsClosedForAllSizesThoughItCannotSayWhichLeasesAreLeft) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  auto const small = pool.claim(stream.get(), 256);
  auto const large = pool.claim(stream.get(), 4096);
  {
    allocation_watch const watch(1, allocation_watch::for_ever);
    EXPECT_THROW(static_cast<void>(pool.close_for(std::chrono::nanoseconds(0))), std::bad_alloc);
  }
  for (std::size_t const bytes : {256U, 4096U, 1'000'000U}) {
    EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), bytes)), usage_error) << bytes;
  }
}

/// An owner that calls a function while it is moved for the first time: retire() does that after it
/// has asked for the capture, and before the graph has the owner.
class meeting_owner {
 public:
  meeting_owner(fate_ptr fate, std::function<void()> meet)
      : told_(std::move(fate)), meet_(std::move(meet)) {}
  meeting_owner(meeting_owner&& other) : told_(std::move(other.told_)) {
    if (auto const meet = std::exchange(other.meet_, {})) meet();
  }

 private:
  probe told_;
  std::function<void()> meet_;
};

/// Two threads on two branches of one capture, one of whose calls fails.
class TwoBranches : public world, public testing::WithParamInterface<char const*> {
 protected:
  struct branch {
    cudaStream_t stream;
    std::vector<fate_ptr> kept, refused;
    int claims_refused = 0;
  };

  TwoBranches() { errors_expected = true; }

  /// Waits, for a moment at most, until the other thread is in its first retirement, too.
  void meet() {
    arrived.fetch_add(1);
    static_cast<void>(
        wait_until([this] { return arrived.load() >= 2; }, std::chrono::milliseconds(5)));
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
    auto const claim = [&] { on.claims_refused += attempt([&] { use(pool, on.stream); }) ? 0 : 1; };
    if (claims_first) claim();
    for (int i = 0; i < 3; ++i) {
      auto const fate = make_fate();
      meeting_owner owner(fate, [this, i] {
        if (i == 0) meet();
      });
      bool const taken = attempt([&] { worker->retire(on.stream, std::move(owner)); });
      (taken ? on.kept : on.refused).push_back(fate);
    }
    claim();
  }
  /// Captures on both branches and returns the graph.
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
      static_cast<void>(drains_soon());
      for (branch const& each : both) {
        refused += each.claims_refused + static_cast<int>(each.refused.size());
        for (auto const& fate : each.kept) ASSERT_FALSE(fate->was_destroyed()) << round;
      }
    }
    for (branch const& each : both) {
      for (auto const& fate : each.kept) ASSERT_TRUE(fate->wait()) << round;
      for (auto const& fate : each.refused) ASSERT_TRUE(fate->wait()) << round;
      for (auto const& fate : each.kept) ASSERT_EQ(fate->times(), 1) << round;
      for (auto const& fate : each.refused) ASSERT_EQ(fate->times(), 1) << round;
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
