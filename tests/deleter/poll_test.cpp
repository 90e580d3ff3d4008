// A deleter without a worker: whoever polls reclaims.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "capturing.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class Poll : public testing::Test {
 protected:
  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  deleter deleter_{deleter_options{.own_worker = false}};
};

TEST_F(Poll, NothingIsDestroyedUnlessPolled) {
  auto const fate = make_fate();
  deleter_.retire(probe(fate));
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  EXPECT_EQ(deleter_.poll(), 1U);
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(fate->thread, std::this_thread::get_id());
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(deleter_.poll(), 0U);
}

TEST_F(Poll, DoesNotWaitForEvents) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  EXPECT_EQ(deleter_.poll(), 0U);
  EXPECT_EQ(deleter_.stats().pending, 1U);
  flag_.raise();
  test::must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(deleter_.poll(), 1U);
  EXPECT_TRUE(fate->was_destroyed());
}

TEST_F(Poll, PutsTheThreadsDeviceAndModeBack) {
  test::thread_mode_scope const mode(cudaStreamCaptureModeThreadLocal);
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  test::must(cudaSetDevice(devices - 1));
  deleter_.retire(probe(make_fate()));
  test::must(cudaSetDevice(0));
  deleter_.retire(probe(make_fate([devices] { static_cast<void>(cudaSetDevice(devices - 1)); })));
  EXPECT_EQ(deleter_.poll(), 2U);
  int device = -1;
  test::must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  cudaStreamCaptureMode found = cudaStreamCaptureModeThreadLocal;
  test::must(cudaThreadExchangeStreamCaptureMode(&found));
  EXPECT_EQ(found, cudaStreamCaptureModeThreadLocal);
}

TEST_F(Poll, HarmsNoCaptureOfItsOwnThread) {
  auto const eager = make_fate();
  test::owned_stream const other = test::make_stream();
  void* memory = nullptr;
  test::must(cudaMalloc(&memory, 64));
  test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
  deleter_.retire(other, probe(make_fate([memory] { static_cast<void>(cudaFree(memory)); })));
  deleter_.retire(other, probe(eager));
  EXPECT_TRUE(test::wait_until([&] {
    deleter_.poll();
    return eager->was_destroyed();
  }));
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

TEST_F(Poll, OnlyOneThreadReclaimsAtATime) {
  std::atomic<std::size_t> of_other{99};
  deleter_.retire(
      probe(make_fate([&] { std::thread([&] { of_other.store(deleter_.poll()); }).join(); })));
  deleter_.retire(probe(make_fate()));
  EXPECT_EQ(deleter_.poll(), 2U);
  EXPECT_EQ(of_other, 0U);
}

}  // namespace
}  // namespace escrow
