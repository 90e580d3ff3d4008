// SPDX-License-Identifier: Apache-2.0
// What PyTorch and the Python module call: memory in captures and out of them, and its errors.
#include <escrow/nodes.hpp>
#include <functional>
#include <thread>

#include "escrow_torch.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t size = 4096, bytes_max = 64 << 20;

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

class TorchFunctions : public pool_world {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(escrow_torch_configure(0, bytes_max, "net", "decode", 0), 0) << escrow_torch_error();
  }
  void TearDown() override {
    flag.raise();
    sync_all();
    EXPECT_TRUE(is_soon(R"("bytes_in_use": 0, "bytes_idle")")) << escrow_torch_stats(0);
    EXPECT_TRUE(is_soon(R"("bytes_in_graphs": 0)")) << escrow_torch_stats(0);
    EXPECT_TRUE(is_soon(R"("leaked": 0)")) << escrow_torch_stats(0);
    EXPECT_GE(escrow_torch_trim(0, 0), 0);
    pool_world::TearDown();
  }

  /// A graph that is hoisted, and launched by plain calls.
  struct step {
    void enter(cudaStream_t on) const {
      ASSERT_EQ(escrow_torch_enter(held, on), 0) << escrow_torch_error();
    }
    void leave() const { ASSERT_EQ(escrow_torch_leave(held), 0) << escrow_torch_error(); }
    void launch(cudaStream_t on) const {
      enter(on);
      must(cudaGraphLaunch(exec, on));
      leave();
    }
    void release() const { EXPECT_EQ(escrow_torch_release(held), 0) << escrow_torch_error(); }

    owned_graph graph;
    void* held = escrow_torch_hoist(graph);
    owned_exec exec = instantiate(graph);
  };

  [[nodiscard]] static bool is_soon(std::string const& part) {
    return wait_until([&] { return contains(escrow_torch_stats(0), part); });
  }
  static void* allocate(cudaStream_t stream) { return escrow_torch_allocate(size, 0, stream); }
  static void free(void* memory, cudaStream_t stream) {
    escrow_torch_free(memory, size, 0, stream);
  }
  /// A graph that uses memory from here, which it frees.
  [[nodiscard]] owned_graph captured_step(int value) {
    return captured_plainly([&](cudaStream_t on) {
      auto* const used = static_cast<int*>(allocate(on));
      must(launch_fill(on, used, 4, value));
      must(launch_check(on, used, 4, value, mismatches.data()));
      free(used, on);
    });
  }
};

TEST_F(TorchFunctions, GiveMemoryAgainAfterTheWorkOnItsStreams) {
  void* const first = allocate(one);
  escrow_torch_record_stream(first, two);
  hold_up(two);
  free(first, one);
  void* const second = allocate(one);
  EXPECT_EQ(second, first);
  EXPECT_TRUE(stays_busy(one));
  flag.raise();
  free(second, one);
}

TEST_F(TorchFunctions, FreeMemoryInACallback) {
  for (cudaStream_t const stream : {cudaStream_t{one}, cudaStream_t{nullptr}}) {
    void* const memory = allocate(stream);
    std::function<void()> end = [&] { free(memory, stream); };
    must(cudaLaunchHostFunc(
        stream, [](void* its) { (*static_cast<std::function<void()>*>(its))(); }, &end));
    sync(stream);
    EXPECT_EQ(allocate(stream), memory);  // given the stream, it records
    free(memory, stream);
  }
}

TEST_F(TorchFunctions, OrderARecordedStreamAfterTheEarlierUsers) {
  constexpr std::size_t most = bytes_max * 3 / 4;
  void* const first = escrow_torch_allocate(most, 0, two);
  hold_up(two);
  escrow_torch_free(first, most, 0, two);
  void* const second = escrow_torch_allocate(most, 0, one);
  ASSERT_EQ(second, first);
  escrow_torch_record_stream(second, three);
  EXPECT_TRUE(stays_busy(three));
  flag.raise();
  escrow_torch_free(second, most, 0, one);
}

