// SPDX-License-Identifier: Apache-2.0
// A workspace of a scratch_pool for the calls of a cuBLAS handle.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/scratch_pool.hpp"

namespace escrow::inline v0_2 {

// A call of cuBLAS did not succeed.
class cublas_error : public std::runtime_error {
 public:
  // `call`: the function's name.
  cublas_error(cublasStatus_t status, std::string const& call)
      : std::runtime_error(call + ": " + cublasGetStatusName(status) + ": " +
                           cublasGetStatusString(status)),
        status_(status) {}

  [[nodiscard]] cublasStatus_t status() const noexcept { return status_; }

 private:
  cublasStatus_t status_;
};

// What: binds a cuBLAS handle to a stream, with a workspace claimed for that stream. If the stream
//   captures, the graph keeps the workspace, also after the end of the handle; without one of its
//   own, it would use the handle's. Then several graphs and eager calls may use one handle.
// Thread safety: one thread at a time, as the handle. At most one at a time for a handle.
// Lifetime: its end binds the handle to its earlier stream again, with cuBLAS's own workspace,
//   since cuBLAS does not tell which one it had; and releases the claim. The handle must be alive
//   then, and both streams. What was enqueued may still run.
// Capture: as scratch_pool::claim; the stream must stay in the capture until the end of this.
// Errors: as scratch_pool::claim; cublas_error. Then the handle is as before, or, after
//   cublas_error, bound to its earlier stream with cuBLAS's own workspace.
// cublasSetStream() and cublasSetWorkspace() on the handle take the workspace off it: do not call
// them meanwhile. For cuBLASLt, claim workspace_bytes() from the pool and pass address and size.
class cublas_workspace {
 public:
  // What NVIDIA recommends for a device: 32 MiB from compute capability 9 on, 4 MiB before. More
  // than recommended for some later devices. Throws cuda_error.
  [[nodiscard]] static std::size_t workspace_bytes(int device) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
    return std::size_t{major >= 9 ? 32U : 4U} << 20U;
  }

  // `handle` must be of the pool's device. `bytes`: see workspace_bytes().
  cublas_workspace(scratch_pool& pool, cublasHandle_t handle, stream_ref stream, std::size_t bytes,
                   source_location where = source_location::current())
      : memory_(pool.claim(stream, bytes, where)), handle_(handle) {
    require(cublasGetStream(handle, &previous_), "cublasGetStream");
    require(cublasSetStream(handle, stream.get()), "cublasSetStream");  // resets the workspace
    cublasStatus_t const status = cublasSetWorkspace(handle, memory_->data(), bytes);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    static_cast<void>(cublasSetStream(handle, previous_));
    require(status, "cublasSetWorkspace");
  }
  // The same with workspace_bytes() of the current device.
  cublas_workspace(scratch_pool& pool, cublasHandle_t handle, stream_ref stream,
                   source_location where = source_location::current())
      : cublas_workspace(pool, handle, stream, workspace_bytes(current()), where) {}

  cublas_workspace(cublas_workspace&&) = delete;
  ~cublas_workspace() { static_cast<void>(cublasSetStream(handle_, previous_)); }

 private:
  static void require(cublasStatus_t status, char const* call) {
    if (status != CUBLAS_STATUS_SUCCESS) throw cublas_error(status, call);
  }
  static int current() {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }

  lease<device_block> memory_;
  cublasHandle_t handle_;
  cudaStream_t previous_ = nullptr;
};

}  // namespace escrow::inline v0_2
