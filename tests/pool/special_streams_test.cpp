// SPDX-License-Identifier: Apache-2.0
// Streams that their handle alone does not identify: the legacy stream, that of each thread, and
// those of other devices; and streams of green contexts.
#include <semaphore>

#include "pool_world.hpp"

#ifndef ESCROW_TEST_RUNTIME_SIM
#include <cuda.h>
#endif

namespace escrow::test {
namespace {

class LegacyStream : public pool_world {
 protected:
  owned_stream blocking = make_stream(cudaStreamDefault);
};

TEST_F(LegacyStream, AndTheNullStreamAreOne) {
  block_pool pool = make_pool(4);
  pool.claim(cudaStream_t{}).release();
  EXPECT_EQ(pool.claim(cudaStreamLegacy)->number(), 0);
  EXPECT_EQ(pool.claim(cudaStream_t{})->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 0U);
}

TEST_F(LegacyStream, GetsASlotOfABlockingStreamAfterItsWork) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, blocking);
  expect_next_waits(pool, cudaStreamLegacy);
}

// Nothing may be enqueued on it while a blocking stream captures.
TEST_F(LegacyStream, ItsLeaseThatEndsWhileABlockingStreamCapturesIsRecordedAfterwards) {
  for (cudaStream_t const claimed_on : {cudaStreamLegacy, cudaStream_t{}, one.get()}) {
    flag.lower();
    block_pool pool = make_pool(1);
    std::optional<block_lease> held = pool.claim(claimed_on);
    held->record_stream(cudaStreamLegacy);
    keep_busy(*held, cudaStreamLegacy);
    {
      capture captured{blocking, cudaStreamCaptureModeGlobal};
      held.reset();
      EXPECT_TRUE(captured.is_active());
      EXPECT_EQ(pool.stats().deferred, 1U);
      EXPECT_FALSE(pool.try_claim(blocking).has_value()) << "a capture gets what is done";
      EXPECT_EQ(captured.end(), cudaSuccess);
    }
    EXPECT_TRUE(pool.try_claim(cudaStreamLegacy).has_value());
    EXPECT_EQ(pool.stats().deferred, 0U);
    EXPECT_EQ(pool.stats().stream_waits, claimed_on == one.get() ? 1U : 0U);
    expect_next_waits(pool, two);
    end(pool);
  }
}

/// A thread that lives until its end, and so does its stream.
class other_thread {
 public:
  other_thread() = default;
  other_thread(other_thread&&) = delete;
  ~other_thread() {
    run([this] { is_over_ = true; });
  }

  /// Returns when the call is over.
  void run(std::function<void()> call) {
    call_ = std::move(call);
    is_told_.release();
    EXPECT_TRUE(is_done_.try_acquire_for(generous));
  }

 private:
  // Handed over by the semaphores.
  std::function<void()> call_;
  bool is_over_ = false;
  std::binary_semaphore is_told_{0};
  std::binary_semaphore is_done_{0};
  std::jthread thread_{[this] {
    while (!is_over_) {
      if (!is_told_.try_acquire_for(generous)) continue;
      call_();
      is_done_.release();
    }
  }};
};

class ThreadStream : public pool_world {
 protected:
  /// The release on the other thread is refused, and the lease stays valid.
  void expect_refused_elsewhere(block_lease& held) {
    expect_error<usage_error>([&] { held.release(); }, {"cudaStreamPerThread"});
    EXPECT_TRUE(held);
  }
  other_thread other;
};

TEST_F(ThreadStream, OfEachThreadIsAnotherStream) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, cudaStreamPerThread);
  other.run([&] { expect_next_waits(pool, cudaStreamPerThread); });
  EXPECT_EQ(pool.stats().stream_waits, 1U);
}

TEST_F(ThreadStream, ItsLeaseIsNotReleasedOnAnotherThreadButOnAnotherThreadsOrderedStream) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(cudaStreamPerThread);
  other.run([&] { expect_refused_elsewhere(held); });
  other.run([&] { held.release(one.get()); });
  EXPECT_EQ(pool.claim(one)->number(), 0);
}

TEST_F(ThreadStream, ItsLeaseThatEndsOnAnotherThreadIsReportedAndRecordedOnItsOwn) {
  errors_expected = true;
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(cudaStreamPerThread);
  other.run([&] {
    held.reset();
    EXPECT_FALSE(pool.try_claim(cudaStreamPerThread).has_value());
  });
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  EXPECT_EQ(pool.stats().deferred, 1U);
  EXPECT_TRUE(pool.try_claim(cudaStreamPerThread).has_value());
}