TEST_F(TorchFunctions, RecordNoStreamForOtherMemory) {
  free(allocate(one), one);
  escrow_torch_record_stream(cells.data(), two);
  capture captured{two, cudaStreamCaptureModeGlobal};
  escrow_torch_record_stream(cells.data(), two);
  EXPECT_TRUE(captured.is_active());
  must(captured.end());
}

TEST_F(TorchFunctions, GiveAGraphTheMemoryThatIsRecordedInItsCapture) {
  void* const eager = allocate(one);
  owned_graph const graph = captured_plainly([&](cudaStream_t on) {
    escrow_torch_record_stream(eager, on);
    must(cudaMemsetAsync(eager, 1, size, on));
  });
  free(eager, one);
  void* const other = allocate(one);
  EXPECT_NE(other, eager);
  free(other, one);
}

TEST_F(TorchFunctions, RefuseToRecordAStreamOutsideOfTheMemorysCapture) {
  capture captured{one, cudaStreamCaptureModeThreadLocal};
  void* const memory = allocate(one);
  expect_error<usage_error>([&] { escrow_torch_record_stream(memory, two); },
                            {"`stream` is not part of the capture"});
  EXPECT_TRUE(captured.is_active());
  free(memory, one);
  must(captured.end());
}

TEST_F(TorchFunctions, KeepResultsFromTheOtherGraphsOfTheGroup) {
  void* output = nullptr;
  owned_graph const first = captured_plainly([&](cudaStream_t on) {
    EXPECT_EQ(escrow_torch_keep(1), 0);
    output = allocate(on);
    EXPECT_EQ(escrow_torch_keep(0), 1);
    free(output, on);
    void* const scratch = allocate(on);
    EXPECT_NE(scratch, output);
    free(scratch, on);
  });
  owned_graph const second = captured_plainly([&](cudaStream_t on) {
    void* const scratch = allocate(on);
    EXPECT_NE(scratch, output);
    free(scratch, on);
  });
  EXPECT_TRUE(contains(escrow_torch_stats(0), R"("bytes_in_graphs": 4096)"));  // the output
}

TEST_F(TorchFunctions, RefuseToRecordTheLegacyStreamBesideACapture) {
  void* const eager = allocate(one);
  owned_stream const blocking = make_stream(cudaStreamDefault);
  capture captured{blocking, cudaStreamCaptureModeThreadLocal};
  expect_error<cuda_error>([&] { escrow_torch_record_stream(eager, nullptr); },
                           {"cudaErrorStreamCaptureImplicit"});
  EXPECT_TRUE(captured.is_active());
  must(captured.end());
  free(eager, one);
}

TEST_F(TorchFunctions, RefuseToRecordAStreamWhoseCaptureIsInvalidated) {
  void* const eager = allocate(one);
  capture captured{two, cudaStreamCaptureModeGlobal};
  must(cudaStreamSynchronize(two) != cudaSuccess, "it invalidates the capture");
  static_cast<void>(cudaGetLastError());
  expect_error<usage_error>([&] { escrow_torch_record_stream(eager, two); },
                            {"escrow_torch_record_stream", "has been invalidated"});
  EXPECT_NE(captured.end(), cudaSuccess);
  static_cast<void>(cudaGetLastError());
  free(eager, one);
}

TEST_F(TorchFunctions, KnowTheDefaultStreamOfEachDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  void* const there = escrow_torch_allocate(size, 1, nullptr);
  escrow_torch_free(there, size, 1, nullptr);
  EXPECT_EQ(escrow_torch_allocate(size, 1, nullptr), there);
  escrow_torch_free(there, size, 1, nullptr);
  int device = -1;
  must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

TEST_F(TorchFunctions, RecordTheDefaultStreamOfTheMemorysDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  owned_stream const there = [] {
    device_scope const current(1);
    return make_stream();
  }();
  void* const first = escrow_torch_allocate(size, 1, there);
  {
    device_scope const current(1);
    hold_up(cudaStreamLegacy);
  }
  escrow_torch_record_stream(first, nullptr);
  escrow_torch_free(first, size, 1, there);
  void* const second = escrow_torch_allocate(size, 1, there);
  EXPECT_EQ(second, first);
  EXPECT_TRUE(stays_busy(there));
  flag.raise();
  escrow_torch_free(second, size, 1, there);
  sync(there);
}

TEST_F(TorchFunctions, OfNoBytesIsNull) {
  EXPECT_EQ(escrow_torch_allocate(0, 0, one), nullptr);
  free(nullptr, one);
}

TEST_F(TorchFunctions, ReportAFreeThatFails) {
  testing::internal::CaptureStderr();
  free(cells.data(), one);
  std::string const said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "escrow_torch_free: stream_allocator::deallocate: `memory` is not"))
      << said;
}

