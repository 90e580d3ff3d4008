// SPDX-License-Identifier: Apache-2.0
// Destroys objects after the GPU work that uses them, captured or not.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter_options.hpp"  // IWYU pragma: export
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/retired_object.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

namespace detail {

// g++ 12 takes no `*owner` of these.
template <class T>
inline constexpr bool points_to_void = false;
template <class T>
requires std::is_void_v<typename T::element_type>
inline constexpr bool points_to_void<T> = true;

// Before the owner is retired on a capturing stream: a pool's lease, or a pointer to one, gives the
// graph what was claimed before the capture.
template <class Owner>
void tell_of_capture(Owner&& owner, stream_ref stream) {
  if constexpr (requires { owner.before_retire(stream); }) {
    if (owner && usable_capture_of("deleter::retire", stream).is_active()) {
      owner.before_retire(stream);
    }
  } else if constexpr (!points_to_void<std::remove_cvref_t<Owner>>) {
    if constexpr (requires { (*owner).before_retire(stream); }) {
      if (owner) tell_of_capture(*owner, stream);
    }
  }
}

template <class T>
concept class_but_no_stream =
    std::is_class_v<std::remove_cvref_t<T>> && !stream_like<std::remove_cvref_t<T>>;

}  // namespace detail

// What: takes owners and destroys each on its worker thread once the GPU no longer needs it.
// Thread safety: any thread may call anything concurrently, except constructor and destructor.
// Memory ordering: what a thread did before retire() happens before the owner's destruction, which
//   happens before the return of a drain() that began after the retire().
// Lifetime: the destructor refuses new work. It waits at most for the owner's destructor that the
//   worker is running and for the worker's sleep (deleter_options::poll_interval_max). The worker
//   then continues until everything owed by graphs and running work is reclaimed. For process exit,
//   dlclose(), fork() and cudaDeviceReset() see docs/guarantees.md.
//   An owner's destructor may call CUDA and may retire; it must not drain. Plain calls in it that
//   destroy graphs or execs need a graph_lifetime_lock.
// Capture: retire() on a capturing stream adds the owner to what the graph holds. The worker
//   invalidates no capture.
// Errors: usage_error for a stopped deleter, an invalidated capture, or the legacy stream while a
//   blocking stream captures: the caller keeps the owner. cuda_error as stated at each function.
//   Errors on the worker and in destructors go to deleter_options::on_error, and are counted.
// Example: examples/retire.cpp.
class ESCROW_API deleter {
 public:
  // Starts the worker, if it is to have one. Throws usage_error for negative times, std::bad_alloc,
  // std::system_error.
  explicit deleter(deleter_options options = {}, source_location where = source_location::current())
      : core_(detail::called_at("deleter::deleter", where,
                                [&] { return make_core(std::move(options)); })) {
    pin_this_module();  // on_error is code of the caller's
  }
  deleter(deleter&&) = delete;
  ~deleter();

  // The process-wide deleter, with default options; set_on_error() gives it a handler. Never
  // destroyed: releases may arrive until process exit.
  [[nodiscard]] static deleter& global();

  // Replaces deleter_options::on_error; empty: standard error. Any thread, at any time. A call of
  // the previous handler may still run when this returns. No handler is called once the main
  // thread ends or the process exits, so it may use static variables. Throws std::bad_alloc, and
  // then the previous one stays.
  void set_on_error(std::function<void(std::exception const&)> handler) {
    pin_this_module();
    replace_on_error(std::move(handler));
  }

  // Destroys `owner` after the work on `stream` so far; in a capture, after the graph, its clones
  // and execs are destroyed and their launches done. Never blocks on the GPU. Allocates nothing in
  // steady state. Any thread. Throws cuda_error if CUDA refuses the user object. The caller then
  // still has the owner, or the worker destroys it: do not launch what was captured. Throws it also
  // if nothing can be recorded on `stream`. The owner may then be in use, and is leaked
  // (deleter_stats::leaked).
  template <class Owner>
  void retire(stream_ref stream, Owner&& owner,
              source_location where = source_location::current()) {
    retire_as("deleter::retire", stream, std::forward<Owner>(owner), where);
  }
  template <detail::class_but_no_stream Owner, stream_like Stream>
  void retire(Owner&&, Stream const&) = delete;  // the stream is the first argument

