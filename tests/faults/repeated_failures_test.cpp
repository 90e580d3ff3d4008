// SPDX-License-Identifier: Apache-2.0
// Calls that fail more than once, or on another thread: Escrow reports, tries again, or leaks and
// counts. Those of graphs are in graph_failures_test.cpp.
#include <array>
#include <escrow/nodes.hpp>
#include <latch>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>

#include "allocation_watch.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

class failing_test : public world {
 protected:
  failing_test() { errors_expected = true; }
  void TearDown() override {
    sim::clear_faults();
    world::TearDown();
  }
  /// Whether the call throws what CUDA answered.
  static bool fails(auto&& call) {
    try {
      call();
    } catch (cuda_error const&) {
      return true;
    }
    return false;
  }
  /// How many errors that name the call were reported.
  [[nodiscard]] std::size_t told(std::string const& call) const {
    std::string const all = errors->all();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = all.find(call, at)) != std::string::npos; ++at) ++count;
    return count;
  }
};

class WorkerFault : public failing_test {};

TEST_F(WorkerFault, AQueryThatFailsForAWhileIsReportedOnceAndTriedAgain) {
  auto const fate = make_fate();
  hold_up(one);
  retire(one, fate);
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 20);
  EXPECT_TRUE(wait_until([&] { return told("cudaEventQuery") != 0; }));
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(told("cudaEventQuery"), 1U);
  EXPECT_EQ(worker->stats().errors, 1U);
}

TEST_F(WorkerFault, AnOwnerWhoseEventWasDestroyedIsLeakedAndBlocksNothing) {
  auto const fate = make_fate();
  owned_event event = make_event();
  hold_up(one);
  must(cudaEventRecord(event, one));
  worker->retire_after(event.get(), probe(fate));
  event.reset();  // too early
  EXPECT_TRUE(drained());
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(worker->stats().pending, 0U);
  EXPECT_EQ(told("cudaEventQuery"), 1U);
}

TEST_F(WorkerFault, WithoutRelaxedModeTheWorkerWaitsUntilItGetsIt) {
  auto const fate = make_fate();
  sim::fail_call("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown, 1, 5);
  retire(one, fate);
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(told("cudaThreadExchangeStreamCaptureMode"), 5U);
  worker->drain();
}

TEST_F(WorkerFault, AHandlerThatThrowsStopsNothing) {
  deleter its(deleter_options{.on_error = [](std::exception const&) {
    throw std::runtime_error("a handler must not do this");
  }});
  auto const fate = make_fate();
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 3);
  its.retire(one, probe(fate));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(its.stats().errors, 1U);
}

TEST_F(WorkerFault, AReferenceThatCannotBeReleasedAtOnceIsReleasedAtTheNextTry) {
  auto const fate = make_fate();
  owned_graph const graph = tiny_graph();
  sim::fail_call("cudaGraphRetainUserObject", cudaErrorMemoryAllocation);
  sim::fail_call("cudaUserObjectRelease", cudaErrorUnknown, 1, 2);
  EXPECT_THROW(worker->retire(graph.get(), probe(fate)), cuda_error);
  EXPECT_TRUE(is_released(fate));
  worker->drain();
  EXPECT_EQ(worker->stats().in_graphs, 0U);
}

/// Uses of a shared object that cannot be recorded.
class StreamSharedFault : public failing_test {
 protected:
  /// Whether the use was recorded.
  static bool record(std::shared_ptr<probe> const& shared, cudaStream_t stream) {
    return !fails([&] { record_stream(shared, stream); });
  }
  /// Drops the last share and expects that the object is leaked, and counted once.
  void expect_leaked(std::shared_ptr<probe> last) {
    last.reset();
    EXPECT_TRUE(drained());
    EXPECT_EQ(fate->times(), 0);
    EXPECT_EQ(worker->stats().leaked, 1U);
  }

  fate_ptr fate = make_fate();
  std::shared_ptr<probe> shared = make_stream_shared_by<probe>(*worker, fate);
};

class UnrecordedUse : public StreamSharedFault, public testing::WithParamInterface<char const*> {};

// The work may be eager, also if no call tells whether the stream captures.
TEST_P(UnrecordedUse, LeaksTheObjectThoughALaterUseOfTheStreamIsRecorded) {
  std::optional<capture> open;
  if (GetParam() == std::string("cudaStreamGetCaptureInfo"))
    open.emplace(one, cudaStreamCaptureModeGlobal);
  sim::fail_call_here(GetParam(), cudaErrorUnknown, 1, 100);
  EXPECT_FALSE(record(shared, one));
  EXPECT_EQ(worker->stats().errors, 1U);
  sim::clear_faults();
  EXPECT_EQ(open ? open->end() : cudaSuccess, cudaSuccess);
  EXPECT_TRUE(record(shared, one));
  expect_leaked(std::move(shared));
}