// Several threads' streams may be part of one capture.
TEST_F(ThreadStream, OfOneThreadIsNotTakenForAnothersInACapture) {
  struct row {
    char const* name;
    cudaStream_t origin;
    cudaStream_t claimed_on;
    bool joins;  // whether the other thread's stream is part of the capture
  };
  for (row const& each :
       {row{"given to record_stream", one, one, true}, row{"not joined", one, one, false},
        row{"claimed on", one, cudaStreamPerThread, true},
        row{"the origin", cudaStreamPerThread, cudaStreamPerThread, false}}) {
    SCOPED_TRACE(each.name);
    bool const is_branch = each.origin != cudaStreamPerThread;
    block_pool pool = make_pool(4);
    capture captured{each.origin, cudaStreamCaptureModeRelaxed};
    must(launch_tiny(each.origin));
    if (is_branch) order(each.origin, cudaStreamPerThread);
    block_lease held = pool.claim(each.claimed_on);
    int const number = held->number();
    if (is_branch) held.record_stream(cudaStreamPerThread);
    fill(held, cudaStreamPerThread, 3);
    other.run([&] {
      if (each.joins) order(each.origin, cudaStreamPerThread);
      expect_refused_elsewhere(held);
      if (each.joins) order(cudaStreamPerThread, each.origin);
    });
    EXPECT_TRUE(captured.is_active());
    held.release();
    // The branch of this thread is not joined yet.
    EXPECT_EQ(pool.claim(each.origin)->number() == number, !is_branch);
    if (is_branch) order(cudaStreamPerThread, each.origin);
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
}

TEST_F(ThreadStream, OfACaptureMayStillUseTheLeaseAfterTheCapture) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(one));
  order(one, cudaStreamPerThread);
  block_lease held = pool.claim(one);
  held.record_stream(cudaStreamPerThread);
  order(cudaStreamPerThread, one);
  must(captured.end());
  captured.graph().reset();
  held.record_stream(cudaStreamPerThread);
  keep_busy(held, cudaStreamPerThread);
  other.run([&] { expect_refused_elsewhere(held); });
  held.release();
  expect_next_waits(pool, two);
  EXPECT_EQ(pool.stats().deferred, 0U);
}

class OtherDevice : public pool_world {
 protected:
  void SetUp() override {
    if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  }
};

TEST_F(OtherDevice, MayBeCurrentInAllCallsButNotWhereAResourceIsMade) {
  int at_make = -1;
  block_pool pool{options(1), [&] {
                    must(cudaGetDevice(&at_make));
                    return block{counts};
                  }};
  device_scope const other(1);
  pool.claim(one).release();
  pool.claim(two).release();
  sync(two);
  {
    capture captured{one, cudaStreamCaptureModeGlobal};
    pool.claim(one).release();
    EXPECT_TRUE(captured.is_active());
  }
  EXPECT_EQ(current_device(), 1);
  EXPECT_EQ(at_make, 0);
  EXPECT_EQ(made(), 1);
}

TEST_F(OtherDevice, IfItIsCurrentANullStreamsLeaseIsStillReleasedOnItsOwnDevice) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(cudaStream_t{});
  keep_busy(*held, nullptr);
  {
    device_scope const other(1);
    held.reset();
  }
  expect_next_waits(pool, two);
}

#ifndef ESCROW_TEST_RUNTIME_SIM
// A green context has a part of a device's multiprocessors. Its streams are as others.

/// A function of the driver.
template <class Function>
Function* driver_function(char const* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned since = 12080;
  must(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result));
  return reinterpret_cast<Function*>(found);
}
#define DRIVER(name) driver_function<decltype(name)>(#name)

class GreenContext : public pool_world {
 protected:
  void SetUp() override {
    pool_world::SetUp();
    CUdevResource all{};
    CUdevResource part{};
    unsigned count = 1;
    constexpr unsigned multiprocessors = 16;
    CUdevResourceDesc described{};
    ok(DRIVER(cuDeviceGetDevResource)(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    ok(DRIVER(cuDevSmResourceSplitByCount)(&part, &count, &all, nullptr, 0, multiprocessors));
    ok(DRIVER(cuDevResourceGenerateDesc)(&described, &part, 1));
    ok(DRIVER(cuGreenCtxCreate)(&context, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    ok(DRIVER(cuGreenCtxStreamCreate)(&green, context, CU_STREAM_NON_BLOCKING, 0));
  }
  void TearDown() override {
    must(cudaStreamDestroy(green));
    pool_world::TearDown();
    ok(DRIVER(cuGreenCtxDestroy)(context));
  }
  static void ok(CUresult status) { must(status == CUDA_SUCCESS, "driver call"); }

  CUgreenCtx context = nullptr;
  cudaStream_t green = nullptr;
};

TEST_F(GreenContext, ItsStreamAndClaimerHandSlotsOnAfterItsWork) {
  block_pool pool = make_pool(2);
  block_lease const other = pool.claim(two);
  auto local = pool.on(green);
  {
    block_lease held = local.claim();
    keep_busy(held, green);
  }
  EXPECT_EQ(local.claim()->number(), 1);
  local.flush();
  expect_next_waits(pool, one);
}

TEST_F(GreenContext, ItsStreamWaitsForOthers) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, one);
  expect_next_waits(pool, green);
}

TEST_F(GreenContext, GraphsOfItsStreamHoldTheirSlotsUntilTheirLaunchesThereEnd) {
  block_pool pool = make_pool(2);
  {
    capture captured{green, cudaStreamCaptureModeGlobal};
    for (int value : {1, 2}) use(pool, green, value);
    must(captured.end());
    EXPECT_EQ(pool.stats().in_graphs, 1U);
    graph_exec exec(captured.graph().get());
    hold_up(green);
    exec.launch(green);
  }
  EXPECT_TRUE(stays_false([&] { return pool.stats().in_graphs == 0; }));
  flag.raise();
  sync(green);
  EXPECT_TRUE(leaves_graphs(pool));
}
#endif

}  // namespace
}  // namespace escrow::test
