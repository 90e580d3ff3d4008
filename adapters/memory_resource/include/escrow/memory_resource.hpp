// SPDX-License-Identifier: Apache-2.0
// A memory resource for CCCL (cuda::mr), and so for RMM, CUB, Thrust and cuda::buffer.
#pragma once

#include <cuda/std/version>

#if CCCL_VERSION < 3001000
#error \
    "escrow/memory_resource.hpp needs CCCL 3.1 or newer, as in CUDA 13.1, PyPI's nvidia-cuda-cccl \
13.1 or RMM's own headers: put its folder of headers before that of the CUDA toolkit"
#endif

#include <cstddef>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <new>
#include <utility>

#include "escrow/pool/stream_allocator.hpp"

namespace escrow::inline v0_2 {

// What: device memory of a stream_allocator as a cuda::mr::resource with the property
//   device_accessible. CCCL 3.2 and newer also have cuda::mr::any_resource, which keeps a copy.
// Thread safety: any thread may call anything concurrently, except constructor, assignment and
//   destructor of the same copy.
// Lifetime: copies share the memory, which ends with the last copy of the stream_allocator: see
//   there for memory that is allocated then. A cuda::mr::resource_ref keeps no copy.
// Order: memory is for use in the order of `stream`; tell memory().record_stream() of another
//   before its work. Memory of a pinned source is the host's at once, from both kinds of
//   allocation, and is only device_accessible. For results that no other graph of a group
//   overwrites: memory().allocate_kept().
// Capture: allocations and deallocations work in a capture, whose graph keeps the memory, and add
//   no node. What a capture allocated may be deallocated in it, on another of its streams, eagerly
//   later, or never: the graph has it once the last copy has ended.
// Errors: allocations throw as those of stream_allocator, and std::bad_alloc for more than
//   scratch_pool::bytes_max. RMM's adaptors that try again catch the former as
//   failure_callback_resource_adaptor<std::runtime_error>. Deallocations do not throw: the
//   deleter's on_error gets the error, and the memory is still allocated.
class memory_resource {
 public:
  explicit memory_resource(stream_allocator memory = stream_allocator())
      : memory_(std::move(memory)) {}
  // There is no move: nothing can be left without memory.
  memory_resource(memory_resource const&) noexcept = default;
  memory_resource& operator=(memory_resource const&) noexcept = default;
  ~memory_resource() = default;

  // Memory for use in `stream`'s order. `alignment` is a power of two. Never null.
  [[nodiscard]] void* allocate(cuda::stream_ref stream, std::size_t bytes,
                               std::size_t alignment = stream_allocator::default_alignment) {
    require_possible(bytes);
    return memory_.allocate(stream, bytes, alignment);
  }
  // Frees it after the work on `stream` so far, and on recorded ones. Other uses must be ordered
  // before that. In a CUDA callback `stream` is that of the allocation.
  void deallocate(cuda::stream_ref stream, void* memory, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = stream_allocator::default_alignment) noexcept {
    memory_.deallocate_or_report(stream, memory);
  }

  // Memory that every stream may use at once: may wait on the host.
  [[nodiscard]] void* allocate_sync(std::size_t bytes,
                                    std::size_t alignment = stream_allocator::default_alignment) {
    require_possible(bytes);
    return memory_.allocate(bytes, alignment);
  }
  // Frees it. The work that used it must be done. Also in CUDA callbacks.
  void deallocate_sync(void* memory, std::size_t /*bytes*/,
                       std::size_t /*alignment*/ = stream_allocator::default_alignment) noexcept {
    memory_.deallocate_or_report(memory);
  }

  // For leave_to_graph(), and for trim(), stats() and holders() of its pool.
  [[nodiscard]] stream_allocator& memory() noexcept { return memory_; }
  [[nodiscard]] stream_allocator const& memory() const noexcept { return memory_; }

  // Whether memory of one may be deallocated by the other: copies.
  [[nodiscard]] bool operator==(memory_resource const&) const noexcept = default;

  // For CUB: cuda::std::execution::env{stream, resource} is an environment that has it.
  [[nodiscard]] memory_resource const& query(cuda::mr::get_memory_resource_t) const noexcept {
    return *this;
  }
  friend constexpr void get_property(memory_resource const&, cuda::mr::device_accessible) noexcept {
  }

#if CCCL_VERSION >= 3002000
  using default_queries =
      cuda::mr::properties_list<cuda::mr::device_accessible>;  // for cuda::buffer
#endif

 private:
  // What no device has is not misuse here: callers of memory resources try less, or elsewhere.
  static void require_possible(std::size_t bytes) {
    if (bytes > scratch_pool::bytes_max) throw std::bad_alloc();
  }

  stream_allocator memory_;
};

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<memory_resource, cuda::mr::device_accessible>);

}  // namespace escrow::inline v0_2
