// SPDX-License-Identifier: Apache-2.0
// The type-independent part of a pool, and its resources.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/use_clock.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class arena;
class slot_pool;
class slot_share;
struct claimer_stream;
struct holder;
struct memory_report;
struct memory_source;
struct pool_options;
struct pool_stats;
struct scratch_policy;
struct scratch_stats;
struct size_class;
struct slot;

// Identifies a stream: by CUDA's id, or, while a capture prevents that query, by the rest.
struct stream_use {
  cudaStream_t handle = nullptr;  // cudaStreamLegacy for a null stream
  std::uint64_t id = 0;           // 0: not known
  std::uint64_t thread = 0;       // its thread's number for cudaStreamPerThread; else 0
  int device = 0;                 // in a capture the pool's, unless the handle is ambiguous
  // With an unknown id: a stream with that handle and an id not below this is a later one.
  static constexpr std::uint64_t no_bound = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t id_below = no_bound;
};

// The functions given to a resource_pool<T>, shared by its slots. Several threads may call them
// concurrently; `recycle` and `destroy` may be empty.
template <class T>
struct slot_functions {
  std::function<T()> make;
  std::function<void(T&, stream_ref)> recycle;
  std::function<void(T&)> destroy;

  // For a new pool.
  void require_whole(char const* call, std::string const& label, source_location where) const {
    if (!make) {
      detail::refuse_at(where, call, "`make` of \"" + label + "\" is empty",
                        "pass a function that returns a new resource");
    }
    if (std::is_pointer_v<T> && !destroy) {
      detail::refuse_at(where, call,
                        "`destroy` of \"" + label + "\" is empty, and its resources are pointers",
                        "pass one that destroys them, or let `make` return an owner, e.g. a "
                        "std::unique_ptr; for resources that others own, one that does nothing");
    }
  }
  // For a claim that gives the resource to the host at once.
  void require_no_recycle(char const* call, source_location where) const {
    if (!recycle) return;
    detail::refuse_at(where, call,
                      "`recycle` enqueues work, which would use the resource beside the host",
                      "make the pool without `recycle`, and prepare the resource after the claim");
  }
};

// A resource with a size in bytes, as device_block.
template <class T>
concept block_of_bytes = requires(T const& resource) {
  { resource.data() } -> std::same_as<void*>;
  { resource.size() } -> std::same_as<std::size_t>;
};
// One that tells how many bytes it has, as device_buffer.
template <class T>
concept tells_bytes = requires(T const& resource) {
  { resource.bytes() } -> std::same_as<std::size_t>;
};

// What a slot has: made with the pool's device current, destroyed on the worker.
class resource_base {
 public:
  resource_base() = default;
  resource_base(resource_base&&) = delete;
  virtual ~resource_base() = default;

  // A lease that was claimed on the stream with that id accesses it: work may follow. Relaxed: see
  // use_clock.
  void note_access(std::uint64_t stream) noexcept {
    accessed.store(use_clock::now(stream), std::memory_order_relaxed);
  }

  std::size_t bytes = 0;                   // 0: not known
  void const* address = nullptr;           // of so many, of a device_block; else null
  std::span<std::byte const> object = {};  // what it is in host memory
  std::atomic<std::uint64_t> accessed{0};  // when, by the use_clock: at the claim, and later
};

template <class T>
class resource_of final : public resource_base {
 public:
  // Throws what `make` throws.
  template <class Make>
  resource_of(slot_functions<T> const& functions, Make const& make)
      : value(make()), functions_(functions) {
    if constexpr (tells_bytes<T>) {
      bytes = value.bytes();
    } else if constexpr (block_of_bytes<T>) {
      bytes = value.size();
    }
    if constexpr (block_of_bytes<T>) address = value.data();
    object = {reinterpret_cast<std::byte const*>(std::addressof(value)), sizeof(value)};
  }
  ~resource_of() override {
    if (!functions_.destroy) return;
    detail::call_nothrow("the `destroy` of a resource_pool", [this] { functions_.destroy(value); });
  }

