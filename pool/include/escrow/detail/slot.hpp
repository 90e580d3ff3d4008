// The type-independent part of a pool, and its slots, each with one resource.
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
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

class local_slots;
class slot;
class slot_pool;
class slot_share;
struct holder;
struct pool_options;
struct pool_stats;
struct scratch_policy;
struct scratch_stats;
struct size_class;

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

// One graph's hold on a slot, released by the graph's user object or by a node's share. Thread
// safety and lifetime: as reclaimable.
class graph_hold final : public slot_reference {
 public:
  graph_hold(deleter_core& core, int device, escrow::slot& held)
      : slot_reference(core, device, &graph_is_gone), held_(held) {}

  [[nodiscard]] std::string_view label() const noexcept override;
  [[nodiscard]] std::size_t bytes() const noexcept override;
  [[nodiscard]] void const* slot_address() const noexcept override { return &held_; }
  void fill(cudaStream_t stream, unsigned char value) const override;
  void enter(reference_set const& set) noexcept override;
  void end_reuse(std::uint64_t capture_id) noexcept override;

 private:
  friend class slot_pool;

  static void graph_is_gone(reclaimable& thing) noexcept;

  escrow::slot& held_;
  std::uint64_t capture_id_ = 0;
  bool is_claim_ = false;  // the slot was claimed in that capture
};

// An event of that device, or of the one it was recorded on. Goes back to the event_cache.
struct ESCROW_API cached_event {
  explicit cached_event(int its_device) noexcept : device(its_device) {}
  cached_event(cached_event&&) noexcept = default;
  ~cached_event();

  void make();  // takes one from the cache if it has none; throws std::bad_alloc, cuda_error

  int device;
  event recorded = event::none();
};

// A resource's state. Exactly one of these owns it at a time:
//     a free list | a stream's local_slots | a lease | the pool's list of deferred records | graphs
//     | the worker
// A lease, or a deferred record in its place, and graphs may hold it together; it is free when the
// last of them has released it.
// Thread safety: guarded by its owner: the list's lock, the lease's thread; members for graphs and
//   captures by capture_reuse.
// Lifetime: created by its pool, destroyed on the worker.
class ESCROW_API slot : public reclaimable {
 public:
  slot(slot_pool& pool, size_class& of);  // throws std::bad_alloc, cuda_error

  [[nodiscard]] slot_pool& pool() const noexcept { return pool_; }

 protected:
  virtual ~slot();  // destroys the resource

  // The resource's memory, if it is a block of bytes; set once, when it is made.
  void* data_ = nullptr;
  std::size_t bytes_ = 0;

 private:
  friend class capture_reuse;
  friend class free_lists;
  friend class graph_hold;
  friend class local_slots;
  friend class slot_pool;
  template <class T>
  friend class lease;

  slot_pool& pool_;
  size_class& of_;
  std::uint64_t number_ = 0;  // of its pool's slots

  // Links of its list: a free list, a stream's local_slots, or the deferred records.
  slot* older_ = nullptr;
  slot* newer_ = nullptr;
  // In a free list's oldest slot, which represents the list: see free_lists.
  struct list_links {
    slot* newest = nullptr;
    slot* chained = nullptr;   // the next list of the same hash
    slot* previous = nullptr;  // of all lists, new and recently queried ones last
    slot* next = nullptr;
  };
  list_links list_;
  std::uint64_t key_ = 0;  // its list: id of the release's stream, free_lists::idle or its own
  std::uint64_t released_at_ = 0;  // the pool's release stamp
  std::uint64_t asked_in_ = 0;     // last pass that found it busy

  // Eager use: work before these events may still use the resource.
  cached_event ready_;  // of the stream of the release
  // If not null, instead: an event after the releases of several slots.
  std::shared_ptr<cached_event const> covered_by_;
  [[nodiscard]] cudaEvent_t ready() const noexcept {
    return (covered_by_ != nullptr ? *covered_by_ : ready_).recorded.get();
  }
  std::vector<cached_event> also_ready_;  // of other streams; has room for all of unrecorded_
  bool is_done_ = true;                   // known to be idle: no event to query
  bool was_used_ = false;                 // handed out before
  // Streams whose work no event covers yet: until the release those given to record_stream(), then
  // those without a record. Has room for two more, so that a release allocates nothing.
  std::vector<stream_use> unrecorded_;
  bool is_lost_ = false;  // such a stream was destroyed: never known to be idle

  // Of its lease, if pool_options::track_leases.
  struct claim_note {
    source_location where;
    std::chrono::steady_clock::time_point since{};
  };
  claim_note note_;

  // Graphs.
  graph_hold first_hold_;
  bool may_be_in_graphs_ = false;  // false: capture_reuse does not know it
  bool is_leased_ = false;         // guarded by capture_reuse, as all below, once a graph holds it
  // For each graph that holds it: the capture that claimed it; no_claim: none did, and nothing
  // orders that graph's launches with those of the others.
  std::vector<std::uint64_t> held_by_;
  static constexpr std::uint64_t no_claim = 0;
  // The last capture that claimed it, while it may be claimed there again; 0: it may not.
  std::uint64_t reusable_in_ = 0;
  // The set that holds it there; alive meanwhile. Written by the lease's thread, in the claim; read
  // by others once the release in the capture has made it reusable.
  reference_set const* claimed_with_ = nullptr;
  bool is_shared_ = false;  // other captures of its sharing group may claim it
  // The last release, if captured: the nodes it came after, and a hash of their dependencies.
  std::vector<cudaGraphNode_t> released_after_;
  std::uint64_t released_edges_ = 0;
};

