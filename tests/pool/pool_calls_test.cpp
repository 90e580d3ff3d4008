// SPDX-License-Identifier: Apache-2.0
// What claims and releases ask of CUDA: near one event record an eager claim, two questions one in
// a capture, and no storm of questions while it waits.
#include <map>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

/// The calls of CUDA on this thread while `run` runs, by name; the count of all by "". Without the
/// search for a function of the driver, which is once a process.
std::map<std::string, std::size_t> calls_of(auto run) {
  sim::start_recording(sim::recorded_threads::this_one);
  run();
  std::map<std::string, std::size_t> result;
  for (auto const& call : sim::stop_recording()) {
    if (call.api == "cudaGetDriverEntryPointByVersion" || call.api == "cudaDriverGetVersion")
      continue;
    ++result[call.api];
    ++result[""];
  }
  return result;
}

class PoolCalls : public pool_world {};

TEST_F(PoolCalls, AClaimOfTheStreamsOwnSlotAndItsReleaseMakeOneEventRecordAndFewQuestions) {
  block_pool pool = make_pool(4);
  pool.claim(one).release();
  ASSERT_TRUE(drained());
  auto calls = calls_of([&] {
    for (int i = 0; i < 100; ++i) pool.claim(one).release();
  });
  EXPECT_EQ(calls["cudaEventRecord"], 100U);
  EXPECT_EQ(calls["cudaStreamWaitEvent"], 0U);
  EXPECT_EQ(calls["cudaEventQuery"], 0U);
  EXPECT_LE(calls["cudaStreamGetCaptureInfo"], 200U);
  EXPECT_LE(calls["cudaStreamGetId"], 100U);
}

TEST_F(PoolCalls, AClaimOfAnotherStreamsIdleSlotAsksForItsStreamsIdOnceAndAboutOneEvent) {
  block_pool pool = make_pool(4);
  pool.claim(two).release();
  sync(two);
  ASSERT_TRUE(drained());
  std::optional<block_lease> held;
  auto calls = calls_of([&] { held = pool.claim(one); });
  EXPECT_EQ((*held)->number(), 0);
  EXPECT_EQ(calls["cudaStreamGetCaptureInfo"], 1U);
  EXPECT_EQ(calls["cudaStreamGetId"], 1U);
  EXPECT_EQ(calls["cudaEventQuery"], 1U);
  EXPECT_EQ(calls["cudaThreadExchangeStreamCaptureMode"], 2U);
  EXPECT_LE(calls[""], 6U);
}

TEST_F(PoolCalls, AClaimOfTheOnlySlotThereCanBeAsksAboutNoEvent) {
  block_pool pool = make_pool(1);
  pool.claim(two).release();
  std::optional<block_lease> held;
  auto calls = calls_of([&] { held = pool.claim(one); });
  EXPECT_EQ(calls["cudaStreamWaitEvent"], 1U);
  EXPECT_EQ(calls["cudaEventQuery"], 0U);
  EXPECT_LE(calls[""], 4U);
}

TEST_F(PoolCalls, AStreamThatIsGivenOftenIsRecordedOnce) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  for (int i = 0; i < 1'000; ++i) held.record_stream(two);
  EXPECT_EQ(calls_of([&] { held.release(); })["cudaEventRecord"], 2U);
  EXPECT_EQ(calls_of([&] { held = pool.claim(one); })["cudaStreamWaitEvent"], 1U);
}

TEST_F(PoolCalls, AClaimInVainInACaptureAsksOncePerBusyStream) {
  constexpr std::size_t busy = 4;
  std::vector<owned_stream> streams(busy);
  deleter polled{deleter_options{.own_worker = false}};  // after a worker it asks once more
  pool_options chosen = options(busy);
  chosen.deleter = &polled;
  {
    block_pool pool = make_pool(chosen);
    for (owned_stream& stream : streams) {
      stream = make_stream();
      use_behind_flag(pool, stream);
    }
    capture captured{one, cudaStreamCaptureModeGlobal};
    auto calls = calls_of([&] { EXPECT_FALSE(pool.try_claim(one).has_value()); });
    EXPECT_LE(calls["cudaEventQuery"], busy);
    EXPECT_LE(calls["cudaThreadExchangeStreamCaptureMode"], 2U);
  }
  flag.raise();
  EXPECT_TRUE(polled.drain_for(generous));
}

TEST_F(PoolCalls, AHostWaitInACaptureAsksNowAndThenAndDoesNotSpin) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, two);
  capture captured{one, cudaStreamCaptureModeGlobal};
  auto calls = calls_of(
      [&] { EXPECT_FALSE(pool.try_claim_for(one, std::chrono::milliseconds{50}).has_value()); });
  // A question each 200 us is what the pool promises itself; twice that is the bound.
  EXPECT_LE(calls["cudaEventQuery"], 500U);
}

class CapturedCalls : public PoolCalls {
 protected:
  /// The common case: the stream stands at the nodes where the slot was released.
  void expect_few_calls(block_pool& pool, cudaStream_t at) {
    std::optional<block_lease> held;
    auto claim = calls_of([&] { held.emplace(pool.claim(at)); });
    must(launch_tiny(at));
    auto release = calls_of([&] { held.reset(); });
    for (auto* const calls : {&claim, &release}) {
      // Where there are several devices, the driver tells the stream's, in 0.04 us.
      for (char const* asked : {"cuStreamGetCtx", "cuCtxGetId"}) EXPECT_LE((*calls)[asked], 1U);
      EXPECT_LE((*calls)[""] - (*calls)["cuStreamGetCtx"] - (*calls)["cuCtxGetId"], 2U);
      EXPECT_LE((*calls)["cudaStreamGetCaptureInfo"], 1U);
      EXPECT_LE((*calls)["cudaGraphNodeGetDependencies"], 1U);
    }
  }
};