  T value;

 private:
  slot_functions<T> const& functions_;  // the pool's, which outlives its slots
};

// What a claim promises beside the order of its stream:
//                earlier GPU work on the slot   another use of it in its capture, or group
//     in_order   comes first, in the stream     in the order of the graph, or group
//     kept       the same                       none
//     for_host   is done                        none
enum class claim_kind : std::uint8_t { in_order, kept, for_host };

struct claim_request {
  char const* call;  // the public function, for errors
  stream_ref stream;
  source_location where;
  // How long it may block the host, and then returns an empty claim. Empty: as the options say, and
  // then it throws pool_exhausted.
  std::optional<std::chrono::nanoseconds> host_wait_max = {};
  std::size_t bytes = 0;  // of a scratch_pool
  claim_kind kind = claim_kind::in_order;
  std::size_t used = 0;  // the claimer uses no more bytes than that; 0: all that it gets
};

// A lease's claim. Empty without a slot.
struct claimed_slot {
  slot* what = nullptr;
  resource_base* resource = nullptr;  // the slot's
  bool was_used = false;              // by an earlier lease or launch
  stream_use on;
  std::uint64_t capture_id = 0;  // 0: claimed eagerly
  // Not null: a release on `on` may record no event, while that lives.
  claimer_stream const* uncovered_by = nullptr;
};

// Implements resource_pool<T> and scratch_pool, which state the contract.
class ESCROW_API slot_pool {
 public:
  // Called with the pool's device current and in Relaxed capture mode, possibly concurrently.
  // `in_arena`: if not null, a scratch_pool's block is there, and of so many bytes; nothing is
  // called then, and any device may be current.
  using make_function = std::function<std::unique_ptr<resource_base>(
      size_class const& of, void* in_arena, std::size_t bytes)>;
  struct leave_pool {
    void operator()(slot_pool* owned) const noexcept { owned->close_and_leave(); }
  };

  using owned = std::unique_ptr<slot_pool, leave_pool>;  // of a public pool; null if moved from

  // For a public function `call` of that pool. Throws usage_error if it was moved from.
  [[nodiscard]] static slot_pool& of(owned const& its, char const* call, source_location where) {
    if (its == nullptr) [[unlikely]]
      refuse_moved_from(call, where);
    return *its;
  }

  // `options.device` must be a device. `policy`: a scratch_pool's, which has many sizes; null: a
  // resource_pool's. Throws cuda_error, usage_error. The library frees what it allocates here: the
  // caller's operator new may be another one.
  [[nodiscard]] static owned create(pool_options const& options, make_function make,
                                    scratch_policy const* policy = nullptr);
  slot_pool(slot_pool&&) = delete;
  // Nothing recycles its resources: for tests on the simulated runtime. Before any claim.
  void keep_contents() noexcept;
  // Throws cuda_error, which names `what`, if `device` is none of so many devices.
  static void require_device(char const* what, int device, int devices);

  [[nodiscard]] claimed_slot claim(claim_request const& asked);
  [[nodiscard]] claimed_slot claim_bytes(claim_request const& asked);  // of a scratch_pool

