// An owned executable graph that launches as fast as if its graph held nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/node_payload.hpp"
#include "escrow/graph/graph.hpp"

namespace escrow {

struct survey_root;

// How a graph is instantiated.
struct instantiate_options {
  // cudaGraphInstantiateFlags, or'ed.
  unsigned long long flags = 0;
  // All body graphs of the graph's conditional nodes, nested ones too, as the nodes' creation gave
  // them (phGraph_out): CUDA does not tell them afterwards. Those that a `graph` has made need not
  // be named. Without them the exec is as right, but
  // not bare if a body holds something.
  std::vector<cudaGraph_t> bodies = {};
};

// What: owns a cudaGraphExec_t, and itself holds what the graph holds: the references are taken off
//   the graph for the moment of instantiation (hoisted), so that no launch pays for user objects.
//   Execs that share something, as two execs of one graph do, take turns: a launch waits, in its
//   stream, for the others' last launch. Not so with what Escrow cannot know to share: execs of
//   plain copies (cudaGraphClone), plain launches, execs made before hoist() took all, and execs of
//   different graphs, built by hand, whose nodes were given the same owner or lease.
// Thread safety: one thread at a time; different execs from different threads, also if they share
//   something. Nobody else may use the source graph during instantiation, update() and set(),
//   as CUDA demands. It may end on any thread, whatever Escrow does meanwhile to the graphs that it
//   was made of and updated from; plain calls that make or end something of those need a
//   graph_lifetime_lock, or corrupt the heap.
// Lifetime: may outlive its graph. May end at any time, with launches in flight and streams gone:
//   what it held is let go after its last launch, which an event after each launch tells. One with
//   conditional nodes ends only after its launches and uploads: cudaGraphExecDestroy waits for
//   them, and so does the destructor, but without holding up other threads, as CUDA does. That is
//   for those of launch() and upload() whose end was recorded, so these record it also if nothing
//   is held.
// Capture: instantiating, updating and destroying harm no capture (they run in Relaxed mode).
//   Launching into a capturing stream is cudaErrorStreamCaptureUnsupported and kills the capture,
//   as with CUDA: add_child() instead. So does launching on the legacy stream while a blocking
//   stream captures.
// Errors: usage_error for one that was moved from; cuda_error. The destructor ignores CUDA's
// status:
//   there is no one to tell.
class graph_exec {
 public:
  // Takes any graph, also one that was captured with plain CUDA calls. On failure the graph and all
  // references are as before. Throws cuda_error, std::bad_alloc. Source: cudaGraphInstantiate.
  explicit graph_exec(cudaGraph_t source, instantiate_options const& options = {});
  explicit graph_exec(graph const& source, instantiate_options const& options = {});
  graph_exec(graph_exec&& other) noexcept;
  graph_exec& operator=(graph_exec&& other) noexcept;
  ~graph_exec();

  // The CUDA handle. Never owning; null if moved from. Launched plainly, it is in no order with
  // execs that share something, and the launch's end is not waited for: keep this alive until then.
  [[nodiscard]] cudaGraphExec_t get() const noexcept;

  // Whether no user object of Escrow is in the exec, as far as Escrow can know. If there may be
  // one, the exec is as right, but a launch may cost more. While any graph holds anything, there
  // may be
  // - if the source, or the graph of a child node, is a plain handle of which Escrow knows no
  //   reference: it may be a plain copy of a graph that has some (use graph::clone(), add_child());
  // - if fewer bodies were named in the options, or made by the `graph` itself, than there are
  //   conditional nodes;
  // - if what a child holds could not be noted (child_node).
  // What cannot be noticed: a body that was not named among others that were; a plain copy that got
  // more later, by a capture or retire(); a plain child node in the place of one of add_child()
  // that was destroyed.
  [[nodiscard]] bool is_bare() const noexcept;

  // What the exec keeps alive by itself; not what user objects in it do. Throws std::bad_alloc.
  [[nodiscard]] resource_usage held() const;

  // Enqueues one run of the graph on `stream`, of any device. Throws cuda_error, and usage_error
  // for a capturing stream if it would have to wait for another exec: nothing was enqueued then but
  // waits. One exception: if the cuda_error names cudaEventRecord the graph runs, but nobody can
  // tell when it ends. Until this exec has been launched with success, others that share something
  // with it refuse to launch; if that never happens, what it holds is kept for ever. While another
  // thread launches an exec that shares something, this blocks the host, for as long as
  // cudaGraphLaunch blocks that thread: e.g. until a copy to pageable memory is done. Source:
  // cudaGraphLaunch.
  void launch(stream_ref stream);

  // Copies the exec to the device ahead of its first launch on `stream`. Throws cuda_error, which
  // may name cudaEventRecord if there are conditional nodes: the exec is uploaded then, but the
  // destructor may hold up other threads until that is done. Throws std::bad_alloc. Source:
  // cudaGraphUpload.
  void upload(stream_ref stream);

  // Makes this exec run `source`, which must have the same nodes and edges, from the next launch
  // on, and hold what `source` holds; what was held before is let go after the launches in flight.
  // `bodies` as in the options. On failure throws cuda_error, std::bad_alloc, and exec, graph and
  // references are as before. Source: cudaGraphExecUpdate.
  void update(cudaGraph_t source, std::vector<cudaGraph_t> const& bodies = {});
  void update(graph const& source, std::vector<cudaGraph_t> const& bodies = {});

  // For changing one node (escrow/nodes.hpp: set): the graph whose nodes can be changed, which is
  // the one that the exec was made of; null if that was a plain handle, or is gone. `call` is named
  // in the usage_error for an exec that was moved from.
  [[nodiscard]] std::shared_ptr<graph_core> source(char const* call) const;
  // The same: changes a node of that graph in this exec, and keeps `payload` for it. Throws
  // cuda_error, std::bad_alloc, and exec and owners are then as before.
  void set_node(cudaGraphNode_t changed, cudaGraphNodeParams& params, detail::node_payload payload);

 private:
  class state;

  graph_exec(survey_root const& source, instantiate_options const& options);
  void update(survey_root const& source, std::vector<cudaGraph_t> const& bodies);
  [[nodiscard]] state& require(char const* call) const;

  std::unique_ptr<state> state_;  // null if moved from
};

}  // namespace escrow