TEST_F(TorchFunctions, SayThatThereIsNoMemory) {
  expect_error<std::runtime_error>(
      [&] { static_cast<void>(escrow_torch_allocate(2 * bytes_max, 0, one)); },
      {"CUDA out of memory", "\"net"});
  EXPECT_EQ(escrow_torch_allocate_segment(2 * bytes_max, 0, one), nullptr);
}

TEST_F(TorchFunctions, RefuseWhatIsNoDevice) {
  expect_error<usage_error>([&] { return escrow_torch_allocate(size, -1, one); },
                            {"`device` is -1"});
  expect_error<cuda_error>([&] { return escrow_torch_allocate(size, 100, one); },
                           {"cudaErrorInvalidDevice"});
  EXPECT_EQ(escrow_torch_stats(-1), nullptr);
  EXPECT_TRUE(contains(escrow_torch_error(), "`device` is -1"));
}

TEST_F(TorchFunctions, AreConfiguredBeforeTheFirstUseOnly) {
  free(allocate(one), one);
  EXPECT_EQ(escrow_torch_configure(0, bytes_max, "net", nullptr, 0), -1);
  EXPECT_TRUE(contains(escrow_torch_error(), "configure before the first allocation"));
  EXPECT_EQ(escrow_torch_trim(101, 0), 0);
}

TEST_F(TorchFunctions, EmptyTheCache) {
  free(allocate(one), one);
  sync(one);
  EXPECT_FALSE(contains(escrow_torch_stats(0), R"({"bytes": 0,)"));
  escrow_torch_empty_cache();
  EXPECT_TRUE(contains(escrow_torch_stats(0), R"({"bytes": 0,)")) << escrow_torch_stats(0);
}

TEST_F(TorchFunctions, FreeASegmentAfterAllWorkOnTheDevice) {
  void* const segment = escrow_torch_allocate_segment(size, 0, one);
  must(launch_fill(two, static_cast<int*>(segment), 4, 1));
  hold_up(two);
  std::atomic<bool> is_freed = false;  // relaxed: the join orders the rest
  capture captured{three, cudaStreamCaptureModeGlobal};
  std::thread other([&] {
    escrow_torch_free_segment(segment, size, 0, one);
    is_freed.store(true, std::memory_order_relaxed);
  });
  EXPECT_TRUE(stays_false([&] { return is_freed.load(std::memory_order_relaxed); }));
  flag.raise();
  other.join();
  EXPECT_TRUE(captured.is_active());
  must(captured.end());
}

TEST_F(TorchFunctions, FreeASegmentWhoseStreamHasEnded) {
  owned_stream ended = make_stream();
  cudaStream_t const handle = ended;
  void* const segment = escrow_torch_allocate_segment(size, 0, handle);
  ended.reset();
  escrow_torch_free_segment(segment, size, 0, handle);
}

TEST_F(TorchFunctions, LaunchGraphsOfOneGroupInTurn) {
  step const first{captured_step(1)};
  step const second{captured_step(2)};
  EXPECT_TRUE(contains(escrow_torch_stats(0), R"("bytes": 2097152)"));  // together: the least step
  EXPECT_TRUE(has_no_user_object());
  hold_up(one);
  for (int i = 0; i < 20; ++i) {
    first.launch(one);
    second.launch(two);
  }
  EXPECT_TRUE(stays_busy(two));
  first.release();
  second.release();
  EXPECT_TRUE(contains(escrow_torch_stats(0), R"("bytes_in_arena": 8192)"));  // in flight
}