  // The same for a function with another name, `call`, which errors name.
  template <class Owner>
  void retire_as(char const* call, stream_ref stream, Owner&& owner, source_location where) {
    auto const begin_on = [&] {
      retirement begun = begin(stream, call);
      detail::tell_of_capture(owner, stream);
      return begun;
    };
    hand_over(call, begin_on, std::forward<Owner>(owner), where);
  }

  // Retires `owner` around the work that `enqueue()` enqueues: `take(owner)`, which must not throw,
  // moves the caller's resources into the owner, which is in its final place then. Eager: what can
  // fail for lack of memory fails before `enqueue`, and nothing is taken if that throws.
  // In a capture: the graph has the owner, with what it took, before `enqueue`. `call` is the
  // caller's name, for errors. Any thread.
  template <class Owner, std::invocable<Owner&> Take, std::invocable Enqueue>
  void retire_around(char const* call, stream_ref stream, Owner owner, Take take, Enqueue enqueue,
                     source_location where = source_location::current()) {
    detail::called_at(call, where, [&] {
      retirement begun = begin(stream, call);
      Owner& kept = begun.object->emplace(std::move(owner));
      bool const is_captured = begun.how == retirement::kind::in_capture;
      if (!is_captured) enqueue();
      take(kept);
      finish(std::move(begun));
      if (is_captured) enqueue();
    });
  }

  // Destroys `owner` on the worker as soon as possible: for owners that no GPU work uses. Throws
  // std::bad_alloc, cuda_error; the caller then keeps the owner. Any thread.
  template <class Owner>
  void retire(Owner&& owner, source_location where = source_location::current()) {
    hand_over(
        "deleter::retire", [&] { return begin(); }, std::forward<Owner>(owner), where);
  }

  // Destroys `owner` once the last record of `ready` is done: at once if it was never recorded.
  // Before that, the event must be neither recorded again nor destroyed (the owner may contain it).
  // Throws std::bad_alloc, and cuda_error, also for an event that was recorded in a capture: this
  // call invalidates that capture if it has not ended. The caller then keeps the owner. Any thread.
  // Source: cudaEventQuery.
  template <class Owner>
  void retire_after(event_ref ready, Owner&& owner,
                    source_location where = source_location::current()) {
    constexpr char const* call = "deleter::retire_after";
    hand_over(
        call, [&] { return begin_after(ready, call); }, std::forward<Owner>(owner), where);
  }
  // The same, and destroys `ready`, which is moved in, after the owner. The caller keeps both if it
  // throws.
  template <class Event, class Owner>
  requires std::same_as<std::remove_cvref_t<Event>, event>
  void retire_after(Event&& ready, Owner&& owner,
                    source_location where = source_location::current()) {
    static_assert(std::same_as<Event, event>,
                  "the event must live until the owner is destroyed: std::move the event into the "
                  "call, or pass event.ref() and keep the event");
    if constexpr (std::same_as<Event, event>) {
      constexpr char const* call = "deleter::retire_after";
      auto const begin_on = [&] { return begin_after(ready.ref(), call); };
      hand_over_in<Owner>(call, begin_on, where, [&](auto& object) {
        auto& kept = object.emplace(with_event<std::remove_cvref_t<Owner>>{});
        kept.owner.emplace(std::forward<Owner>(owner));
        kept.ready = std::forward<Event>(ready);
      });
    }
  }

  // Destroys `owner` once `graph`, and clones and execs that are made after this call, are
  // destroyed, and their launches done. An exec that exists already does not have it.
  // Each call creates a user object of its own, so the owner may own an exec of the graph. Throws
  // as retire() on a capturing stream. Any thread; no other thread may change `graph` meanwhile, as
  // in CUDA.
  template <class Owner>
  void retire(cudaGraph_t graph, Owner&& owner,
              source_location where = source_location::current()) {
    hand_over(
        "deleter::retire", [&] { return begin(graph); }, std::forward<Owner>(owner), where);
  }

  // Returns when everything retired before the call and not held by a graph has been reclaimed, or
  // when the process exits, which ends all reclaiming. Waits without limit, also for the GPU, and
  // tells `on_error` once for what, after 10 s: see drain_for(). The worker and CUDA's callbacks,
  // which would wait for themselves, get usage_error. Throws std::bad_alloc, and without a worker
  // cuda_error.
  void drain(source_location where = source_location::current());
  // The same, for at most `timeout`; true if all of it has been reclaimed.
  [[nodiscard]] bool drain_for(std::chrono::nanoseconds timeout,
                               source_location where = source_location::current());