// The functions given to a resource_pool<T>, shared by its slots. Several threads may call them
// concurrently; `recycle` and `destroy` may be empty.
template <class T>
struct slot_functions {
  std::function<T()> make;
  std::function<void(T&, stream_ref)> recycle;
  std::function<void(T&)> destroy;
};

// A resource with a size in bytes, as device_block.
template <class T>
concept block_of_bytes = requires(T const& resource) {
  { resource.data() } -> std::same_as<void*>;
  { resource.size() } -> std::same_as<std::size_t>;
};

template <class T>
class slot_of final : public slot {
 public:
  // Throws what `make` throws.
  template <class Make>
  slot_of(slot_pool& pool, size_class& of, slot_functions<T> const& functions, Make const& make)
      : slot(pool, of), functions_(functions), resource_(make()) {
    if constexpr (block_of_bytes<T>) {
      data_ = resource_.data();
      bytes_ = resource_.size();
    }
  }

  [[nodiscard]] T& resource() noexcept { return resource_; }

 private:
  ~slot_of() override {
    if (functions_.destroy) functions_.destroy(resource_);
  }

  slot_functions<T> const& functions_;  // the pool's, which outlives its slots
  T resource_;
};

struct claim_request {
  char const* call;  // the public function, for errors
  stream_ref stream;
  source_location where;
  // How long it may block the host, and then returns an empty claim. Empty: as the options say, and
  // then it throws pool_exhausted.
  std::optional<std::chrono::nanoseconds> host_wait_max = {};
  std::size_t bytes = 0;  // of a scratch_pool
};

// A lease's claim. Empty without a slot.
struct claimed_slot {
  slot* what = nullptr;
  stream_use on;
  std::uint64_t capture_id = 0;  // 0: claimed eagerly
  local_slots* local = nullptr;  // where a release on `on` may put it, without an event
};

// Implements resource_pool<T> and scratch_pool, which state the contract.
class ESCROW_API slot_pool {
 public:
  // Called with the pool's device current and in Relaxed capture mode, possibly concurrently.
  using make_function = std::function<slot*(slot_pool&, size_class&)>;
  struct leave_pool {
    void operator()(slot_pool* owned) const noexcept { owned->close_and_leave(); }
  };

  // `options.device` must be a device. `policy`: a scratch_pool's, which has many sizes; null: a
  // resource_pool's. Throws cuda_error, usage_error.
  slot_pool(pool_options const& options, make_function make,
            scratch_policy const* policy = nullptr);
  slot_pool(slot_pool&&) = delete;

  [[nodiscard]] claimed_slot claim(claim_request const& asked);
  [[nodiscard]] claimed_slot claim_bytes(claim_request const& asked);  // of a scratch_pool

  // For lease<T> of any pool. Functions that release leave the lease empty, or throw.
  static void release(claimed_slot& lease);
  // `is_own`: no other code can capture `stream`: records on it also where a deleter reclaims.
  static void release(claimed_slot& lease, stream_ref stream, bool is_own = false);
  static void release_at_end(claimed_slot& lease) noexcept;
  static void record_stream(claimed_slot const& lease, stream_ref stream);
  static void before_launch(claimed_slot const& lease, stream_ref stream);
  [[nodiscard]] static slot_share share_with_node(claimed_slot const& lease);
  // Ends a lease of a capture for good: no claim of that capture gets the slot, and no event is
  // recorded. False if the lease is not of a capture, or was recorded on a stream after it.
  [[nodiscard]] static bool leave_to_graph(claimed_slot& lease) noexcept;
  // Leaks the slot of a lease whose work nothing is known of.
  static void leak(claimed_slot& lease) noexcept;
  // The slot; throws usage_error, naming `call`, if the lease is empty.
  [[nodiscard]] static slot& require_slot(char const* call, claimed_slot const& lease);

  void close() noexcept;  // refuses claims, destroys free slots
  // The same; waits for the other slots, and returns the holders of what is left.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);
  // The owner's last call: closes without waiting. The pool ends with its last slot.
  void close_and_leave() noexcept;

  // Destroys free slots whose work is done, on this thread, until at most `keep_bytes` are taken.
  // Returns the bytes that it freed. Throws cuda_error.
  std::size_t trim(std::size_t keep_bytes);
  [[nodiscard]] std::vector<holder> holders() const;  // graphs, deferred records, all leases
  [[nodiscard]] pool_stats stats() const noexcept;    // of a resource_pool
  [[nodiscard]] scratch_stats stats_in_bytes() const noexcept;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::size_t bytes() const noexcept;  // of a scratch_pool's blocks
  [[nodiscard]] int device() const noexcept;

 private:
  friend class claimer_slots;
  friend class graph_hold;
  friend class slot;
  struct state;

  ~slot_pool();
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
                                   std::size_t bytes = 0);
  void flush(char const* call, source_location where);
  // Throws usage_error after a move, or on another thread for cudaStreamPerThread.
  [[nodiscard]] slot_pool& require_pool(char const* call) const;
  [[noreturn]] static void refuse_moved_from(char const* call);

 private:
  void learn_id();  // which cannot be asked in a capture

  slot_pool* pool_ = nullptr;  // null if moved from
  size_class* of_ = nullptr;
  local_slots* local_ = nullptr;
  stream_use on_;
};

}  // namespace escrow::inline v0_1