  // For lease<T> of any pool. Functions that release leave the lease empty, or throw. `call`: the
  // public function, for errors.
  static void release(claimed_slot& lease);
  static void release(claimed_slot& lease, stream_ref stream, char const* call = "lease::release");
  static void release_done(claimed_slot& lease) noexcept;  // no work outside of graphs uses it
  static void release_at_end(claimed_slot& lease) noexcept;
  static void record_stream(claimed_slot const& lease, stream_ref stream,
                            char const* call = "lease::record_stream");
  static void before_launch(claimed_slot const& lease, stream_ref stream, char const* call);
  // For an owner of the lease that is retired on `stream`, which captures.
  static void before_retire(claimed_slot const& lease, stream_ref stream);
  [[nodiscard]] static slot_share share_with_node(claimed_slot const& lease);
  // Ends a lease of a capture for good: no claim of that capture gets the slot, and no event is
  // recorded. False if the lease is not of a capture, or was told of a stream after it.
  [[nodiscard]] static bool leave_to_graph(claimed_slot& lease) noexcept;
  static void require_left_to_graph(claimed_slot& lease);  // the same, or throws usage_error
  // Leaks the slot of a lease whose work nothing is known of.
  static void leak(claimed_slot& lease) noexcept;
  // The slot; throws usage_error, naming `call`, if the lease is empty.
  [[nodiscard]] static slot& require_slot(char const* call, claimed_slot const& lease,
                                          source_location where = source_location());

  void close() noexcept;  // refuses claims, destroys free slots
  // The same; waits for the other slots, and returns the holders of what is left.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);
  // The owner's last call: closes without waiting. The pool ends with its last slot.
  void close_and_leave() noexcept;

  // Destroys free slots whose work is done, on this thread, until at most `keep_bytes` are taken.
  // Returns the bytes that it freed. Throws cuda_error.
  // `is_to_device`: then also what Escrow keeps of the device's memory goes back.
  std::size_t trim(std::size_t keep_bytes, bool is_to_device = false);
  // The same of all scratch pools of that device's memory, of what is free, but for one of them.
  static std::size_t trim_all(int device, slot_pool const* but = nullptr) noexcept;
  [[nodiscard]] std::vector<holder> holders() const;  // graphs, deferred records, all leases
  [[nodiscard]] pool_stats stats() const noexcept;    // of a resource_pool
  [[nodiscard]] scratch_stats stats_in_bytes() const noexcept;
  [[nodiscard]] std::string describe() const;
  static void report_all(memory_report& to);         // the pools and groups of the process
  [[nodiscard]] std::size_t bytes() const noexcept;  // of a scratch_pool's blocks
  [[nodiscard]] int device() const noexcept;
  [[nodiscard]] arena& arena_of() const noexcept;  // there is one

 private:
  friend class arena;
  friend class claimer_slots;
  friend struct graph_hold;
  friend struct slot;
  struct state;
  struct claim_search;

  slot_pool(pool_options const& options, make_function make, scratch_policy const* policy);
  ~slot_pool();
  [[noreturn]] static void refuse_moved_from(char const* call, source_location where);
  static void destroy_slot(reclaimable& thing) noexcept;

  std::unique_ptr<state> state_;
};

// Implements claimer<T> and scratch_claimer, which state the contract. Keeps the pool's state.
class ESCROW_API claimer_slots {
 public:
  // `bytes`: of a scratch_pool.
  claimer_slots(char const* call, slot_pool& pool, stream_ref stream, source_location where,
                std::size_t bytes = 0);
  claimer_slots(claimer_slots&& other) noexcept;
  claimer_slots& operator=(claimer_slots&& other) noexcept;
  ~claimer_slots();

  // As slot_pool::claim.
  [[nodiscard]] claimed_slot claim(char const* call, source_location where,
                                   std::optional<std::chrono::nanoseconds> host_wait_max = {},
                                   std::size_t bytes = 0, claim_kind kind = claim_kind::in_order,
                                   std::size_t used = 0);
  void flush(char const* call, source_location where);
  // Throws usage_error after a move, or on another thread for cudaStreamPerThread.
  [[nodiscard]] slot_pool& require_pool(char const* call) const;
  [[noreturn]] static void refuse_moved_from(char const* call);

 private:
  void learn_id();  // which cannot be asked in a capture

  slot_pool* pool_ = nullptr;  // null if moved from
  size_class* of_ = nullptr;
  claimer_stream* its_ = nullptr;  // null: the stream outlives the pool
  stream_use on_;
};

}  // namespace escrow::inline v0_2
