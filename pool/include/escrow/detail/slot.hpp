// A pool without its resource's type, and its slots: the places of resources.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

class slot;
class slot_pool;
struct holder;
struct pool_options;
struct pool_stats;

// A stream as a slot knows it: by CUDA's id, or, where that cannot be asked because the stream
// captures, by what tells it from every other one.
struct stream_use {
  cudaStream_t handle = nullptr;  // cudaStreamLegacy for a null stream
  std::uint64_t id = 0;           // 0: not known
  std::uint64_t thread = 0;       // of cudaStreamPerThread, a number of its thread; else 0
  int device = 0;                 // in a capture the pool's, but for handles of the current device
  // With an unknown id: a stream with that handle and an id that is not below was made later.
  static constexpr std::uint64_t no_bound = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t id_below = no_bound;
};

// One graph's hold on a slot, released by the user object that the graph keeps, or by the share
// that a node keeps. Thread safety and lifetime: as reclaimable.
class graph_hold final : public slot_reference {
 public:
  graph_hold(deleter_core& core, int device, escrow::slot& held)
      : slot_reference(core, device, &graph_is_gone), held_(held) {}

  [[nodiscard]] std::string_view label() const noexcept override;
  [[nodiscard]] std::size_t bytes() const noexcept override;
  void end_reuse() noexcept override;

 private:
  friend class slot_pool;

  static void graph_is_gone(reclaimable& thing) noexcept;

  escrow::slot& held_;
  std::uint64_t capture_id_ = 0;
};

// A resource's state. Exactly one of these owns it at a time:
//     a free list | a lease | the pool's list of deferred records | graphs | the worker
// A lease, or a deferred record in its place, and graphs may hold it together; it is free when the
// last of them has released it.
// Thread safety: guarded by its owner: the list's lock, the lease's thread; what graphs and the
// capture use, by capture_reuse.
// Lifetime: made by its pool, destroyed on the worker.
class slot : public reclaimable {
 public:
  // Throws std::bad_alloc, cuda_error.
  explicit slot(slot_pool& pool);

  [[nodiscard]] slot_pool& pool() const noexcept { return pool_; }

 protected:
  virtual ~slot();  // destroys the resource

  std::size_t bytes_ = 0;  // the resource's size, 0 if it is not known; set once, when it is made

 private:
  friend class capture_reuse;
  friend class free_lists;
  friend class graph_hold;
  friend class slot_pool;
  template <class T>
  friend class lease;

  slot_pool& pool_;
  std::uint64_t number_ = 0;  // of its pool's slots

  // Where it is listed: a free list, or the deferred records.
  slot* older_ = nullptr;
  slot* newer_ = nullptr;
  // Of a free list's oldest slot, which stands for the list: see free_lists.
  struct list_links {
    slot* newest = nullptr;
    slot* chained = nullptr;   // the next list of the same hash
    slot* previous = nullptr;  // of all lists, in the order in which they were asked about
    slot* next = nullptr;
  };
  list_links list_;
  std::uint64_t key_ = 0;          // which list: the id of the stream of its release, or
                                   // free_lists::idle, or one of its own
  std::uint64_t released_at_ = 0;  // the pool's count of releases then
  std::uint64_t asked_in_ = 0;     // the last pass that found it busy

  // Eager use: the work before these events may still use the resource.
  event ready_;  // of the stream of the release
  struct other_event {
    event ready;
    int device;  // the event's
  };
  std::vector<other_event> also_ready_;  // of other streams, those in use first
  std::size_t also_count_ = 0;           // how many of them are in use
  bool is_done_ = true;                  // known to be idle: no event needs asking
  bool was_used_ = false;                // handed out before
  // Streams whose work no event covers yet: those given to record_stream() until the release, and
  // afterwards those on which a record is missing. Has room for one more, see slot_pool.
  std::vector<stream_use> unrecorded_;
  bool is_lost_ = false;  // one of them was destroyed: it will never be known to be idle

