// SPDX-License-Identifier: Apache-2.0
// A reference-counted thing with a ready event, which a deleter reclaims.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "escrow/detail/shared_count.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class deleter_accounts;
class deleter_core;
class reference_set;
class release_queue;

// Where a reclaimable is reclaimed. `recycle` is fast, calls no CUDA function and no user
// destructor, so any thread may run it; `destroy` runs on the worker.
enum class release_lane : std::uint8_t { recycle, destroy };

// What: identifies events recorded by one thread on one stream: they complete in record order, and
//   the thread pushes them in that order.
struct release_order {
  std::uint64_t stream = 0;      // the stream's id; 0: no order
  void const* thread = nullptr;  // an address that identifies the thread

  // For an event that this thread recorded on the stream with that id and pushes next.
  [[nodiscard]] static release_order of_this_thread(std::uint64_t stream) noexcept {
    static thread_local char mark;
    return {.stream = stream, .thread = &mark};
  }

  [[nodiscard]] explicit operator bool() const noexcept { return stream != 0; }
  auto operator<=>(release_order const&) const = default;
};

// What: a reference-counted thing. At zero it is pushed into its lane's release queue, waits for
//   its ready event, if any, and is reclaimed. Its queue place is reserved on construction, so
//   push() can neither allocate nor fail.
//     idle -> push() -> queued -> [pending on its ready event] -> reclaim(thing)
//                                        ^--- reclaim_again_after() ---'
// Thread safety: add_ref(), drop_ref() and push() from any thread, also in a destroy callback or a
//   host function. Everything else needs exclusive access. What a thread did before drop_ref() or
//   push() happens before the reclaim.
// Lifetime: alive from push() until it is reclaimed, which may destroy it or leave it idle for its
//   next use. Keeps its deleter_core alive.
// Errors: the constructor throws std::bad_alloc and then has reserved nothing.
class ESCROW_API reclaimable {
 public:
  // Called with the thing's device current and in Relaxed capture mode; in the recycle lane with
  // any device current, under the lane's lock.
  using reclaim_function = void (*)(reclaimable&) noexcept;

  reclaimable(deleter_core& core, release_lane lane, int device, reclaim_function reclaim);
  reclaimable(reclaimable&&) = delete;

  struct place_is_reserved {};  // reserved together with others

  void add_ref() noexcept {  // by an owner of a reference, or if idle
    // Relaxed: the count cannot reach zero meanwhile.
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  // The last one drops the companions and pushes the thing.
  void drop_ref() noexcept {
    if (!drop_ref_only()) return;
    drop_companions();
    push();
  }

  // Adds a companion, whose only reference the caller has: it is dropped when this count reaches
  // zero, even while the worker is busy. This thing must be in no list.
  void take_along(reclaimable& part) noexcept { part.next_ = std::exchange(next_, &part); }
  // Drops the companions now, for a thing without references.
  void drop_companions() noexcept {
    reclaimable* next = std::exchange(next_, nullptr);
    while (next != nullptr) {
      reclaimable& part = *next;
      next = std::exchange(part.next_, nullptr);
      part.drop_ref();
    }
  }

  // Queues the thing in its lane. Lock-free: no allocation, no CUDA call; wakes the worker only if
  // it sleeps. Afterwards the thing may be destroyed at any time.
  void push() noexcept;

  // Before push(), in the destroy lane: reclaim only once `ready` is done. `order` lets the worker
  // query one event instead of many.
  void reclaim_after(cudaEvent_t ready, release_order order) noexcept {
    ready_ = ready;
    order_ = order;
  }
  // As the last step of a reclaim on the worker: reclaim again once `ready` is done. A drain
  // continues to wait for it.
  void reclaim_again_after(cudaEvent_t ready) noexcept;

  [[nodiscard]] deleter_core& core() const noexcept { return *core_; }
  [[nodiscard]] deleter_accounts& accounts() const noexcept;  // of the core
  [[nodiscard]] int device() const noexcept { return device_; }
  void set_device(int device) noexcept { device_ = device; }
  // For a set's member: whether it is a slot_reference.
  [[nodiscard]] bool is_slot() const noexcept { return lane_ == release_lane::recycle; }

 protected:
  reclaimable(place_is_reserved reserved, deleter_core& core, release_lane lane, int device,
              reclaim_function reclaim) noexcept;
  ~reclaimable();

  [[nodiscard]] bool drop_ref_only() noexcept { return drop_one(references_); }  // true: the last

 private:
  friend class deleter_core;
  friend class pending_events;
  friend class recycle_lane;
  friend class release_list;
  friend class reference_set;

  deleter_core* core_;
  reclaim_function reclaim_;
  // Link of its one list (the worker's or a reference set's), or else of its companions.
  reclaimable* next_ = nullptr;
  cudaEvent_t ready_ = nullptr;  // null: may be reclaimed at once
  release_order order_;
  std::uint64_t epoch_ = 0;  // when it was pushed: see deleter_core::epoch_
  int device_;
  std::atomic<std::uint32_t> references_{0};
  release_lane const lane_;
  bool is_reported_ = false;  // the failure of its event was reported once
};

// What: a graph's reference to a pool's slot, with the slot's description.
// Thread safety: any thread while it is held.
class slot_reference : public reclaimable {
 public:
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;  // 0 if the pool does not know
  [[nodiscard]] virtual void const* slot_address() const noexcept = 0;  // identifies the slot
  // Of a slot in an arena, whose bytes() are 0: the arena, and where the slot ends in it.
  struct range_end {
    void const* arena = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] virtual range_end range() const noexcept = 0;
  // It has a resource of the caller's type, which may own leases, not a block.
  [[nodiscard]] virtual bool may_own() const noexcept = 0;
  virtual void enter(reference_set const& set) noexcept = 0;  // it becomes a member