  // Refuses new work, then drains, without limit. What graphs still hold is reclaimed when they
  // release it: the worker sleeps until then, and ends with the deleter. Any thread but the worker.
  void stop(source_location where = source_location::current());
  // The same, for at most `timeout`. True if all was reclaimed, none leaked and graphs hold none.
  [[nodiscard]] bool stop_for(std::chrono::nanoseconds timeout,
                              source_location where = source_location::current());

  // For programs with their own thread (deleter_options::own_worker false): reclaims on this
  // thread, without waiting for events, and returns how many. Sets Relaxed capture mode and devices
  // during the call. Returns 0 at once if another thread is reclaiming, and at process exit. Throws
  // cuda_error, having reclaimed nothing, if CUDA refuses the mode or does not report the device.
  std::size_t poll(source_location where = source_location::current());

  // The statistics and what is waited for, in words, for a log when a shutdown waits, or for a
  // debugger. Graphs are named by their capture id; a pool's describe() has their slots. Any
  // thread; takes short locks. Throws std::bad_alloc.
  //
  //     deleter "escrow": {"reclaimed": 12, "pending": 3, "pending_peak": 7, "in_graphs": 2, ...}
  //       2 wait for an event
  //       1 reference sets of graphs wait for a last launch
  //       graph 12 holds a reference set
  [[nodiscard]] std::string describe() const;

  // Numbers of this moment. Any thread.
  [[nodiscard]] deleter_stats stats() const noexcept;
  // Internal: what pools and graphs push to.
  [[nodiscard]] deleter_core& core() const noexcept { return *core_; }
  // Internal: it is constructed, and has not ended; for a pointer that may be to neither.
  [[nodiscard]] bool is_there() const noexcept;

 private:
  friend class shared_object_base;

  // A retirement between its first step, which can fail without taking the owner, and its last.
  struct retirement {
    enum class kind { now, after_stream, in_capture, with_graph };
    kind how = kind::now;
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    std::uint64_t id = 0;  // of the graph, or else of the stream
    retired_object::loan object = nullptr;
  };

  retirement begin(char const* call = "deleter::retire");
  retirement begin(stream_ref stream, char const* call = "deleter::retire");
  retirement begin(cudaGraph_t graph);
  // As begin(stream, call), also for a stopped deleter: for a use of an existing object.
  retirement begin_use(stream_ref stream, char const* call);
  // With an empty object, whose owner is destroyed with `device` current.
  retirement with_object(retirement begun, int device);
  // One that is reclaimed once `ready` is done.
  retirement begin_after(event_ref ready, char const* call);
  // The event is destroyed last.
  template <class Owner>
  struct with_event {
    event ready = event::none();
    std::optional<Owner> owner;
  };
  template <class Begin, class Owner>
  void hand_over(char const* call, Begin begin, Owner&& owner, source_location where) {
    hand_over_in<Owner>(call, begin, where,
                        [&](auto& object) { object.emplace(std::forward<Owner>(owner)); });
  }
  // `store(object)` puts the owner there. Generic: what is refused instantiates none.
  template <class Owner, class Begin, class Store>
  void hand_over_in(char const* call, Begin begin, source_location where, Store store) {
    require_owner<Owner>();
    if constexpr (makes_owner<Owner>) {
      detail::called_at(call, where, [&] {
        retirement begun = begin();
        store(*begun.object);
        finish(std::move(begun));
      });
    }
  }
  void finish(retirement&& begun);
  void finish_after_stream(retired_object& object, retirement const& begun);
  static void finish_with_graph(retired_object& object, retirement const& begun);
  void require_open(char const* call) const;
  static void refuse_endless(event_ref ready);
  void refuse_on_worker(char const* call, source_location where) const;
  // Of a drain without a limit, once, so that whoever waits for ever learns for what.
  static constexpr std::chrono::seconds told_after{10};
  void tell_waiting(source_location where) const noexcept;
  static deleter_core* make_core(deleter_options options);
  void replace_on_error(std::function<void(std::exception const&)> handler);

  [[nodiscard]] std::uintptr_t mark() const noexcept {
    return ~reinterpret_cast<std::uintptr_t>(this);
  }

  deleter_core* core_;
  // mark() from the constructor's begin to the destructor's. Volatile: also where it ends.
  std::uintptr_t volatile mark_ = mark();
};

}  // namespace escrow::inline v0_2