INSTANTIATE_TEST_SUITE_P(Failing, UnrecordedUse,
                         testing::Values("cudaEventRecord", "cudaStreamGetId",
                                         "cudaStreamGetCaptureInfo"));

TEST_F(StreamSharedFault, TheErrorHandlerMayRecordAUse) {
  deleter_options chosen{.own_worker = false};
  chosen.on_error = [&](std::exception const&) { EXPECT_TRUE(record(shared, two)); };
  worker = std::make_unique<deleter>(chosen);
  fate = make_fate();  // the first object is destroyed, some time
  shared = make_stream_shared_by<probe>(*worker, fate);
  sim::fail_call_here("cudaStreamGetId", cudaErrorUnknown);
  EXPECT_FALSE(record(shared, one));
  EXPECT_EQ(worker->stats().errors, 1U);
  expect_leaked(std::move(shared));
}

TEST_F(StreamSharedFault, BesideALostDeviceAUseOnAnotherLeaksTheObject) {
  owned_stream healthy;
  {
    device_scope const there(1);
    healthy = make_stream();
    hold_up(healthy);
    record_stream(shared, healthy);
  }
  hold_up(one);  // else this use may end before the device fails
  record_stream(shared, one);
  sim::fail_device(0, cudaErrorIllegalAddress);
  shared.reset();
  EXPECT_TRUE(drained()) << "a drain waits for what no call tells";
  EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
  EXPECT_EQ(worker->stats().leaked, 2U) << "one for each use";
  flag.raise();
  sim::clear_faults();
  must(cudaStreamSynchronize(healthy));  // before the flag is freed
}

class RecordFault : public failing_test {};

TEST_F(RecordFault, EachFailedRecordCostsNoSlot) {
  block_pool pool = make_pool(2);
  for (int i = 0; i < 2; ++i) {
    block_lease held = pool.claim(one);
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    EXPECT_THROW(held.release(), cuda_error);
    sim::clear_faults();
    EXPECT_FALSE(held);
  }
  block_lease const first = pool.claim(one);
  block_lease const second = pool.claim(one);
  EXPECT_EQ(pool.stats().slots, 2u);
}

TEST_F(RecordFault, OfAClaimerThatFlushesOrEndsCostsNoSlot) {
  block_pool pool = make_pool(8);  // the claimer keeps two
  for (bool const is_flushed : {true, false}) {
    std::optional local = pool.on(one);
    {
      block_lease const first = local->claim();
      block_lease const second = local->claim();
    }
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    is_flushed ? local->flush() : local.reset();
    sim::clear_faults();
    EXPECT_NE(told("cudaEventRecord"), 0U);
    EXPECT_EQ(pool.stats().deferred, 2U);
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
    EXPECT_EQ(pool.stats().deferred, 0U);
    EXPECT_EQ(pool.stats().slots, 2U);
  }
}

TEST_F(RecordFault, OfAClaimersLeaseWhoseStreamCannotBeAskedCostsNoSlot) {
  block_pool pool = make_pool(1);
  auto local = pool.on(one);
  std::optional<block_lease> held = local.claim();
  for (char const* const call : {"cudaStreamIsCapturing", "cudaStreamGetCaptureInfo"})
    sim::fail_call_here(call, cudaErrorUnknown, 1, 100);
  held.reset();
  sim::clear_faults();
  EXPECT_EQ(pool.stats().deferred, 1U);
  EXPECT_TRUE(local.try_claim().has_value());
}

TEST_F(RecordFault, AClaimWaitsInItsStreamWhereNoOtherResourceCanBeMade) {
  int made = 0;
  resource_pool<int> pool(options(64), [&] {
    if (made == 1) throw cuda_error(cudaErrorMemoryAllocation, "cudaMalloc");
    return made++;
  });
  {
    auto const held = pool.claim(one);
    hold_up(one);
  }
  EXPECT_EQ(*pool.claim(two), 0);
  EXPECT_EQ(pool.stats().stream_waits, 1u);
  auto const all_out = pool.claim(two);
  EXPECT_THROW(static_cast<void>(pool.claim(two)), cuda_error);
  flag.raise();
}

