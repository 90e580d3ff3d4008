// SPDX-License-Identifier: Apache-2.0
// Scratch memory of any size, claimed for a stream.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/detail/made_once.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/pool/device_memory.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// How much memory a scratch_pool keeps, and where it comes from.
struct scratch_policy {
  // Maximum bytes of all blocks together, whether they are in use, free or leaked.
  std::size_t bytes_max = std::numeric_limits<std::size_t>::max();
  // Blocks that are free for longer than this are given back. Once in this time a claim checks: the
  // deleter's worker frees the blocks that have been free since the check before. Until it comes to
  // them, claims may take them. Zero: never. Without claims nothing is checked: call trim().
  std::chrono::nanoseconds idle_max{0};
  memory_source source = memory_source::device();
  // Before a claim makes a block, idle blocks of other sizes are freed, so that all are at most so
  // many times the most bytes that were in use in the last `keep_window`, or 32 MiB. An idle block
  // that is at most four times as large serves instead. Sizes that are freed so and claimed again
  // and again are kept beyond that, up to once more the most in use. For memory that is cheap to
  // free. Zero: what was claimed once is kept.
  double keep_factor = 1.25;
  std::chrono::nanoseconds keep_window = std::chrono::seconds(10);
};

// Statistics of a scratch_pool in bytes of whole blocks, read one by one without a common lock.
struct scratch_stats {
  std::size_t bytes = 0;  // the next three, bytes_leaked, and what is being allocated or freed
  std::size_t bytes_in_use = 0;      // leased, or with a deferred record: see lease
  std::size_t bytes_idle = 0;        // free: the work on them may still run
  std::size_t bytes_in_graphs = 0;   // held by graphs, leased or not
  std::size_t bytes_unrecorded = 0;  // of the idle ones, only for their stream now: see claimer
  std::size_t bytes_peak = 0;        // most bytes so far
  std::uint64_t grown = 0;           // blocks allocated so far
  std::uint64_t returned = 0;        // blocks freed so far
  // Of its slots in the arena of its sharing group, which others share: see sharing_stats::bytes.
  // Each counts until the worker has destroyed it, also when its memory is gone.
  std::size_t bytes_in_arena = 0;
  std::size_t bytes_deferred = 0;  // with a deferred record: see lease
  std::size_t bytes_leaked = 0;    // of `bytes`: never freed, see deleter_stats::leaked
};

// The same as a JSON object on one line, with the names of the members.
[[nodiscard]] ESCROW_API std::string to_json(scratch_stats const& stats);

// A lease of a block as `size()` elements of type T. A kernel receives a T*.
template <class T>
class buffer_lease : public lease<device_block> {
 public:
  // Of `memory`, which has room for `count` elements.
  buffer_lease(lease<device_block>&& memory, std::size_t count) noexcept
      : lease<device_block>(std::move(memory)), size_(count) {}

  // Throws usage_error if the lease is empty.
  [[nodiscard]] T* data(source_location where = source_location::current()) const ESCROW_OF_THIS {
    return static_cast<T*>(get(where).data());
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }  // as claimed

 private:
  std::size_t size_;
};

template <class T>
struct kernel_argument_traits<buffer_lease<T>> : kernel_argument_traits<lease<device_block>> {
  static T* device_value(buffer_lease<T> const& claimed) { return claimed.data(source_location()); }
  static std::size_t bytes(buffer_lease<T> const& claimed) { return claimed.size() * sizeof(T); }
};

class scratch_claimer;

// Memory in blocks of certain sizes (block_bytes()), each with slots as those of a resource_pool.
// Blocks are neither split nor joined, but in the arena of a sharing group. A size that was claimed
// once takes about 20 KB of host memory until the pool is destroyed.
//   Memory comes back by trim(), after scratch_policy::idle_max, and if a claim finds no memory or
// no room below scratch_policy::bytes_max: it then frees idle blocks, and may block the host (see
// claim()). Blocks are freed only after the work on them.
// Thread safety: as resource_pool. A claim of a size that exists takes no lock of the pool's.
// Lifetime: as resource_pool: the destructor never blocks; blocks are freed when they return.
// Capture: as resource_pool; a limit that is reached in a capture acts as slots_max does.
// Errors: as resource_pool::claim; usage_error for more than bytes_max. Out of memory is a
//   cuda_error, a limit that is reached, or a block above it, pool_exhausted: they name the claim's
//   size and line, what leases and graphs hold, and the options that would have helped. Errors and
//   holders name the blocks of one size "<label> of <size> bytes".
// Example: examples/scratch.cpp.
class ESCROW_API scratch_pool {
 public:
  // The smallest block, and the largest.
  static constexpr std::size_t bytes_min = 256;
  static constexpr std::size_t bytes_max = std::size_t{1} << 40;
  // The size of the block that a claim of `bytes` gets, unless it shares one: see claim(). There
  // are four sizes for each power of two (1, 1.25, 1.5 and 1.75 times it), and steps of 2 MiB from
  // 8 MiB on. So a block is less than 25 % larger than the claim, but at least bytes_min. Never
  // less than `bytes`, also above bytes_max.
  [[nodiscard]] static std::size_t block_bytes(std::size_t bytes) noexcept;

