// SPDX-License-Identifier: Apache-2.0
// For code that instantiates and launches by itself: the graph's references, owned by the caller.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/sharing_group.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: the references that hoist() took off a graph. The graph holds nothing any more, so execs of
//   it are bare; keep this object until the last launch of everything created from the graph is
//   enqueued.
// Thread safety: a value; one thread at a time. For plain calls that create something from the
//   graph see graph_lifetime_lock.
// Lifetime: call one of the release functions, not inside launch(). Each also waits for what was
//   launched by launch(), on whichever streams. Else, and if the release at its end fails, the
//   destructor leaks what this holds, as it is not known when the GPU is done, reports that to
//   deleter_options::on_error and counts it (deleter_stats::leaked).
// Capture: releasing is capture-safe, but not on a capturing stream.
// Errors: usage_error after a release, and for a capturing stream; cuda_error. On failure nothing
//   is released.
// Example: examples/shared_scratch.cpp.
class ESCROW_API hoisted {
 public:
  hoisted(hoisted const&) = delete;  // std::move it: one owner releases
  hoisted(hoisted&& other) noexcept;
  hoisted& operator=(hoisted&& other) noexcept;
  ~hoisted();

  // Runs `call(stream)`, or `call()`, which launches, on `stream`, any exec of the graph, a
  // graph_exec too. Before, makes `stream` wait for the last launch of this graph, and of any that
  // shares something with it (sharing_group, clones). Afterwards records the end of what was
  // launched, or waits for it if that fails; also if `call` throws, whose exception then goes on.
  // No lock is held meanwhile, but no other launch of those graphs begins: inside `call` that is a
  // usage_error; another thread's blocks its host for at most its `wait_max` and then throws
  // group_busy. Throws usage_error for a capturing stream, and behind a launch that its
  // stream_launcher has not recorded; cuda_error, std::bad_alloc: `call` was not run then. After it
  // throws cuda_error if its status is no success or its end can be neither recorded nor waited
  // for, and usage_error if `stream` captures then. If the end is not known, launches on other
  // streams throw cuda_error until one on `stream`, of any of those graphs, succeeds, or this is
  // released.
  template <class Call>
  void launch(stream_ref stream, Call&& call,
              std::chrono::nanoseconds wait_max = std::chrono::seconds(10),
              source_location where = source_location::current()) {
    detail::require_function("hoisted::launch", call, where);
    auto const run = [stream, &call] {
      return detail::status_on(stream, std::forward<Call>(call));
    };
    run_launch(
        stream, [](void const* its) { return (*static_cast<decltype(run)*>(its))(); }, &run,
        wait_max, where);
  }

  // Internal: the two halves of launch(), for code that is called before and after a launch: from
  // enter() to leave() is as inside of `call`. If the stream is captured, leave() throws
  // usage_error, and it is inside still.
  void enter(stream_ref stream, std::chrono::nanoseconds wait_max = std::chrono::seconds(10));
  // Internal: see enter(). Else it is outside, also if this throws.
  void leave();
  // Internal: nobody launches outside of launch() and enter(): so it does not keep its group from
  // being parked before the first one.
  void launches_in_turn() noexcept;

  // Releases after the work on `stream` so far: records its end, or waits for it if that fails.
  // Launches outside of launch() on other streams must be ordered before that. If the end of the
  // last launch() is not known, throws cuda_error unless `stream` is that one's. Throws
  // std::bad_alloc too.
  void release_after(stream_ref stream, source_location where = source_location::current());
  // Releases once the last record of `ready`, an event of the current device, is done: at once if
  // it was never recorded. It must not have been recorded in a capture; afterwards it may be
  // recorded again or destroyed. If CUDA cannot record behind it, this waits for it. Throws
  // cuda_error if the end of the last launch() is not known; std::bad_alloc too. Source:
  // cudaStreamWaitEvent.
  void release_after(event_ref ready, source_location where = source_location::current());
  // The destructor will call release_after(stream), also if an exception ends this early: nothing
  // is leaked then. `stream` must be alive then, and not capturing; cudaStreamPerThread needs this
  // thread. Throws std::bad_alloc too.
  void release_at_end(stream_ref stream, source_location where = source_location::current());
  // Releases now: no launch outside of launch() may be in flight, and none at all if the end of the
  // last one is not known.
  void release(source_location where = source_location::current());

  // As graph_exec::is_bare(), for execs of the graph.
  [[nodiscard]] bool is_bare() const noexcept;
  [[nodiscard]] resource_usage held() const;  // throws std::bad_alloc

 private:
  friend hoisted hoist(graph_ref source, std::vector<cudaGraph_t> const& bodies,
                       source_location where);
  struct state;

  explicit hoisted(std::shared_ptr<state> taken) noexcept;
  void run_launch(stream_ref stream, cudaError_t (*run)(void const*), void const* argument,
                  std::chrono::nanoseconds wait_max, source_location where);
  [[nodiscard]] state& require(char const* call) const;
  [[nodiscard]] state& require_outside(char const* call) const;  // not inside launch()
  void record_and_release(char const* call, stream_ref stream);
  void end() noexcept;

  std::shared_ptr<state> state_;  // null once released; a launch() that runs has it, too
};

// Takes Escrow's references off `source` permanently. `bodies`: see instantiate_options. On failure
// the graph is unchanged. Pass a `graph` itself, not its handle: else its node resources stay on it
// until it is used again or destroyed. Earlier clones and execs keep what they hold. Before
// cudaStreamBeginRecaptureToGraph (CUDA 13.3) call hoist(graph).release(). Throws usage_error, also
// for a graph that was hoisted before and holds nothing new since, or that graph_exec's constructor
// refuses for its sharing_group; cuda_error, std::bad_alloc. No other thread may use the graph
// meanwhile.
ESCROW_KEEP ESCROW_API hoisted hoist(graph_ref source, std::vector<cudaGraph_t> const& bodies = {},
                                     source_location where = source_location::current());

}  // namespace escrow::inline v0_2
