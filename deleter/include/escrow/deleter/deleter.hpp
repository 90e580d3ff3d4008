// Destroy objects after the GPU work that uses them, whether it is captured or not.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow {

// What: the options of a deleter; every one has a good default.
struct deleter_options {
  // Start a worker thread. Without one, the program has to call deleter::poll().
  bool own_worker = true;
  // The worker's name, as a debugger shows it: 15 characters at most, more are cut off.
  std::string thread_name = "escrow";
  // How long the worker sleeps while events are pending and none is done: starts with the first,
  // doubles up to the second. A thread that polls every 50 us was measured not to slow others down.
  std::chrono::microseconds poll_interval_min{50};
  std::chrono::microseconds poll_interval_max{400};
  // How long the worker goes on looking every poll_interval_min after its last work before it
  // sleeps until it is woken. Meanwhile a push needs no wake-up.
  std::chrono::microseconds linger{1000};
  // Called with each error, on the worker or on the thread that polls or releases; several threads
  // may call it at a time. It must not throw; what it throws is dropped.
  std::function<void(std::exception const&)> on_error = {};
};

// What: counts, read one by one while others go on, so they may not add up to the last unit.
struct deleter_stats {
  // What was reclaimed so far: owners destroyed, slots recycled or destroyed, and what was leaked
  // on the way (also in `leaked`).
  std::uint64_t reclaimed = 0;
  std::uint64_t pending = 0;    // known to the worker, waiting for a ready event
  std::uint64_t in_graphs = 0;  // slots and owners that graphs and execs hold
  std::uint64_t leaked = 0;     // nothing tells when the GPU is done with it, so it is never freed
  std::uint64_t errors = 0;     // reported to on_error
};

// What a graph or an exec holds, in all and by label. Owners are those of deleter::retire().
struct resource_usage {
  struct labelled {
    std::string label;  // the pool's; "owners" for all owners
    std::size_t count = 0;
    std::size_t bytes = 0;  // of those whose size is known
  };

  std::size_t slots = 0;
  std::size_t owners = 0;
  std::size_t bytes = 0;  // of the slots whose size is known
  std::vector<labelled> labels;
};

// What: takes owners and destroys each on its worker thread once the GPU no longer needs it.
// Thread safety: any thread may call anything, also at the same time; not the constructor and the
//   destructor.
// Memory ordering: what a thread did before retire() happens before the owner's destruction, and
//   that happens before the return of a drain() that began after the retire().
// Lifetime: the destructor refuses new work and does not wait for it: at most for the destructor
//   that the worker is in, and for its pause (deleter_options::poll_interval_max). What is still
//   owed, by a graph or by running work, is reclaimed all the same: the worker goes on by itself
//   until nothing is owed.
//   At process exit nothing more is reclaimed; what is left is leaked on purpose. An owner's
//   destructor may call CUDA and may retire; it must not drain. If it ends graphs or execs with
//   plain calls, it does so in a graph_lifetime_lock, since it runs on the worker.
//   With its first deleter, the module that Escrow is linked into is pinned: dlclose() leaves it
//   loaded, since CUDA and the worker may call it at any time. The code of owners' destructors, if
//   that is in another module, is for the caller to keep.
//   A child of fork() may call nothing of it, as nothing of CUDA, before it runs another program;
//   _exit() is fine. Before cudaDeviceReset(), destroy what belongs to the device, and drain; do
//   not use it afterwards: what waits for a destroyed event is leaked and counted
//   (deleter_stats::leaked).
// Capture: retire() on a capturing stream adds the owner to what the graph holds, behind one CUDA
//   user object for each graph and deleter, which the first call makes.
//   The worker is in Relaxed mode for good and harms no capture.
// Errors: usage_error for a stopped deleter, an invalidated capture, or the legacy stream while a
//   blocking stream captures: the owner stays with the caller. cuda_error where CUDA refuses: said
//   at each function. Errors on the worker go to deleter_options::on_error and are counted.
class deleter {
 public:
  explicit deleter(deleter_options options = {});
  deleter(deleter&&) = delete;
  ~deleter();

  // The process's own deleter. Never destroyed, on purpose: releases may arrive until the very end.
  [[nodiscard]] static deleter& global();

  // Destroys `owner` after the work enqueued on `stream` so far: eager, once it is done; in a
  // capture, once the captured graph, its clones and execs are destroyed, and their launches done.
  // Never blocks on the GPU. Allocates nothing in steady state. Any thread. Throws cuda_error if
  // CUDA refuses the user object (the owner is then either still the caller's or destroyed by the
  // worker: do not launch what was captured), or if nothing can be recorded on `stream` (the owner
  // is then leaked and counted in deleter_stats::leaked, since it may be in use).
  template <makes_owner Owner>
  void retire(stream_ref stream, Owner&& owner) {
    hand_over(begin(stream), std::forward<Owner>(owner));
  }

