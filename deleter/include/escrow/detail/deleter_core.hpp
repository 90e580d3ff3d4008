// The part of a deleter that outlives it: queues, store, worker, counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

struct deferred_release;
class deleter;
class retired_object;
struct deleter_options;
struct deleter_stats;

// What: receives all releases of one deleter. Everything that can still push has a use of it: the
//   deleter, every reclaimable, every pool. The worker frees it after the last use was dropped.
// Thread safety: any thread may call anything that is not marked as the worker's.
// Capture: capture-safe. Recycling of execs and take_retired_object() call CUDA.
class ESCROW_API deleter_core {
 public:
  deleter_core(deleter_core&&) = delete;

  // Adds or drops a use. For add_use() the caller has a use itself, or is the deleter.
  void add_use() noexcept;
  void drop_use() noexcept;

  // False once its deleter was stopped or destroyed: it accepts nothing new.
  [[nodiscard]] bool is_open() const noexcept;

  // Returns queued slots to their pools, and waits for those that other threads are recycling, so
  // that no claim waits for a destructor that blocks the worker. Calls no CUDA function.
  void recycle_queued() noexcept;
  // The same, and for the slots of some execs if their last launch is done; false if there are no
  // more. `last_asked` starts at 0: each call continues after the previous one.
  bool recycle_next(std::uint64_t& last_asked) noexcept;
  void recycle() noexcept;  // the same for all
  // Drops references to sets once their events are done. Takes a short lock.
  void defer(std::list<deferred_release> waiting) noexcept;

  // An empty object for an owner retired on the stream with that id (0: no stream). `with_event`
  // adds an event, of the current device if it has none yet. Allocates if the store is empty.
  // Throws std::bad_alloc, cuda_error.
  [[nodiscard]] retired_object& take_retired_object(std::uint64_t stream, bool with_event);
  // Queues an object with owner and ready event. Takes a short lock: not for destroy callbacks.
  void push_retired(retired_object& retired) noexcept;
  void put_retired_object(retired_object& idle) noexcept;

  // For reclaim functions in the recycle lane: pushes on to `lane`, where a place was reserved.
  void push_to(reclaimable& thing, release_lane lane) noexcept;
  // The worker: reclaims `owner` next, if this drops its last reference.
  void reclaim_next(reclaimable& owner) noexcept;
  // The worker: as put_retired_object(), at the end of its pass.
  void put_after_pass(retired_object& idle) noexcept;
  void reserve_place(release_lane lane);
  void cancel_place(release_lane lane) noexcept;

  // Reports an error to on_error and counts it. Never throws. Takes a short lock.
  void report(std::exception const& error) noexcept;
  void report(cudaError_t status, char const* api) noexcept;
  // Whether a deleter reclaims something on this thread now. Then no call may name a stream: its
  // users may begin or end a capture of it at that moment, where CUDA's driver crashes (580).
  [[nodiscard]] static bool is_reclaiming() noexcept;
  // Leaks a thing, with all that it refers to, and counts it: it will never be known when the GPU
  // is done with it. It must be in no queue. Takes a short lock.
  static void leak(reclaimable& unknown) noexcept;
  void count_leaked() noexcept;
  void count_reclaimed() noexcept;
  // Counts things that graphs and execs hold: +1 when taken, -1 when reclaimed.
  void count_in_graphs(int change) noexcept;
  [[nodiscard]] deleter_stats stats() const noexcept;

 private:
  friend class deleter;
  friend class reclaimable;
  friend class worker;

  explicit deleter_core(deleter_options options);
  ~deleter_core();

  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace escrow::inline v0_1
