// SPDX-License-Identifier: Apache-2.0
// Memory for tests: pinned integers that host and kernels share, a flag that holds a kernel, device
// integers.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "status.hpp"

namespace escrow::test {

/// Zeroed integers in pinned host memory, readable by the host while kernels write them.
class pinned_ints {
 public:
  explicit pinned_ints(std::size_t n = 1) : size_{n} {
    void* memory = nullptr;
    must(cudaMallocHost(&memory, n * sizeof(int)));
    data_ = static_cast<int*>(memory);
    for (std::size_t i = 0; i < n; ++i) store(i, 0);
  }
  pinned_ints(pinned_ints const&) = delete;
  pinned_ints& operator=(pinned_ints const&) = delete;
  ~pinned_ints() { static_cast<void>(cudaFreeHost(data_)); }

  [[nodiscard]] int* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Acquire and release: a kernel's write and the host's are a message from one to the other.
  [[nodiscard]] int load(std::size_t i = 0) const {
    return std::atomic_ref<int>{data_[i]}.load(std::memory_order_acquire);
  }
  void store(std::size_t i, int value) {
    std::atomic_ref<int>{data_[i]}.store(value, std::memory_order_release);
  }

 private:
  std::size_t size_;
  int* data_ = nullptr;
};

/// What wait_flag kernels wait for. Declare it before the streams that use it, and raise it in
/// every case: its end raises it and waits for the device, so that no kernel spins on freed memory.
class pinned_flag {
 public:
  pinned_flag() = default;
  pinned_flag(pinned_flag const&) = delete;
  pinned_flag& operator=(pinned_flag const&) = delete;
  ~pinned_flag() {
    raise();
    static_cast<void>(cudaDeviceSynchronize());
  }

  [[nodiscard]] int volatile* get() const noexcept { return value_.data(); }
  void raise() { value_.store(0, 1); }
  /// While no kernel waits for it.
  void lower() { value_.store(0, 0); }

 private:
  pinned_ints value_;
};

/// Zeroed integers in device memory.
class device_ints {
 public:
  explicit device_ints(std::size_t n = 1) : size_{n} {
    void* memory = nullptr;
    must(cudaMalloc(&memory, n * sizeof(int)));
    data_ = static_cast<int*>(memory);
    must(cudaMemset(data_, 0, n * sizeof(int)));
    must(cudaDeviceSynchronize());
  }
  device_ints(device_ints const&) = delete;
  device_ints& operator=(device_ints const&) = delete;
  ~device_ints() { static_cast<void>(cudaFree(data_)); }

  [[nodiscard]] int* data() const noexcept { return data_; }
  /// Copies to the host, behind all work of the device.
  [[nodiscard]] std::vector<int> read() const {
    std::vector<int> result(size_);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(result.data(), data_, size_ * sizeof(int), cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  std::size_t size_;
  int* data_ = nullptr;
};

}  // namespace escrow::test