 protected:
  slot_reference(deleter_core& core, int device, reclaim_function reclaim)
      : reclaimable(core, release_lane::recycle, device, reclaim) {}
  ~slot_reference() = default;
};

// What launches do with a member of a set.
enum class member_use : std::uint8_t {
  read,      // they need no order
  written,   // execs that have it are ordered
  exclusive  // claimed in the capture, or moved in: parts of one graph that have it are ordered,
             // too
};

// What: owns one reference to a T, which has add_ref() and drop_ref().
template <class T>
class ref {
 public:
  ref() noexcept = default;
  explicit ref(T& held) noexcept : held_(&held) { held.add_ref(); }
  ref(ref const& other) noexcept : held_(other.held_) {
    if (held_ != nullptr) held_->add_ref();
  }
  ref(ref&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  ref& operator=(ref other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~ref() {
    if (held_ != nullptr) held_->drop_ref();
  }

  [[nodiscard]] T* get() const noexcept { return held_; }
  [[nodiscard]] T& operator*() const noexcept { return *held_; }
  [[nodiscard]] T* operator->() const noexcept { return held_; }
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }
  // Transfers the reference to the caller.
  [[nodiscard]] T* release() noexcept { return std::exchange(held_, nullptr); }

 private:
  T* held_ = nullptr;
};

// Whether a deleter reclaims something on this thread now. Then no call may name a stream: its
// users may begin or end a capture of it at that moment, where CUDA's driver crashes (580).
[[nodiscard]] ESCROW_API bool is_reclaiming() noexcept;

// The record of a retirement whose work is done: that work is all that the stream had before.
struct retirement_cover {
  std::uint64_t stream = 0;  // the stream's id; 0: nothing is covered
  std::uint64_t number = 0;  // see use_clock
};
// What is known to be done to the destructor that a deleter runs on this thread now.
[[nodiscard]] ESCROW_API retirement_cover cover_of_reclaim() noexcept;

// Keeps the program or shared library that has `code` loaded until the process ends: dlclose() then
// leaves it. False if it cannot be found. Any thread.
ESCROW_API bool pin_module_of(void (*code)() noexcept) noexcept;

// The same for the module that this call is compiled into, e.g. a plugin, and only once for each:
// the worker and CUDA may call its code at any time. Hidden, so that each module has its own.
ESCROW_LOCAL inline void pin_this_module() noexcept {
  static bool const is_pinned = pin_module_of(&pin_this_module);
  static_cast<void>(is_pinned);
}

}  // namespace escrow::inline v0_2