  // `options.slots_max` limits each size. Throws cuda_error if `options.device` is not a device,
  // and usage_error for a source without functions.
  explicit scratch_pool(pool_options const& options = {}, scratch_policy const& policy = {},
                        source_location where = source_location::current())
      : slots_(make_slots(options, policy, where)) {
    pin_this_module();  // the worker calls the source's `free`
  }

  // Claims at least `bytes` bytes. Contract and errors as resource_pool::claim. In a capture with
  // options.group it gets a range of the group's arena, which no limit counts; without an arena
  // perhaps a block that the group's graphs hold already, up to four times as large, and larger
  // before the claim is refused. Any thread.
  //   A claim that finds no memory, or no room below scratch_policy::bytes_max, and no block of its
  // size to wait for in the stream, frees idle blocks of other sizes on its thread and tries again;
  // if it finds no memory, then those of all pools of device memory on the device, too.
  // The `free` of memory that is not cheap to free may then block. If it finds no memory then, it
  // waits for the deleter's worker, for at most options.reclaim_wait_max; if the work on free
  // blocks is not done, for that on the host, for at most options.capture_wait_max.
  ESCROW_KEEP lease<device_block> claim(stream_ref stream, std::size_t bytes,
                                        source_location where = source_location::current()) {
    return claim_as("scratch_pool::claim", claim_kind::in_order, stream, bytes, where);
  }
  // The same for `count` elements, not initialized.
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim(stream_ref stream, std::size_t count,
                                    source_location where = source_location::current()) {
    constexpr char const* call = "scratch_pool::claim";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::in_order, stream, bytes, where, bytes), count};
  }
  template <std::integral Size, stream_like Stream>
  void claim(Size, Stream const&) = delete;  // the stream is the first argument
  template <class T, std::integral Size, stream_like Stream>
  void claim(Size, Stream const&) = delete;  // the stream is the first argument

  // The same for memory that the host writes or reads at once, as resource_pool::claim_for_host.
  // All claims are so if the source's memory `is_host_written`, as memory_source::pinned_host().
  // Any thread.
  ESCROW_KEEP lease<device_block> claim_for_host(
      stream_ref stream, std::size_t bytes, source_location where = source_location::current()) {
    return claim_as("scratch_pool::claim_for_host", claim_kind::for_host, stream, bytes, where);
  }
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim_for_host(stream_ref stream, std::size_t count,
                                             source_location where = source_location::current()) {
    constexpr char const* call = "scratch_pool::claim_for_host";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::for_host, stream, bytes, where, bytes), count};
  }

  // The same for memory that stays after its capture, as resource_pool::claim_kept. Any thread.
  ESCROW_KEEP lease<device_block> claim_kept(stream_ref stream, std::size_t bytes,
                                             source_location where = source_location::current()) {
    return claim_as("scratch_pool::claim_kept", claim_kind::kept, stream, bytes, where);
  }
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim_kept(stream_ref stream, std::size_t count,
                                         source_location where = source_location::current()) {
    constexpr char const* call = "scratch_pool::claim_kept";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::kept, stream, bytes, where, bytes), count};
  }

  // A claimer of this pool for `stream`: see resource_pool::on. Any thread.
  ESCROW_KEEP scratch_claimer on(stream_ref stream,
                                 source_location where = source_location::current());

  // Frees free blocks whose work is done, on this thread, until at most `keep_bytes` are allocated
  // or none is left. Device memory goes back to the device, as by trim_device_memory(); the `free`
  // of another source may block. Returns the bytes freed. Throws cuda_error; what was freed until
  // then is freed. Any thread.
  std::size_t trim(std::size_t keep_bytes = 0, source_location where = source_location::current()) {
    constexpr char const* call = "scratch_pool::trim";
    return detail::called_at(
        call, where, [&] { return slot_pool::of(slots_, call, where).trim(keep_bytes, true); });
  }

  // As resource_pool::close_for, for all sizes.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout,
                                              source_location where = source_location::current()) {
    return slot_pool::of(slots_, "scratch_pool::close_for", where).close_for(timeout);
  }

  // What holds blocks of any size now. Any thread. Throws std::bad_alloc.
  [[nodiscard]] std::vector<holder> holders(
      source_location where = source_location::current()) const {
    return slot_pool::of(slots_, "scratch_pool::holders", where).holders();
  }
  // The pool, its statistics and holders in words, as resource_pool::describe. Any thread; takes
  // short locks. Throws std::bad_alloc.
  //
  //     scratch pool "solver" on device 0, slots_max 64: {"bytes": 6144, "bytes_in_use": 4096, ...}
  //       "solver of 4096 bytes": a lease holds 1 for 412 ms, since the claim at halo.cpp:17
  [[nodiscard]] std::string describe(source_location where = source_location::current()) const {
    return slot_pool::of(slots_, "scratch_pool::describe", where).describe();
  }

  // Total memory of all blocks, in bytes, in use or not, from its allocation until it is freed. 0
  // if the pool was moved from.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return slots_ == nullptr ? 0 : slots_->bytes();
  }
  // The statistics of all sizes; zeros if the pool was moved from. Any thread.
  [[nodiscard]] scratch_stats stats() const noexcept {
    return slots_ == nullptr ? scratch_stats{} : slots_->stats_in_bytes();
  }

 private:
  friend class stream_allocator;  // whose errors name its own calls

  static slot_pool::owned make_slots(pool_options const& options, scratch_policy const& policy,
                                     source_location where);
  // `used`: see claim_request.
  ESCROW_KEEP lease<device_block> claim_as(char const* call, claim_kind kind, stream_ref stream,
                                           std::size_t bytes, source_location where,
                                           std::size_t used = 0);

  slot_pool::owned slots_;
};

