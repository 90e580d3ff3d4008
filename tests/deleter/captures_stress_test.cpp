// Ten thousand captures in each mode while other threads retire and the worker frees: none is
// harmed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "capturing.hpp"
#include "escrow/core/relaxed_capture_scope.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "stress_time.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

constexpr int captures = test::is_sanitized ? 500 : 10'000;

// Device memory that is freed by cudaFree, which kills a capture from a thread that is not Relaxed.
class device_block {
 public:
  device_block() {
    relaxed_capture_scope const relaxed;
    test::must(cudaMalloc(&memory_, 256));
  }
  device_block(device_block&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  device_block& operator=(device_block&&) = delete;
  ~device_block() {
    if (memory_ != nullptr) static_cast<void>(cudaFree(memory_));
  }

 private:
  void* memory_ = nullptr;
};

class CapturesStress : public testing::TestWithParam<cudaStreamCaptureMode> {
 protected:
  // Retires eagerly until told to end, never far ahead of the worker.
  void retire_all_the_time() {
    test::owned_stream const stream = test::make_stream();
    while (!ends_.load(std::memory_order_acquire)) {
      for (int i = 0; i < 8; ++i) {
        test::must(test::launch_tiny(stream));
        deleter_.retire(stream, device_block());
      }
      deleter_.retire(device_block());
      retired_.fetch_add(9, std::memory_order_relaxed);
      static_cast<void>(deleter_.drain_for(std::chrono::milliseconds(2)));
    }
  }

  std::atomic<bool> ends_{false};
  std::atomic<std::uint64_t> retired_{0};
  deleter deleter_;
};

INSTANTIATE_TEST_SUITE_P(Modes, CapturesStress,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed));

TEST_P(CapturesStress, NoCaptureIsHarmed) {
  test::owned_stream const stream = test::make_stream();
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) others.emplace_back([this] { retire_all_the_time(); });
  int harmed = 0;
  // Until the others have had their turns too, on a machine that is busy.
  auto const end = std::chrono::steady_clock::now() + test::generous;
  auto const lacks_company = [&] {
    return retired_.load(std::memory_order_relaxed) <= 50 && std::chrono::steady_clock::now() < end;
  };
  for (int i = 0; i < captures || lacks_company(); ++i) {
    test::capture capturing(stream, GetParam());
    bool const launched = test::launch_tiny(stream) == cudaSuccess;
    try {
      deleter_.retire(stream, device_block());
    } catch (std::exception const& error) {
      ++harmed;
      ADD_FAILURE() << error.what();
    }
    harmed += launched && capturing.end() == cudaSuccess ? 0 : 1;
    if (harmed > 10) break;
  }
  ends_.store(true, std::memory_order_release);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(harmed, 0);
  EXPECT_GT(retired_, 50U) << "hardly anything went on beside the captures";
  EXPECT_TRUE(deleter_.stop_for(test::generous));
}

}  // namespace
}  // namespace escrow
