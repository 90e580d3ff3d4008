// The second try of recording a ready event, and of asking about it.
#include "escrow/core/ready_event.hpp"

#include <new>
#include <utility>

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/event_cache.hpp"
#include "escrow/core/insist.hpp"
#include "escrow/core/stream_ref.hpp"

namespace escrow {

namespace {

// Makes a device current that is not lost, for as long as the scope lasts; `first_tried` first.
// Only devices before the first that works are tried, since each may be one that nobody has used
// yet.
class working_device_scope {
 public:
  explicit working_device_scope(int first_tried) noexcept {
    int count = 0;
    status_ = cudaGetDevice(&previous_);
    if (status_ == cudaSuccess) status_ = cudaGetDeviceCount(&count);
    if (status_ != cudaSuccess) previous_ = none;
    bool goes_on = status_ == cudaSuccess;
    for (int device = first_tried < 0 ? 0 : first; goes_on && device < count; ++device) {
      status_ = try_device(device == first ? first_tried : device);
      goes_on = is_sticky(status_);
    }
    static_cast<void>(cudaGetLastError());
  }
  working_device_scope(working_device_scope&&) = delete;
  ~working_device_scope() {
    if (previous_ != none) insist([this] { return cudaSetDevice(previous_); });
  }

  // cudaSuccess: such a device is current. Sticky: all are lost. Otherwise it is not known.
  [[nodiscard]] cudaError_t status() const noexcept { return status_; }

 private:
  static constexpr int none = -1;
  static constexpr int first = -1;  // stands for the one tried before all others

  static cudaError_t try_device(int device) noexcept {
    cudaError_t const status = cudaSetDevice(device);
    if (status != cudaSuccess) return status;
    // A question that a lost device answers with its fault, and that no capture minds.
    cudaStreamCaptureStatus ignored = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(cudaStreamPerThread, &ignored);
  }

  int previous_ = none;
  cudaError_t status_ = cudaSuccess;
};

cudaError_t record_fresh(event& ready, int& device, cudaStream_t stream) noexcept {
  try {
    int const own_device = device_of(stream);
    event fresh = event_cache::take(own_device);
    cudaError_t const status = cudaEventRecord(fresh.get(), stream);
    if (!succeeded(status)) return status;
    ready = std::move(fresh);
    device = own_device;
    return cudaSuccess;
  } catch (cuda_error const& error) {
    return error.status();
  } catch (std::bad_alloc const&) {
    return cudaErrorMemoryAllocation;
  }
}

}  // namespace

record_result detail::record_ready_again(event& ready, int& device, cudaStream_t stream,
                                         cudaError_t first) noexcept {
  static_cast<void>(cudaGetLastError());
  cudaError_t second = is_sticky(first) ? first : record_fresh(ready, device, stream);
  if (is_sticky(second)) {
    // The fault may be the current device's alone, or that of the one which the event was made for.
    working_device_scope const working(device);
    second = working.status();
    if (second == cudaSuccess) second = record_fresh(ready, device, stream);
  }
  if (second == cudaSuccess) return {record_outcome::recorded_anew, first};
  return {is_sticky(second) ? record_outcome::device_lost : record_outcome::failed, first};
}

cudaError_t query_ready(cudaEvent_t ready, int device) noexcept {
  cudaError_t status = cudaEventQuery(ready);
  if (!is_sticky(status)) return status;
  static_cast<void>(cudaGetLastError());
  working_device_scope const working(device);
  return working.status() == cudaSuccess ? cudaEventQuery(ready) : working.status();
}

ready_answer answer_of(cudaError_t query_status) noexcept {
  if (query_status == cudaSuccess || is_sticky(query_status)) return ready_answer::done;
  return query_status == cudaErrorInvalidResourceHandle ? ready_answer::gone
                                                        : ready_answer::not_yet;
}

}  // namespace escrow
