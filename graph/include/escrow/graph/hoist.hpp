// For callers who instantiate and launch on their own: what a graph held, in the caller's hands.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph.hpp"

namespace escrow {

struct survey_root;

// What: the references that hoist() has taken off a graph. The graph holds nothing from then on,
//   so that what is instantiated from it is bare; this holds it all instead, and has to stay until
//   the last launch of everything that was created from the graph has been enqueued.
// Thread safety: a value; one thread at a time. For plain calls that create something from the
//   graph see graph_lifetime_lock.
// Lifetime: call one of the release functions. The destructor of one that was not released leaks
//   what it holds, reports that to deleter_options::on_error and counts it (deleter_stats::leaked):
//   nothing tells when the GPU is done with it.
// Capture: releasing is capture-safe, but not on a capturing stream.
// Errors: usage_error for one that holds nothing any more, and for a capturing stream; cuda_error.
//   What fails has released nothing.
class hoisted {
 public:
  hoisted(hoisted&& other) noexcept;
  hoisted& operator=(hoisted&& other) noexcept;
  ~hoisted();

  // Releases after the work enqueued on `stream` so far. The streams of other launches must be
  // ordered before that. Throws std::bad_alloc too.
  void release_after(stream_ref stream);
  // Releases once the last record of `ready` is done. `ready` is an event of the device that is
  // current now, and must not have been recorded in a capture. It must neither be recorded again
  // nor be destroyed until a drain() that began after this call, of each deleter of what this
  // holds, has returned.
  void release_after(event_ref ready);
  // Releases now: no launch is in flight, or there was none.
  void release();

  // As graph_exec::is_bare(), of what is instantiated from the graph.
  [[nodiscard]] bool is_bare() const noexcept;
  // What this keeps alive. Throws std::bad_alloc.
  [[nodiscard]] resource_usage held() const;

 private:
  friend hoisted hoist(cudaGraph_t graph, std::vector<cudaGraph_t> const& bodies);
  friend hoisted hoist(graph const& graph, std::vector<cudaGraph_t> const& bodies);
  class state;

  explicit hoisted(std::unique_ptr<state> taken) noexcept;
  [[nodiscard]] static hoisted take(survey_root const& root,
                                    std::vector<cudaGraph_t> const& bodies);
  [[nodiscard]] state& require(char const* call) const;

  std::unique_ptr<state> state_;  // null once released
};

// Takes the references of Escrow off `graph`, for good. `bodies`: see instantiate_options. On
// failure the graph is as before. Pass a `graph` itself and not its handle: what its nodes keep
// would stay on it until it is used again, or destroyed. Clones and execs that were created earlier
// keep what they hold. Throws usage_error, cuda_error, std::bad_alloc. No other thread may use the
// graph meanwhile.
[[nodiscard]] hoisted hoist(cudaGraph_t graph, std::vector<cudaGraph_t> const& bodies = {});
[[nodiscard]] hoisted hoist(graph const& graph, std::vector<cudaGraph_t> const& bodies = {});

}  // namespace escrow
