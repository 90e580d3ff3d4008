// Scratch memory of any size, claimed for a stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/device_block.hpp"
#include "escrow/pool/holder.hpp"
#include "escrow/pool/lease.hpp"
#include "escrow/pool/pool_options.hpp"

namespace escrow {

// What: device memory in power-of-two sizes, a resource_pool for each size. A block is not split,
//   nor joined with others: a claim gets less than twice what it asked for.
// Thread safety, Memory ordering, Capture: as resource_pool.
// Lifetime: as resource_pool: the destructor never blocks; blocks that are out are freed when they
//   come back.
// Errors: as resource_pool; usage_error for more than bytes_max. Errors and holders call the pool
//   of one size "<label> of <size> bytes".
class scratch_pool {
 public:
  // The smallest block, and the largest.
  static constexpr std::size_t bytes_min = 256;
  static constexpr std::size_t bytes_max = std::size_t{1} << 40;

  // `options.slots_max` is the limit for each size. Throws cuda_error if `options.device` is not a
  // device.
  explicit scratch_pool(pool_options const& options = {});
  scratch_pool(scratch_pool&&) noexcept;
  scratch_pool& operator=(scratch_pool&&) noexcept;
  ~scratch_pool();

  // Claims at least `bytes` bytes for work on `stream`. Contract and errors as
  // resource_pool::claim. Any thread.
  [[nodiscard]] lease<device_block> claim(stream_ref stream, std::size_t bytes,
                                          source_location where = source_location::current());

  // As resource_pool::close_for, for all sizes together.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);

  // Bytes of device memory that the blocks have, in use or not.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace escrow