// Claims memory of a scratch_pool for one stream: scratch_pool::on(). Contract as claimer; what is
// idle, and its limit, counts for each size of blocks. A claim of any size records for what others
// asked of all sizes, trim() and scratch_policy::idle_max included.
class ESCROW_API scratch_claimer {
 public:
  // As scratch_pool::claim, for the claimer's stream.
  ESCROW_KEEP lease<device_block> claim(std::size_t bytes,
                                        source_location where = source_location::current()) {
    return claim_as("scratch_claimer::claim", claim_kind::in_order, bytes, where);
  }
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim(std::size_t count,
                                    source_location where = source_location::current()) {
    constexpr char const* call = "scratch_claimer::claim";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::in_order, bytes, where, bytes), count};
  }

  // As scratch_pool::claim_for_host. Its release records an event, so that the next one can ask.
  ESCROW_KEEP lease<device_block> claim_for_host(
      std::size_t bytes, source_location where = source_location::current()) {
    return claim_as("scratch_claimer::claim_for_host", claim_kind::for_host, bytes, where);
  }
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim_for_host(std::size_t count,
                                             source_location where = source_location::current()) {
    constexpr char const* call = "scratch_claimer::claim_for_host";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::for_host, bytes, where, bytes), count};
  }

  // As scratch_pool::claim_kept.
  ESCROW_KEEP lease<device_block> claim_kept(std::size_t bytes,
                                             source_location where = source_location::current()) {
    return claim_as("scratch_claimer::claim_kept", claim_kind::kept, bytes, where);
  }
  template <class T>
  ESCROW_KEEP buffer_lease<T> claim_kept(std::size_t count,
                                         source_location where = source_location::current()) {
    constexpr char const* call = "scratch_claimer::claim_kept";
    std::size_t const bytes = detail::bytes_of<T>(call, count, where);
    return {claim_as(call, claim_kind::kept, bytes, where, bytes), count};
  }

  // As claimer::flush, for all sizes.
  void flush(source_location where = source_location::current());

 private:
  friend class scratch_pool;

  scratch_claimer(slot_pool& pool, stream_ref stream, source_location where);
  [[nodiscard]] claimer_slots& of(char const* call, std::size_t bytes, source_location where);
  ESCROW_KEEP lease<device_block> claim_as(char const* call, claim_kind kind, std::size_t bytes,
                                           source_location where, std::size_t used = 0);

  cudaStream_t stream_;
  std::unordered_map<std::size_t, claimer_slots> sizes_;  // by size; empty if moved from
};

// A scratch_pool for each device, created when it is first asked for: `options.deleter` must be
// alive then.
// Thread safety: any thread may call on() concurrently.
class ESCROW_API scratch_pools {
 public:
  // `options.device` is ignored, and `policy` holds for each device.
  explicit scratch_pools(pool_options options = {}, scratch_policy policy = {},
                         source_location where = source_location::current())
      : options_(std::move(options)), policy_(std::move(policy)), places_(device_count(where)) {
    pin_this_module();
  }

  // The pool of `device`, which lives as long as this. Throws cuda_error if that is not a device.
  [[nodiscard]] scratch_pool& on(int device, source_location where = source_location::current());

 private:
  static std::size_t device_count(source_location where);

  pool_options options_;
  scratch_policy policy_;
  std::vector<made_once<scratch_pool>> places_;  // by device
};

}  // namespace escrow::inline v0_2
