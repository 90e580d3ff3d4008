// A CUDA call that failed, as an exception, and the check that throws it.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "escrow/core/source_location.hpp"

namespace escrow {

// What: a CUDA runtime call returned something other than cudaSuccess.
// Thread safety: a value; as any std::exception.
// Memory ordering: none.
// Lifetime: api() must point to a string literal; everything else is copied.
// Capture: none.
// Errors: the constructor may throw std::bad_alloc, as std::runtime_error does.
class cuda_error : public std::runtime_error {
 public:
  // `api` is the name of the CUDA function, a string literal. `where` is the line that called it.
  cuda_error(cudaError_t status, char const* api,
             source_location where = source_location::current());

  // The status that the call returned, never cudaSuccess.
  [[nodiscard]] cudaError_t status() const noexcept { return status_; }
  // The CUDA function that returned it, e.g. "cudaEventRecord".
  [[nodiscard]] char const* api() const noexcept { return api_; }
  // The line of code that called it.
  [[nodiscard]] source_location where() const noexcept { return where_; }

 private:
  cudaError_t status_;
  char const* api_;
  source_location where_;
};

namespace detail {
[[noreturn]] void throw_cuda_error(cudaError_t status, char const* api, source_location where);
}  // namespace detail

// Throws cuda_error unless `status` is cudaSuccess, and clears CUDA's last error, which a caller
// who sees the exception would otherwise meet a second time. A sticky fault cannot be cleared. Any
// thread.
inline void check(cudaError_t status, char const* api,
                  source_location where = source_location::current()) {
  if (status != cudaSuccess) [[unlikely]] {
    detail::throw_cuda_error(status, api, where);
  }
}

// For calls whose failure the caller handles: clears the last error of a call that failed, and says
// whether it succeeded. cudaErrorNotReady is an answer that CUDA does not keep as the last error:
// what cudaGetLastError would clear then is an earlier error of the caller's. Any thread.
inline bool succeeded(cudaError_t status) noexcept {
  if (status == cudaSuccess) return true;
  if (status != cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return false;
}

// Whether `status` means that a device is lost to this process: its work has stopped for good, and
// every later call fails. Other devices may go on: see after_fault.hpp. Source: the error
// descriptions of the CUDA runtime that say "leaves the process in an inconsistent state".
[[nodiscard]] bool is_sticky(cudaError_t status) noexcept;

}  // namespace escrow
