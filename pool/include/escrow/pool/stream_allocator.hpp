// SPDX-License-Identifier: Apache-2.0
// Allocates and frees device memory by its address, in stream order, captured or not.
#pragma once

#include <cstddef>
#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// A scratch_pool for interfaces that give memory back by its address: memory resources, allocators
// of frameworks, C. Where you can keep a lease, use the pool itself.
// Thread safety: any thread may call anything concurrently, except constructor, assignment and
//   destructor of the same copy. Captures of other threads while memory is freed: see deallocate().
// Lifetime: copies share the memory, which ends as a scratch_pool's does, with the last copy. Of
//   memory that is still allocated then, what was allocated in a capture, and recorded on no stream
//   after it, belongs to the graph. The rest is leaked (deleter_stats::leaked), and a usage_error
//   goes to the deleter's on_error. No function of this may run after its memory's device was
//   reset.
// Capture: as scratch_pool. Memory allocated in a capture may be used and freed in the capture, or
//   eagerly later; the graph keeps it for its launches in any case. Until it is freed, it has its
//   content after the graph's end, too.
// Errors: as scratch_pool; usage_error for an address that is not allocated. An allocation in a
//   capture that throws std::bad_alloc may leave memory to the graph, which nothing uses.
// Example: examples/stream_allocator.cpp.
class ESCROW_API stream_allocator {
 public:
  // At least what cudaMalloc guarantees.
  static constexpr std::size_t default_alignment = 256;

  // The options' `slots_max` limits the blocks of each size, if it is not empty.
  explicit stream_allocator(pool_options const& options = {}, scratch_policy const& policy = {},
                            source_location where = source_location::current())
      : state_(make_state(options, policy, where)) {
    pin_this_module();  // the worker calls the source's `free`
  }
  // A move is a copy: none is ever empty.
  stream_allocator(stream_allocator const&) noexcept = default;
  stream_allocator& operator=(stream_allocator const&) noexcept = default;

  // Memory of at least `bytes` bytes, not initialized, for use in `stream`'s order; if the source's
  // memory `is_host_written`, as allocate_for_host(). `alignment` is a power of two. Never null,
  // also for no bytes. Takes one of 61 locks, by the address, for a few instructions, as freeing
  // does.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               source_location where = source_location::current());
  // The same for memory that the host writes or reads at once, as resource_pool::claim_for_host.
  [[nodiscard]] void* allocate_for_host(stream_ref stream, std::size_t bytes,
                                        std::size_t alignment = default_alignment,
                                        source_location where = source_location::current());
  // The same for memory that stays after its capture, as resource_pool::claim_kept.
  [[nodiscard]] void* allocate_kept(stream_ref stream, std::size_t bytes,
                                    std::size_t alignment = default_alignment,
                                    source_location where = source_location::current());
  // Memory that any stream and the host may use at once: claimed as allocate_for_host().
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = default_alignment,
                               source_location where = source_location::current());

  // Frees `memory` after the work on `stream` so far. All uses must be ordered before that. The
  // stream of its allocation may be gone, unless `stream` captures and the memory is from outside
  // of that capture. In a CUDA callback `stream` is that of the allocation. Null does nothing. If
  // it throws, the memory is still allocated. If CUDA refuses an event, the memory is free once it
  // can be recorded (see lease), and on_error gets the error.
  //   Meanwhile no other thread may begin or end a capture of `stream`, of one given to
  // record_stream(), or, if `stream` captures, of the stream of the allocation. In a destructor
  // that a deleter calls, memory may be freed at any time: its record is deferred, see lease.
  void deallocate(stream_ref stream, void* memory,
                  source_location where = source_location::current());
  // For memory whose work is known to be done: waits for none, and the memory is free at once.
  void deallocate(void* memory, source_location where = source_location::current());
  // Both for interfaces that may not throw: on_error gets what they throw twice in a row.
  void deallocate_or_report(stream_ref stream, void* memory,
                            source_location where = source_location::current()) noexcept;
  void deallocate_or_report(void* memory,
                            source_location where = source_location::current()) noexcept;

  // The memory is used on `stream` too, as lease::record_stream: also a graph gets memory of before
  // its capture, if `stream` captures. Memory of a capture only while the stream of its allocation
  // is alive. While another thread records the same memory, waits for at most
  // options.capture_wait_max. Not concurrently with the memory's end.
  void record_stream(stream_ref stream, void* memory,
                     source_location where = source_location::current());

  // Memory that was allocated in a capture, and that only this graph uses, is the graph's from now
  // on: no later claim of the capture gets it, and it is free when the graph is gone.
  void leave_to_graph(void* memory, source_location where = source_location::current());

  // Whether `memory` is allocated here now. Any thread; takes a lock.
  [[nodiscard]] bool is_allocated(void const* memory) const noexcept;

  // The pool, for trim(), stats(), holders() and the like. Lives as long as any copy.
  [[nodiscard]] scratch_pool& pool() const noexcept;
  // The memory's device.
  [[nodiscard]] int device() const noexcept;

  // Whether memory of one may be freed by the other: copies.
  [[nodiscard]] bool operator==(stream_allocator const&) const noexcept = default;

 private:
  struct state;
  static std::shared_ptr<state> make_state(pool_options const& options,
                                           scratch_policy const& policy, source_location where);

  std::shared_ptr<state> state_;  // never null
};

}  // namespace escrow::inline v0_2