  // Graphs.
  graph_hold first_hold_;
  bool may_be_in_graphs_ = false;  // false: capture_reuse does not know it
  bool is_leased_ = false;         // from here on guarded by capture_reuse, once a graph holds it
  std::size_t graph_holds_ = 0;
  bool may_be_reused_ = false;  // its graph still has it: see slot_reference::end_reuse()
  // The last lease's end, if it was in the capture: the nodes that the next use comes after, and a
  // hash of what they depend on.
  std::vector<cudaGraphNode_t> released_after_;
  std::uint64_t released_edges_ = 0;
};

// The functions that a resource_pool<T> was given, shared by its slots. They may be called by
// several threads at a time; `recycle` and `destroy` may be empty.
template <class T>
struct slot_functions {
  std::function<T()> make;
  std::function<void(T&, stream_ref)> recycle;
  std::function<void(T&)> destroy;
};

// A resource whose size in bytes can be asked, as a device_block's.
template <class T>
concept block_of_bytes = requires(T const& resource) {
  { resource.data() } -> std::same_as<void*>;
  { resource.size() } -> std::same_as<std::size_t>;
};

// One resource in its slot.
template <class T>
class slot_of final : public slot {
 public:
  // Throws what `functions.make` throws.
  slot_of(slot_pool& pool, slot_functions<T> const& functions)
      : slot(pool), functions_(functions), resource_(functions.make()) {
    if constexpr (block_of_bytes<T>) bytes_ = resource_.size();
  }

  [[nodiscard]] T& resource() noexcept { return resource_; }

 private:
  ~slot_of() override {
    if (functions_.destroy) functions_.destroy(resource_);
  }

  slot_functions<T> const& functions_;  // the pool's, which outlives its slots
  T resource_;
};

// What a lease knows of its claim. Empty without a slot.
struct claimed_slot {
  slot* what = nullptr;
  stream_use on;
  std::uint64_t capture_id = 0;  // 0: claimed eagerly
};

// The pool that resource_pool<T> and scratch_pool wrap; their contracts are its own.
class slot_pool {
 public:
  // Called with the pool's device current and in Relaxed capture mode, by several threads at a
  // time.
  using make_function = std::function<slot*(slot_pool&)>;

  // `options.device` must be a device. Throws cuda_error.
  slot_pool(pool_options const& options, make_function make);
  slot_pool(slot_pool&&) = delete;

  // Claims a slot; `call` is the public function, for the text of errors. Throws pool_exhausted.
  [[nodiscard]] claimed_slot claim(char const* call, stream_ref stream, source_location where);
  // The same, but blocks the host for `host_wait_max` at most, and then returns an empty claim.
  [[nodiscard]] claimed_slot try_claim(char const* call, stream_ref stream,
                                       std::chrono::nanoseconds host_wait_max,
                                       source_location where);

  // For lease<T>, of whatever pool. Those that release leave the lease empty, or throw.
  static void release(claimed_slot& lease);
  static void release(claimed_slot& lease, stream_ref stream);
  static void release_at_end(claimed_slot& lease) noexcept;
  static void record_stream(claimed_slot const& lease, stream_ref stream);
  static void before_launch(claimed_slot const& lease, stream_ref stream);
  [[nodiscard]] static slot_share share_with_node(claimed_slot const& lease);
  // The slot; throws usage_error, naming `call`, if the lease is empty.
  [[nodiscard]] static slot& require_slot(char const* call, claimed_slot const& lease);

  // Refuses claims, and destroys what is free.
  void close() noexcept;
  // The same; waits for the rest, and returns the holders of what is left.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);
  // The owner's last call: closes without waiting. The pool ends with its last slot.
  void close_and_leave() noexcept;

  [[nodiscard]] pool_stats stats() const noexcept;
  [[nodiscard]] int device() const noexcept;
  [[nodiscard]] std::string const& label() const noexcept;
  [[nodiscard]] deleter_core& core() const noexcept;

 private:
  friend class graph_hold;
  friend class slot;
  struct state;

  ~slot_pool();
  static void destroy_slot(reclaimable& thing) noexcept;

  std::unique_ptr<state> state_;
};

}  // namespace escrow
