// The part of a deleter that outlives it: queues, store, worker, counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>

#include "escrow/detail/reclaimable.hpp"

namespace escrow {

struct deferred_release;
class deleter;
class retired_object;
struct deleter_options;
struct deleter_stats;

// What: where all releases of one deleter meet. Everything that can still push has a use of it:
//   the deleter, every reclaimable, every pool. The worker frees it after the last use was dropped.
// Thread safety: any thread may call anything that is not marked as the worker's.
// Capture: everything is capture-safe. What recycles execs and take_retired_object() call CUDA.
class deleter_core {
 public:
  deleter_core(deleter_core&&) = delete;

  // One use more, or less. The caller has a use itself, or is the deleter.
  void add_use() noexcept;
  void drop_use() noexcept;

  // False once its deleter was stopped or destroyed: it takes nothing new.
  [[nodiscard]] bool is_open() const noexcept;

  // Returns slots to their pools that wait in the release queue; what other threads are recycling
  // is returned, too, when this ends. So a claim never waits behind a destructor that blocks the
  // worker. Calls no CUDA function.
  void recycle_queued() noexcept;
  // The same with the slots of one exec whose last launch is done; false if there is none.
  // `last_asked` is 0 at first: each call goes on where the one before ended.
  bool recycle_next(std::uint64_t& last_asked) noexcept;
  // The same with those of all.
  void recycle() noexcept;
  // Drops a reference to a set once its event is done. Takes a short lock.
  void defer(std::list<deferred_release> waiting) noexcept;

  // An empty object of the store, for an owner that is retired on the stream with that id; 0 for
  // owners without a stream. `with_event` gives it an event, of the current device if it has none
  // yet. Allocates if the store is empty. Throws std::bad_alloc, cuda_error.
  [[nodiscard]] retired_object& take_retired_object(std::uint64_t stream, bool with_event);
  // Hands an object to the worker whose owner and ready event are set. Takes a short lock: not for
  // destroy callbacks.
  void push_retired(retired_object& retired) noexcept;
  void put_retired_object(retired_object& idle) noexcept;

  // For reclaim functions. In the recycle lane: hands on to `lane`, in which a place was reserved.
  void push_to(reclaimable& thing, release_lane lane) noexcept;
  // The worker: reclaims `owner` next. It has one reference, which is dropped.
  void reclaim_next(reclaimable& owner) noexcept;
  // The same for the worker, which does that after its pass.
  void put_after_pass(retired_object& idle) noexcept;
  void reserve_place(release_lane lane);
  void cancel_place(release_lane lane) noexcept;

  // Reports an error to deleter_options::on_error, and counts it. Never throws.
  void report(std::exception const& error) noexcept;
  void report(cudaError_t status, char const* api) noexcept;
  // Leaks a thing with all that it refers to, and counts that: nothing will ever tell when the GPU
  // is done with it. It must be in no queue. Takes a short lock.
  static void leak(reclaimable& unknown) noexcept;
  void count_leaked() noexcept;
  void count_reclaimed() noexcept;
  // Counts what graphs and execs hold: one more (+1), or reclaimed (-1).
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

}  // namespace escrow
