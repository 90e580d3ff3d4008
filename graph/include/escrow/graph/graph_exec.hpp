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
//   the graph during instantiation (hoisted), so that no launch pays for user objects.
//   Launches of execs that may write the same thing are serialized: execs that share a slot, or an
//   owner that was moved in, as two execs of one graph do. A launch waits, in its stream, for the
//   last launch of the others, unless that was on the same stream. Shared owners (std::shared_ptr,
//   libraries) order nothing. Escrow cannot know of, and does not order: execs of plain copies
//   (cudaGraphClone), plain launches, execs created before hoist(), and execs of different graphs,
//   built by hand, whose nodes were given the same owner or lease.
// Thread safety: one thread at a time; different execs from different threads, also if they share
//   something. No other thread may use the source graph during instantiation, update() and set(),
//   as CUDA demands. May be destroyed on any thread, whatever Escrow does meanwhile to the graphs
//   that it was created or updated from; plain calls that create or destroy something related to
//   those need a graph_lifetime_lock, or corrupt the heap.
// Lifetime: may outlive its graph. May be destroyed at any time, with launches in flight, and after
//   their streams: what it held is released after its last launch, whose end an event tells that
//   each launch records. One with conditional nodes: cudaGraphExecDestroy waits for its launches
//   and uploads, and so does the destructor, but without blocking other threads, as CUDA does. The
//   destructor waits only for recorded launches and uploads; for such execs both are therefore
//   always recorded.
// Capture: instantiating, updating and destroying harm no capture (they run in Relaxed mode).
//   Launching into a capturing stream is cudaErrorStreamCaptureUnsupported and kills the capture,
//   as with CUDA: add_child() instead. So does launching on the legacy stream while a blocking
//   stream captures.
// Errors: usage_error for one that was moved from; cuda_error. The destructor ignores the status.
class graph_exec {
 public:
  // Takes any graph, also one that was captured with plain CUDA calls. On failure the graph and all
  // references are as before. Throws cuda_error, std::bad_alloc. Source: cudaGraphInstantiate.
  explicit graph_exec(cudaGraph_t source, instantiate_options const& options = {});
  explicit graph_exec(graph const& source, instantiate_options const& options = {});
  graph_exec(graph_exec&& other) noexcept;
  graph_exec& operator=(graph_exec&& other) noexcept;
  ~graph_exec();

  // The CUDA handle. Never owning; null if moved from. A plain launch of it is not ordered with
  // execs that share something, and its end is not recorded: keep this alive until then.
  [[nodiscard]] cudaGraphExec_t get() const noexcept;

  // Whether Escrow took off every reference set that it knows, so that no launch pays for one. If
  // not, the exec is correct, too, but a launch may cost more: while any graph holds anything, this
  // is false if fewer bodies were named in the options, or made by the `graph` itself, than there
  // are conditional nodes. Escrow does not see what a plain copy (cudaGraphClone,
  // cudaGraphAddChildGraphNode) of a graph holds: its exec keeps that, and is slower than this
  // says. Use graph::clone() and graph::add_child(). The same is true of a child that could not be
  // noted (child_node), and of a body that was not named among others that were.
  [[nodiscard]] bool is_bare() const noexcept;

  // What the exec keeps alive by itself; not what user objects in it do. Throws std::bad_alloc.
  [[nodiscard]] resource_usage held() const;

  // Enqueues one run of the graph on `stream`, of any device. Throws cuda_error, and usage_error
  // for a capturing stream if it would have to wait for another exec: nothing was enqueued then but
  // waits. If the launch's end cannot be recorded, this blocks until the launch is done. If that
  // fails, too, the cuda_error names cudaEventRecord, and the graph runs: until this exec is
  // launched with success, execs that it is serialized with refuse to launch, and if it never is,
  // what it holds is leaked (deleter_stats::leaked). While another thread launches an exec that
  // this one is serialized with, this blocks the host for as long as cudaGraphLaunch blocks that
  // thread: e.g. until a copy to pageable memory is done. Source: cudaGraphLaunch.
  void launch(stream_ref stream);

  // Copies the exec to the device ahead of its first launch on `stream`. Throws cuda_error, which
  // may name cudaEventRecord if there are conditional nodes: the exec is uploaded then, but the
  // destructor may block other threads until that is done. Throws std::bad_alloc. Source:
  // cudaGraphUpload.
  void upload(stream_ref stream);

  // Makes this exec run `source`, which must have the same nodes and edges, from the next launch
  // on, and hold what `source` holds; what was held before is released after the launches in
  // flight. `bodies` as in the options. On failure throws cuda_error, std::bad_alloc, and exec,
  // graph and references are as before. Source: cudaGraphExecUpdate.
  void update(cudaGraph_t source, std::vector<cudaGraph_t> const& bodies = {});
  void update(graph const& source, std::vector<cudaGraph_t> const& bodies = {});

  // For changing one node (escrow/nodes.hpp: set): the graph whose nodes can be changed, which is
  // the one that the exec was created from; null if that was a plain handle, or was destroyed.
  // `call` is named in the usage_error for an exec that was moved from.
  [[nodiscard]] std::shared_ptr<graph_core> source(char const* call) const;
  // The same: changes a node of that graph in this exec, and keeps `payload` for it. Throws
  // cuda_error, std::bad_alloc, and exec and owners are then as before.
  void set_node(cudaGraphNode_t changed, cudaGraphNodeParams& params, detail::node_payload payload);

 private:
  class state;

  [[nodiscard]] state& require(char const* call) const;

  std::unique_ptr<state> state_;  // null if moved from
};

}  // namespace escrow