  // As retire(stream, owner), with the work in between, for an owner that takes over from the
  // caller what it keeps. Calls `enqueue()`, and `take(owner)`, which must not throw, with the
  // owner where it will stay: eager, what can fail for lack of memory fails before `enqueue`, and
  // nothing is taken if that throws; in a capture the graph has the owner, with what it took,
  // before `enqueue` is called. `call` is the caller's name, for errors. Any thread.
  template <retirable Owner, std::invocable<Owner&> Take, std::invocable Enqueue>
  void retire_around(char const* call, stream_ref stream, Owner owner, Take take, Enqueue enqueue) {
    retirement begun = begin(stream, call);
    Owner& kept = begun.object->emplace(std::move(owner));
    bool const is_captured = begun.how == retirement::kind::with_graph;
    if (!is_captured) enqueue();
    take(kept);
    finish(std::move(begun));
    if (is_captured) enqueue();
  }

  // Destroys `owner` on the worker as soon as it gets to it: for owners that no GPU work uses.
  // Throws std::bad_alloc, cuda_error; the owner then stays with the caller. Any thread.
  template <makes_owner Owner>
  void retire(Owner&& owner) {
    hand_over(begin(), std::forward<Owner>(owner));
  }

  // Destroys `owner` once the last record of `ready` is done. The event must not be recorded again,
  // and not be destroyed, before that; to hand it over as well, make it part of the owner. It must
  // not have been recorded in a capture. Throws std::bad_alloc, cuda_error; the owner then stays
  // with the caller. Any thread.
  template <makes_owner Owner>
  void retire_after(event_ref ready, Owner&& owner) {
    retirement begun = begin();
    begun.object->reclaim_after(ready.get(), {});
    hand_over(std::move(begun), std::forward<Owner>(owner));
  }

  // Destroys `owner` once `graph`, its clones and execs are destroyed, and launches done. Each call
  // makes a user object: an exec of the graph may be what the owner owns, so it must not be added
  // to what that exec holds. Throws as retire() on a capturing stream. Any thread; no other thread
  // may change `graph` meanwhile, as CUDA demands. Asks for the graph's id: see graph_id_of().
  template <makes_owner Owner>
  void retire(cudaGraph_t graph, Owner&& owner) {
    hand_over(begin(graph), std::forward<Owner>(owner));
  }

  // Returns when all that was retired before the call, and is not owed by a graph, has been
  // reclaimed, or when the process exits, which ends all reclaiming. Waits as long as that takes,
  // on the GPU too: use drain_for() for a bound. Any thread but the worker, which gets usage_error.
  // Throws std::bad_alloc, and without a worker cuda_error.
  void drain();
  // The same, `timeout` at most; whether all of it has been reclaimed.
  [[nodiscard]] bool drain_for(std::chrono::nanoseconds timeout);

  // Refuses new work, then drains. What graphs still hold is reclaimed when they release it: the
  // worker sleeps until then, and ends with the deleter. Any thread but the worker. Not bounded, as
  // drain().
  void stop();
  // The same, `timeout` at most. True if everything has been reclaimed and no graph owes anything.
  [[nodiscard]] bool stop_for(std::chrono::nanoseconds timeout);

  // For those who bring their own thread (deleter_options::own_worker false): reclaims on the
  // calling thread what can be reclaimed now, without waiting for events, and returns how many.
  // Sets Relaxed capture mode and devices for the call. Returns 0 at once if another thread is
  // reclaiming, and at process exit. Throws cuda_error if CUDA refuses the mode or does not say
  // which device is current; then nothing was reclaimed.
  std::size_t poll();

  [[nodiscard]] deleter_stats stats() const noexcept { return core_->stats(); }
  // What pools and graphs push to.
  [[nodiscard]] deleter_core& core() const noexcept { return *core_; }

 private:
  friend class shared_object_base;

  // A retirement between its first step, which can fail and has taken nothing, and its last.
  struct retirement {
    enum class kind { now, after_stream, with_graph };
    retirement(retired_object& taken, kind chosen) : object(&taken), how(chosen) {}
    struct put_back {
      void operator()(retired_object* object) const noexcept;
    };
    std::unique_ptr<retired_object, put_back> object;  // goes back to the store unless handed on
    kind how;
    cudaStream_t stream = nullptr;
    std::uint64_t stream_id = 0;
    cudaGraph_t graph = nullptr;
    std::uint64_t graph_id = 0;
    bool may_append = true;
  };

  retirement begin();
  retirement begin(stream_ref stream, char const* call = "deleter::retire");
  retirement begin(cudaGraph_t graph);
  // As begin(stream, call), also for a stopped deleter: for a use of what it has already.
  retirement begin_use(stream_ref stream, char const* call);
  retirement begin_with_graph(cudaGraph_t graph, std::uint64_t id, int device);
  template <class Owner>
  void hand_over(retirement begun, Owner&& owner) {
    begun.object->emplace(std::forward<Owner>(owner));
    finish(std::move(begun));
  }
  void finish(retirement&& begun);
  void finish_after_stream(retirement&& begun);
  void finish_with_graph(retirement&& begun);
  void require_open(char const* call) const;

  deleter_core* core_;
};

}  // namespace escrow
