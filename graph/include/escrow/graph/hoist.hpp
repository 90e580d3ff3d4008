// For code that instantiates and launches by itself: the graph's references, owned by the caller.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// What: the references that hoist() took off a graph. The graph holds nothing any more, so execs of
//   it are bare; keep this object until the last launch of everything created from the graph is
//   enqueued.
// Thread safety: a value; one thread at a time. For plain calls that create something from the
//   graph see graph_lifetime_lock.
// Lifetime: call one of the release functions, not between enter() and leave(). Else, and if the
//   release at its end fails, the destructor leaks what this holds, as it is not known when the GPU
//   is done, reports that to deleter_options::on_error and counts it (deleter_stats::leaked).
// Capture: releasing is capture-safe, but not on a capturing stream.
// Errors: usage_error after a release, and for a capturing stream; cuda_error. On failure nothing
//   is released.
// Example: examples/own_launch.cpp.
class ESCROW_API hoisted {
 public:
  hoisted(hoisted&& other) noexcept;
  hoisted& operator=(hoisted&& other) noexcept;
  ~hoisted();

  // Begins a launch by the caller's own code, on `stream`, of any exec of the graph, a graph_exec
  // too. Makes `stream` wait for the last launch of this graph, and of any that shares something
  // with it (sharing_group, clones). No other launch of those begins until leave().
  // Blocks the host for at most `wait_max` while another thread is between the two, and then throws
  // group_busy; at once, if that is this thread. Throws usage_error for a capturing stream, if it
  // was entered already, and behind a launch that its stream_launcher has not recorded; cuda_error,
  // std::bad_alloc. `stream` must be alive until leave(), which the destructor calls if that was
  // forgotten, and reports.
  void enter(stream_ref stream, std::chrono::nanoseconds wait_max = std::chrono::seconds(10));
  // Ends it: records the end of what was launched, on `stream`, or waits for it if that fails.
  // Throws usage_error for a capturing stream and without enter(); cuda_error if both fail: others
  // then refuse to launch until a later leave(), release() or release_after() of this one, which
  // must come after that launch.
  void leave(stream_ref stream);

  // Releases after the work on `stream` so far: records its end, or waits for it if that fails.
  // Launches on other streams must be ordered before that. Throws std::bad_alloc too.
  void release_after(stream_ref stream, source_location where = source_location::current());
  // Releases once the last record of `ready`, an event of the current device, is done. It must not
  // have been recorded in a capture; afterwards it may be recorded again or destroyed. If CUDA
  // cannot record behind it, this waits for it. Throws std::bad_alloc too. Source:
  // cudaStreamWaitEvent.
  void release_after(event_ref ready, source_location where = source_location::current());
  // The destructor will call release_after(stream), also if an exception ends this early: nothing
  // is leaked then. `stream` must be alive then, and not capturing. Throws std::bad_alloc too.
  void release_at_end(stream_ref stream, source_location where = source_location::current());
  // Releases now: no launch may be in flight.
  void release(source_location where = source_location::current());

  // As graph_exec::is_bare(), for execs of the graph.
  [[nodiscard]] bool is_bare() const noexcept;
  [[nodiscard]] resource_usage held() const;  // throws std::bad_alloc

 private:
  friend hoisted hoist(graph_ref source, std::vector<cudaGraph_t> const& bodies,
                       source_location where);
  class state;

  explicit hoisted(std::unique_ptr<state> taken) noexcept;
  [[nodiscard]] state& require(char const* call) const;
  [[nodiscard]] state& require_left(char const* call) const;  // not between enter() and leave()
  void record_and_release(stream_ref stream);
  void leave_at_end() noexcept;

  std::unique_ptr<state> state_;  // null once released
};

// Takes Escrow's references off `source` permanently. `bodies`: see instantiate_options. On failure
// the graph is unchanged. Pass a `graph` itself, not its handle: else its node resources stay on it
// until it is used again or destroyed. Earlier clones and execs keep what they hold. Before
// cudaStreamBeginRecaptureToGraph (CUDA 13.3) call hoist(graph).release(). Throws usage_error, also
// for a graph that was hoisted before and holds nothing new since; cuda_error, std::bad_alloc. No
// other thread may use the graph meanwhile.
[[nodiscard]] ESCROW_API hoisted hoist(graph_ref source,
                                       std::vector<cudaGraph_t> const& bodies = {},
                                       source_location where = source_location::current());

}  // namespace escrow::inline v0_1