TEST_F(TorchFunctions, ReleaseAGraphWithoutMemoryAfterItsLaunches) {
  fate_ptr const fate = make_fate();
  step const its{captured_plainly([&](cudaStream_t on) {
    worker->retire(on, std::make_shared<probe>(fate));
    hold_up(on);
  })};
  its.launch(one);
  std::thread other([&] { its.release(); });
  EXPECT_TRUE(stays_false([&] { return fate->was_destroyed(); }));
  flag.raise();
  other.join();
  EXPECT_TRUE(fate->wait());
}

TEST_F(TorchFunctions, ReleaseAGraphWhoseLaunchHasNotEnded) {
  step const first{captured_step(1)};
  step const second{captured_step(2)};
  first.enter(one);
  first.release();
  second.enter(two);
  second.leave();
  second.release();
}

#ifdef ESCROW_TEST_RUNTIME_SIM

TEST_F(TorchFunctions, FreeASegmentBesideACaptureWithoutDeviceMemory) {
  void* const segment = escrow_torch_allocate_segment(size, 0, one);
  capture captured{three, cudaStreamCaptureModeGlobal};
  sim::fail_call_here("cudaMalloc", cudaErrorMemoryAllocation, 1, 1000);
  escrow_torch_free_segment(segment, size, 0, one);
  sim::clear_faults();
  EXPECT_TRUE(captured.is_active());
  must(captured.end());
}

TEST_F(TorchFunctions, FreeMemoryAlsoIfACallFails) {
  for (auto* const free_it : {&escrow_torch_free, &escrow_torch_free_segment}) {
    bool is_over = false;
    for (std::uint64_t i = 1; !is_over; ++i) {
      void* const memory = allocate(one);
      sim::start_recording(sim::recorded_threads::this_one);
      sim::fail_nth_here(i, cudaErrorUnknown);
      free_it(memory, size, 0, one);
      is_over = sim::stop_recording().size() < i;
      sim::clear_faults();
      free(allocate(one), one);  // the stream's deferred record
    }
  }
}

TEST_F(TorchFunctions, LeaveTheCurrentDeviceAsItWasOnALostOne) {
  free(allocate(one), one);
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_THROW(static_cast<void>(escrow_torch_allocate(size, 1, nullptr)), cuda_error);
  int device = -1;
  must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  sim::clear_faults();
  static_cast<void>(cudaGetLastError());
}

TEST_F(TorchFunctions, LaunchAgainOrReleaseAfterALaunchWhoseEndIsNotKnown) {
  for (bool const is_launched_again : {false, true}) {
    step const its{captured_step(1)};
    its.enter(one);
    if (!is_launched_again) hold_up(one);
    must(cudaGraphLaunch(its.exec, one));
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 1000);
    sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 1000);
    EXPECT_EQ(escrow_torch_leave(its.held), -1);
    sim::clear_faults();
    if (is_launched_again) its.launch(one);
    std::atomic<bool> is_released = false;  // relaxed: the join orders the rest
    std::thread other([&] {
      its.release();
      is_released.store(true, std::memory_order_relaxed);
    });
    auto const was_released = [&] { return is_released.load(std::memory_order_relaxed); };
    EXPECT_TRUE(is_launched_again ? wait_until(was_released) : stays_false(was_released));
    flag.raise();
    other.join();
  }
}
#endif

TEST_F(TorchFunctions, RefuseALaunchInACaptureAndWithoutAGraph) {
  step const its{captured_step(1)};
  {
    capture open{two, cudaStreamCaptureModeGlobal};
    EXPECT_EQ(escrow_torch_enter(its.held, two), -1);
    EXPECT_TRUE(contains(escrow_torch_error(), "`stream` is being captured"));
  }
  EXPECT_EQ(escrow_torch_leave(its.held), -1);
  EXPECT_EQ(escrow_torch_enter(nullptr, two), -1);
  EXPECT_TRUE(contains(escrow_torch_error(), "`held` is null"));
  owned_graph const conditional = make_graph();
  add_conditional(conditional);
  EXPECT_EQ(escrow_torch_hoist(conditional), nullptr) << "its body may use the group's memory";
  its.release();
}

}  // namespace
}  // namespace escrow::test
