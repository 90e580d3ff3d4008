// A pool's place for one resource.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/graph_hold.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

class slot_pool;

// A stream as a slot knows it: by CUDA's id, or, where that cannot be asked because the stream
// captures, by what tells it from every other one.
struct stream_use {
  cudaStream_t handle;
  std::uint64_t id;      // 0: not known
  std::uint64_t thread;  // of cudaStreamPerThread, a number of its thread; else 0
  int device;            // in a capture the pool's, but for handles of the current device
  // With an unknown id: ids of streams made later are not below this one. 0: not known either.
  std::uint64_t id_below = 0;
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
  // A free list: one stream's slots. Each slot brings one, so that lists never allocate.
  struct stream_list {
    std::uint64_t key = 0;
    slot* oldest = nullptr;
    slot* newest = nullptr;
    stream_list* chained = nullptr;   // the next one of the same hash
    stream_list* previous = nullptr;  // of all lists, in the order in which they were asked about
    stream_list* next = nullptr;
    stream_list* spare = nullptr;  // what the other slots of this list brought
  };
  // Null while it is listed. Of its own memory, because lists outlive the slot that brought them.
  std::unique_ptr<stream_list> brought_ = std::make_unique<stream_list>();
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
  // The last lease's end, if it was in the capture: the nodes that the next use comes after, and
  // what they depend on.
  std::vector<cudaGraphNode_t> released_after_;
  std::vector<std::pair<cudaGraphNode_t, unsigned>> released_edges_;
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

}  // namespace escrow