TEST(PoolFault, APoolThatCouldNotBeMadeDoesNotBindItsSharingGroupToItsDevice) {
  bool was_made = false;
  for (std::uint64_t failing = 1; !was_made; ++failing) {
    pool_options chosen{.device = 0, .group = sharing_group()};
    auto const make_pool = [&] { return resource_pool<int>(chosen, [] { return 0; }); };
    try {
      allocation_watch const watch(failing);
      static_cast<void>(make_pool());
      was_made = true;
    } catch (std::bad_alloc const&) {
      chosen.device = 1;
      EXPECT_NO_THROW(static_cast<void>(make_pool())) << "allocation " << failing << " failed";
    }
    ASSERT_LT(failing, 100U);
  }
}

class ArenaFault : public failing_test {};

TEST_F(ArenaFault, AClaimThatFailsWhileItsPoolIsClosedLosesNoSlot) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    pool_options chosen = options(4);
    chosen.group = sharing_group();
    chosen.held_until_closed = true;
    scratch_pool pool(chosen);
    std::latch begins(2);
    std::thread closes([&, pause = std::chrono::microseconds(random() % 100)] {
      begins.arrive_and_wait();
      std::this_thread::sleep_for(pause);
      static_cast<void>(pool.close_for({}));
    });
    {
      capture open{one, cudaStreamCaptureModeThreadLocal};
      constexpr std::size_t nodes = 64;
      order(one, two);
      for (std::size_t i = 0; i < nodes; ++i) {
        must(launch_tiny(two));
        order(two, one);
      }
      pool.claim(one, 4096).release();
      begins.arrive_and_wait();
      auto const claim = [&] {
        // Whether the users before are as they were cannot be learned, after some time.
        sim::fail_call_here("cudaGraphNodeGetDependencies", cudaErrorUnknown, nodes);
        pool.claim(one, 4096).release();
      };
      try {
        while (fails(claim)) {
        }
      } catch (usage_error const&) {  // it is closed
      }
      sim::clear_faults();
      must(launch_tiny(one));
    }
    closes.join();
    EXPECT_TRUE(pool.close_for(generous).empty()) << pool.describe();
  }
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
  for (std::size_t const bytes : {256U, 4096U, 1'000'000U})
    EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), bytes)), usage_error) << bytes;
}

/// Two threads on two branches of one capture, one of whose calls fails.
class TwoBranches : public failing_test, public testing::WithParamInterface<char const*> {
 protected:
  struct owner {
    fate_ptr fate;
    bool is_refused;
  };
  /// On a branch: three owners are retired, and a slot is used before, between or after them.
  [[nodiscard]] std::vector<owner> work_on(cudaStream_t stream, block_pool& pool, unsigned use_at) {
    std::vector<owner> owners;
    for (unsigned i = 0; i < 4; ++i) {
      fate_ptr const fate = make_fate();
      bool const is_refused =
          fails([&] { i == use_at ? use(pool, stream) : retire(stream, fate); });
      refused += is_refused ? 1 : 0;
      if (i != use_at) owners.push_back({fate, is_refused});
    }
    return owners;
  }

  std::atomic<int> refused{0};
};

TEST_P(TwoBranches, AFailureOnOneBranchNeitherReleasesEarlyNorLeaksWhatTheOtherRetires) {
  block_pool pool = make_pool(8);
  for (unsigned round = 0; round < 400; ++round) {
    std::array<std::vector<owner>, 2> owners;
    capture open{one, cudaStreamCaptureModeRelaxed};
    order(one, two);
    sim::fail_call(GetParam(), cudaErrorMemoryAllocation, 1 + round % 3);
    {
      std::latch both{2};
      std::jthread const other([&] {
        both.arrive_and_wait();
        owners[1] = work_on(two, pool, round % 4);
      });
      both.arrive_and_wait();
      owners[0] = work_on(one, pool, round % 4);
    }
    sim::clear_faults();
    order(two, one);
    must(open.end());
    std::optional<graph_exec> exec(open.graph().get());
    open.graph().reset();
    exec->launch(three);
    sync(three);
    static_cast<void>(drains_soon());
    std::vector<owner> all = owners[0];
    all.insert(all.end(), owners[1].begin(), owners[1].end());
    for (auto const& [fate, is_refused] : all)
      ASSERT_TRUE(is_refused || !fate->was_destroyed()) << round;
    exec.reset();
    for (auto const& [fate, is_refused] : all) {
      ASSERT_TRUE(fate->wait()) << round;
      ASSERT_EQ(fate->times(), 1) << round;
    }
    ASSERT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; })) << round;
  }
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_EQ(worker->stats().leaked, 0u);
  // At least the first round's first call fails, whatever calls the others make.
  EXPECT_GT(refused.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Failing, TwoBranches,
                         testing::Values("cudaUserObjectCreate", "cudaGraphRetainUserObject"));

}  // namespace
}  // namespace escrow::test