TEST_F(CapturedCalls, AreFewWhereTheStreamStandsWhereTheSlotWasReleased) {
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  use(pool, one);
  for (int i = 0; i < 50; ++i) expect_few_calls(pool, one);
  for (int i = 0; i < 16'384; ++i) {
    block_lease const held = pool.claim(one);
    must(launch_tiny(one));
  }
  expect_few_calls(pool, one);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
}

TEST_F(CapturedCalls, AreFewOnManyBranchesInTurn) {
  constexpr std::size_t width = 16;
  std::vector<owned_stream> branches(width);
  block_pool pool = make_pool(64);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  for (owned_stream& branch : branches) {
    branch = make_stream();
    order(one, branch);
  }
  for (owned_stream const& branch : branches) use(pool, branch);
  for (int i = 0; i < 20; ++i) {
    for (owned_stream const& branch : branches) expect_few_calls(pool, branch);
  }
  EXPECT_EQ(pool.stats().in_graphs, width);
  for (owned_stream const& branch : branches) order(branch, one);
}

TEST_F(CapturedCalls, AskAFewOfManyBusySlots) {
  constexpr std::size_t count = 200;
  block_pool pool = make_pool(2 * count);
  std::vector<owned_stream> busy(count);
  for (owned_stream& each : busy) {
    each = make_stream();
    block_lease const held = pool.claim(each);
    must(launch_wait_flag(each, flag.get()));
  }
  {
    capture captured{one, cudaStreamCaptureModeGlobal};
    for (int i = 0; i < 3; ++i) {
      auto calls = calls_of([&] { pool.claim(one).leave_to_graph(); });
      EXPECT_LE(calls["cudaEventQuery"], 40U);
    }
  }
  flag.raise();
  for (owned_stream const& each : busy) sync(each);
}

// As an engine's operators do: some kernels between two claims, and releases that name a stream.
TEST_F(CapturedCalls, DoNotGrowWithTheGraph) {
  sharing_group const group;
  for (bool const is_grouped : {false, true}) {
    for (bool const is_elsewhere : {false, true}) {
      pool_options its = options(8);
      if (is_grouped) its.group = group;
      scratch_pool pool(its);
      capture captured{one, cudaStreamCaptureModeGlobal};
      auto const step = [&](std::size_t i) {
        auto held = pool.claim(one, 4096 * (1 + i % 3));
        must(launch_tiny(one));
        if (is_elsewhere) {
          order(one, two);
          must(launch_tiny(two));
        }
        held.release(is_elsewhere ? two : one);
        if (is_elsewhere) order(two, one);
        for (int k = 0; k < 3; ++k) must(launch_tiny(one));
      };
      std::size_t early = 0, late = 0;
      for (std::size_t i = 0; i < 300; ++i) {
        std::size_t const calls = calls_of([&] { step(i); })[""];
        if (i >= 20 && i < 30) early += calls;
        if (i >= 290) late += calls;
      }
      EXPECT_LE(late, early + early / 4) << is_grouped << is_elsewhere;
    }
  }
}

TEST_F(CapturedCalls, AGraphOfManyNodesHoldsAsManySlotsAsItsWidestMoment) {
  device_ints const memory{1};
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  use(pool, one);
  for (int i = 0; i < 5'000; ++i) must(cudaMemsetAsync(memory.data(), 0, sizeof(int), one));
  use(pool, one);
  EXPECT_EQ(pool.stats().in_graphs, 1U);
}

TEST_F(CapturedCalls, WalkTheGraphOnceWhereOnlyAnotherBranchHasASlot) {
  constexpr std::size_t length = 3'000;
  device_ints const memory{1};
  auto const enqueue = [&] { must(cudaMemsetAsync(memory.data(), 0, sizeof(int), one)); };
  block_pool pool = make_pool(64);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  order(one, two);
  use(pool, two);
  for (std::size_t i = 0; i < length; ++i) enqueue();
  std::vector<block_lease> held;
  auto calls = calls_of([&] {
    for (int i = 0; i < 20; ++i) {
      held.push_back(pool.claim(one));
      enqueue();
    }
  });
  EXPECT_LE(calls["cudaGraphNodeGetDependencies"], length + 100);
  held.clear();
  order(two, one);
}

TEST_F(CapturedCalls, AskForTheStreamsContextEachTimeAndForItsDeviceOnce) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  block_pool pool = make_pool(8);
  capture captured{one, cudaStreamCaptureModeGlobal};
  auto calls = calls_of([&] {
    for (int i = 0; i < 10; ++i) use(pool, one, i);
  });
  EXPECT_EQ(calls["cuStreamGetCtx"], 10U) << "CUDA reuses handles, also in a capture's graph";
  EXPECT_LE(calls["cuCtxGetDevice"], 1U);
}

TEST_F(PoolCalls, ThatFailInAReleaseAreNamed) {
  errors_expected = true;
  char const* const failing = "cudaStreamGetId";
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  held.record_stream(two);
  sim::fail_call_here(failing, cudaErrorUnknown);
  expect_error<cuda_error>([&] { held.release(); }, {"lease::release", failing});
  EXPECT_EQ(sim::faults_pending(), 0U);
  static_cast<void>(cudaGetLastError());
  EXPECT_NE(errors->all().find(failing), std::string::npos) << errors->all();
  pool.claim(two).release();  // records what was left
}

}  // namespace
}  // namespace escrow::test
