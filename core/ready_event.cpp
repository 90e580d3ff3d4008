// The second try of recording a ready event, and what the answer about it means.
#include "escrow/core/ready_event.hpp"

#include <new>
#include <utility>

#include "escrow/core/after_fault.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/event_cache.hpp"
#include "escrow/core/stream_ref.hpp"

namespace escrow {

namespace {

cudaError_t record_fresh(event& ready, int& device, cudaStream_t stream) noexcept {
  try {
    int const own_device = device_of(stream);
    event fresh = event_cache::take(own_device);
    cudaError_t const status = cudaEventRecord(fresh.get(), stream);
    if (!succeeded(status)) return status;
    // One that was right for its own device serves there again.
    if (ready && device != own_device) event_cache::put(device, std::move(ready));
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
  cudaError_t const second = is_sticky(first) ? first : record_fresh(ready, device, stream);
  if (second == cudaSuccess) return {record_outcome::recorded_anew, first};
  return {runs_nothing_after(second) ? record_outcome::device_lost : record_outcome::failed, first};
}

ready_answer answer_of(cudaError_t query_status) noexcept {
  if (query_status == cudaSuccess) return ready_answer::done;
  if (is_sticky(query_status)) {
    return runs_nothing_after(query_status) ? ready_answer::done : ready_answer::gone;
  }
  return query_status == cudaErrorInvalidResourceHandle ? ready_answer::gone
                                                        : ready_answer::not_yet;
}

}  // namespace escrow
