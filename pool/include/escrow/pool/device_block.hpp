// An owned block of device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "escrow/deleter/kernel_argument.hpp"

namespace escrow {

// What: owns memory of the device that was current when it was made.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: the end frees the memory with cudaFree, which may wait for the whole device: let it end
//   on the deleter's worker, by keeping it in a pool or retiring it.
// Capture: making and freeing one kill a capture unless the thread is in Relaxed mode, as pools and
//   the worker are.
// Errors: the constructor throws cuda_error. The destructor ignores the status: there is no one to
//   tell.
class device_block {
 public:
  // Allocates `bytes` bytes. Source: cudaMalloc.
  explicit device_block(std::size_t bytes);
  device_block(device_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  device_block& operator=(device_block&& other) noexcept {
    device_block taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }
  ~device_block();

  // The device address of the first byte, aligned to 256 bytes.
  [[nodiscard]] void* data() const noexcept { return data_; }
  // How many bytes there are, at least as many as were asked for.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A kernel gets the address; the block itself has to be moved into the launch.
template <>
struct kernel_argument_traits<device_block> {
  static void* device_value(device_block const& block) noexcept { return block.data(); }
};

}  // namespace escrow
