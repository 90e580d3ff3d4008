// What a deleter reclaims: a counted thing with a ready event.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace escrow {

class deleter_core;
class release_queue;

// Where a reclaimable is reclaimed. `recycle` is quick, calls no CUDA function and runs no
// destructor of the user, so any thread may do it; `destroy` is the worker's.
enum class release_lane : std::uint8_t { recycle, destroy };

// What: events that one thread records on one stream complete in the order of their records, and
//   that thread pushes them in this order.
struct release_order {
  std::uint64_t stream = 0;      // the stream's id; 0: no order
  void const* thread = nullptr;  // an address that identifies the thread

  // For an event that the calling thread recorded on the stream with that id and pushes next.
  [[nodiscard]] static release_order of_this_thread(std::uint64_t stream) noexcept {
    static thread_local char mark;
    return {.stream = stream, .thread = &mark};
  }

  [[nodiscard]] explicit operator bool() const noexcept { return stream != 0; }
  bool operator==(release_order const&) const = default;
};

// What: a thing with a reference count. When the count reaches zero, the thing is pushed into the
//   release queue of its lane, waits for its ready event if it has one, and is reclaimed. Its place
//   in the queue is reserved when it is made, so that push() can neither allocate nor fail.
//     idle -> push() -> queued -> [pending on its ready event] -> reclaim(thing)
//                                        ^--- reclaim_again_after() ---'
// Thread safety: add_ref(), drop_ref() and push() from any thread, also in a destroy callback or a
//   host function. Everything else needs exclusive access. What a thread did before drop_ref() or
//   push() happens before the reclaim.
// Lifetime: alive from push() until it is reclaimed, which may destroy it or leave it idle for its
//   next use. Keeps its deleter_core alive.
// Errors: the constructor throws std::bad_alloc and then has reserved nothing.
class reclaimable {
 public:
  // Called with the thing's device current and the thread in Relaxed capture mode; in the recycle
  // lane with whichever device is current, under the lane's lock.
  using reclaim_function = void (*)(reclaimable&) noexcept;

  reclaimable(deleter_core& core, release_lane lane, int device, reclaim_function reclaim);
  reclaimable(reclaimable&&) = delete;

  // For one whose place was reserved together with those of others.
  struct place_is_reserved {};

  // The caller has a reference itself, or the thing is idle.
  void add_ref() noexcept {
    // Relaxed: the count cannot reach zero meanwhile.
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  // The last one drops what goes along and pushes the thing.
  void drop_ref() noexcept {
    if (!drop_ref_only()) return;
    drop_companions();
    push();
  }

  // `part`, whose only reference the caller has, is dropped as soon as this thing's count reaches
  // zero, whatever keeps the worker busy. The thing is in no list yet.
  void take_along(reclaimable& part) noexcept { part.next_ = std::exchange(next_, &part); }
  // The same at once, for a thing without references.
  void drop_companions() noexcept {
    reclaimable* next = std::exchange(next_, nullptr);
    while (next != nullptr) {
      reclaimable& part = *next;
      next = std::exchange(part.next_, nullptr);
      part.drop_ref();
    }
  }

  // Hands the thing to its lane: lock-free, no allocation, no lock, no CUDA call; wakes the worker
  // if, and only if, it sleeps. Afterwards the thing may be destroyed at any time.
  void push() noexcept;

  // Before push(), in the destroy lane: reclaim only once `ready` is done. `order` lets the worker
  // ask about one event instead of many.
  void reclaim_after(cudaEvent_t ready, release_order order) noexcept {
    ready_ = ready;
    order_ = order;
  }
  // As the last step of a reclaim on the worker: reclaim once more when `ready` is done. A drain
  // goes on waiting for it.
  void reclaim_again_after(cudaEvent_t ready) noexcept;

  [[nodiscard]] deleter_core& core() const noexcept { return *core_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  void set_device(int device) noexcept { device_ = device; }
  // Whether it is a pool's slot (slot_reference).
  [[nodiscard]] bool is_slot() const noexcept { return lane_ == release_lane::recycle; }

 protected:
  reclaimable(place_is_reserved reserved, deleter_core& core, release_lane lane, int device,
              reclaim_function reclaim) noexcept;
  ~reclaimable();

  // Whether that was the last reference.
  [[nodiscard]] bool drop_ref_only() noexcept {
    // Release for what this thread did, acquire for what the others did, by the last one.
    return references_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  friend class deleter_core;
  friend class pending_events;
  friend class recycle_lane;
  friend class release_list;
  friend class reference_set;

  deleter_core* core_;
  reclaim_function reclaim_;
  // Link of the one list that the thing is in: the worker's or a reference set's; or, while it is
  // in none, of what goes along.
  reclaimable* next_ = nullptr;
  cudaEvent_t ready_ = nullptr;  // null: may be reclaimed at once
  release_order order_;
  std::uint64_t epoch_ = 0;  // when it was pushed, see deleter_core::push()
  int device_;
  std::atomic<std::uint32_t> references_{0};
  release_lane const lane_;
  bool is_reported_ = false;  // the failure of its event was reported once
};

// What: a graph's reference to a pool's slot, which can say what it is.
// Thread safety: any thread while it is held.
class slot_reference : public reclaimable {
 public:
  [[nodiscard]] virtual std::string_view label() const noexcept = 0;  // the pool's
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;       // 0 if the pool does not know
  // The graph was hoisted and holds the slot no more: no capture of it gets the slot again.
  virtual void end_reuse() noexcept = 0;

 protected:
  slot_reference(deleter_core& core, int device, reclaim_function reclaim)
      : reclaimable(core, release_lane::recycle, device, reclaim) {}
  ~slot_reference() = default;
};

// What: owns one reference to a T, which has add_ref() and drop_ref().
template <class T>
class ref {
 public:
  ref() noexcept = default;
  explicit ref(T& held) noexcept : held_(&held) { held.add_ref(); }
  // Takes over a reference that the caller has.
  [[nodiscard]] static ref adopt(T* held) noexcept {
    ref result;
    result.held_ = held;
    return result;
  }
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
  // Gives the reference up to the caller.
  [[nodiscard]] T* release() noexcept { return std::exchange(held_, nullptr); }

 private:
  T* held_ = nullptr;
};

// What: a share of a pool's slot that a node of a graph keeps. The slot returns to its pool after
//   its lease and all shares.
class slot_share {
 public:
  // `held` is idle: this is its only reference.
  explicit slot_share(slot_reference& held) noexcept : held_(held) {}

  // Ends with `last`, on whichever thread drops its last reference. `last` has none yet.
  void end_with(reclaimable& last) noexcept { last.take_along(*held_.release()); }

 private:
  ref<slot_reference> held_;
};

}  // namespace escrow
