// Errors for unusable streams, the Relaxed capture mode, and the lock for CUDA's links between
// graphs.
#include "escrow/core/capture.hpp"

#include <chrono>
#include <mutex>
#include <thread>
#include <type_traits>

#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

void detail::refuse_capture(char const* call, cudaError_t status) {
  if (status == cudaErrorStreamCaptureImplicit) {
    detail::clear_last_error(status);
    throw usage_error(call,
                      "`stream` is the legacy stream while a blocking stream is being captured",
                      "use the capturing stream, or one made with cudaStreamNonBlocking");
  }
  if (status == cudaErrorNotPermitted) {
    detail::clear_last_error(status);
    throw usage_error(call, "`stream` was given in a CUDA callback, where CUDA permits no call",
                      "hand an object to deleter::retire(owner), without a stream");
  }
  check(status, "cudaStreamGetCaptureInfo");
  throw usage_error(call, "the capture of `stream` has been invalidated",
                    "end the capture with cudaStreamEndCapture and begin again");
}

relaxed_capture_scope::relaxed_capture_scope(source_location where) {
  check(cudaThreadExchangeStreamCaptureMode(&previous_), "cudaThreadExchangeStreamCaptureMode",
        where);
}

relaxed_capture_scope::~relaxed_capture_scope() {
  retry_cleanup([this] { return cudaThreadExchangeStreamCaptureMode(&previous_); });
}

namespace {
// Guards CUDA's links between graphs and their copies and execs. Held across CUDA calls, which may
// run destroy callbacks: Escrow's callbacks take no lock.
constinit std::recursive_mutex links;
static_assert(std::is_trivially_destructible_v<std::recursive_mutex>,
              "graphs are destroyed during exit, too");
}  // namespace

// A guarded call takes some 20 us, and waking a thread for the next one as long again. So a thread
// looks for about two calls before it sleeps (measured: 8 threads that make and destroy graphs do
// 10 % more, 16 threads 25 % more).
graph_lifetime_lock::graph_lifetime_lock() noexcept {
  constexpr auto look_max = std::chrono::microseconds(50);
  if (links.try_lock()) return;
  auto const end = std::chrono::steady_clock::now() + look_max;
  do {
    std::this_thread::yield();
    if (links.try_lock()) return;
  } while (std::chrono::steady_clock::now() < end);
  links.lock();
}

graph_lifetime_lock::~graph_lifetime_lock() {
  links.unlock();
}

}  // namespace escrow::inline v0_1
