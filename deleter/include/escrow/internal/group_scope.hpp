// SPDX-License-Identifier: Apache-2.0
// Eager work between the launches of a sharing group.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "escrow/internal/group_lease.hpp"
#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_2 {

// What: a sharing_group::run() that is under way on this thread.
// Thread safety: its thread's.
// Lifetime: inside of the call.
class group_scope {
 public:
  group_scope(group_order const& group, cudaStream_t on, std::uint64_t id) noexcept;
  group_scope(group_scope&&) = delete;
  ~group_scope();

  // This thread's in that group; null if there is none, or if it is on another stream.
  [[nodiscard]] static group_scope* of(group_order const& group, cudaStream_t on) noexcept;
  // Whether this thread is in any of that group.
  [[nodiscard]] static bool is_in(group_order const& group) noexcept;
  // The same as of() by its number, until it has ended.
  [[nodiscard]] static group_scope* of(std::uint64_t number) noexcept;

  group_order const& group;
  cudaStream_t const stream;
  std::uint64_t const stream_id;
  std::uint64_t const number;                        // unique, and no capture's id
  std::vector<std::shared_ptr<group_lease>> leases;  // that were claimed in it
  bool has_ended = false;  // the call returns: of(number) finds it no more

 private:
  group_scope* const outer_;
};

}  // namespace escrow::inline v0_2
