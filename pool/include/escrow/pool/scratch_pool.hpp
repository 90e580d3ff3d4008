// Scratch memory of any size, claimed for a stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/api.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/pool/resource_pool.hpp"

namespace escrow::inline v0_1 {

// Owns memory of the device that is current at construction.
// Lifetime: the destructor calls cudaFree, which may wait for the whole device: run it on the
//   deleter's worker by keeping the block in a pool or retiring it.
// Capture: creating and destroying one invalidate a capture unless the thread is in Relaxed mode,
//   as pools and the worker are.
// Errors: the constructor throws cuda_error. The destructor ignores the status.
class ESCROW_API device_block {
 public:
  explicit device_block(std::size_t bytes);  // source: cudaMalloc
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
  // The size in bytes, at least what was requested.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A kernel receives the address; the block itself must be moved into the launch.
template <>
struct kernel_argument_traits<device_block> {
  static void* device_value(device_block const& block) noexcept { return block.data(); }
};

// Device memory in power-of-two sizes, one resource_pool per size. Blocks are neither split nor
// joined: a claim gets less than twice its request (but at least bytes_min).
// Thread safety, Capture: as resource_pool.
// Lifetime: as resource_pool: the destructor never blocks; blocks are freed when they return.
// Errors: as resource_pool; usage_error for more than bytes_max. Errors and holders name the pool
//   of one size "<label> of <size> bytes".
class ESCROW_API scratch_pool {
 public:
  // The smallest block, and the largest.
  static constexpr std::size_t bytes_min = 256;
  static constexpr std::size_t bytes_max = std::size_t{1} << 40;

  // `options.slots_max` limits each size. Throws cuda_error if `options.device` is not a device.
  explicit scratch_pool(pool_options const& options = {});
  scratch_pool(scratch_pool&&) noexcept;
  scratch_pool& operator=(scratch_pool&&) noexcept;
  ~scratch_pool();

  // Claims at least `bytes` bytes. Contract and errors as resource_pool::claim. Any thread.
  [[nodiscard]] lease<device_block> claim(stream_ref stream, std::size_t bytes,
                                          source_location where = source_location::current());

  // As resource_pool::close_for, for all sizes.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);

  // Total device memory of all blocks, in bytes, in use or not.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace escrow::inline v0_1
