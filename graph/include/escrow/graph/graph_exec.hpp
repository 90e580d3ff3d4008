// SPDX-License-Identifier: Apache-2.0
// An owned executable graph that launches as fast as one whose graph holds nothing, and a launcher
// on one stream, without an event record for each launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class stream_launcher;

// How a graph_exec is created.
struct instantiate_options {
  unsigned long long flags = 0;  // cudaGraphInstantiateFlags, or'ed
  // All body graphs of conditional nodes, nested ones too, from the nodes' creation (phGraph_out):
  // CUDA does not report them later. Those created by the `graph` may be omitted. Without them the
  // exec keeps what they hold, but is not bare, and its launches are not ordered with others that
  // share that.
  std::vector<cudaGraph_t> bodies = {};
  // From 2 on: for launch_many(), instantiates this many runs of the graph, too, as one exec of
  // child nodes, which takes the memory and the time of as many execs. A graph with conditional or
  // memory nodes, which CUDA does not embed, has none. Not for kernels that the device updates.
  std::size_t copies = 0;
  // By default only ESCROW_AUDIT=1 refuses: see audit_use.
  audit_use audit = audit_use::by_default;
};

// What: owns a cudaGraphExec_t and holds what the graph holds: instantiation takes the references
//   off the graph (hoisting), so that launches do not pay for user objects. Serializes launches of
//   execs that may write the same resource: see launch().
// Thread safety: one thread at a time; different execs concurrently, also if they share something.
//   No other thread may use the source graph during instantiation, update() and set(), as in CUDA.
//   May be destroyed on any thread, concurrently with Escrow's use of the graphs that it was
//   created or updated from. Plain calls that create or destroy objects related to those need a
//   graph_lifetime_lock.
// Lifetime: may outlive its graph. May be destroyed at any time, with launches in flight, and after
//   their streams: what it held is released after its last launch, whose end each launch records.
//   With conditional nodes the destructor waits for launches and uploads, but does not block other
//   threads as CUDA does.
// Capture: instantiating, updating and destroying are capture-safe. Launching into a capturing
//   stream is an error, as in CUDA: see launch().
// Errors: usage_error if this or the graph was moved from; cuda_error. The destructor ignores the
//   status.
// Example: examples/scratch.cpp.
class ESCROW_API graph_exec {
 public:
  // Takes any graph, also one captured with plain CUDA calls. On failure the graph and all
  // references are unchanged, but for references that CUDA does not take back: they are leaked and
  // reported (deleter_stats::leaked), also if the exec is made. Throws cuda_error, std::bad_alloc.
  // A graph with conditional or memory nodes has one exec at a time, so `exec = graph_exec(graph)`
  // throws: destroy the other before, e.g. with std::optional::emplace(). Source:
  // cudaGraphInstantiate.
  //   Throws usage_error if parts of the graph use one sharing_group and might run concurrently, or
  // a child graph uses the slot of a lease between its claim and release; so do update() and
  // hoist(). Instead add the parts as child graphs of a new graph, by graph::add_child(): that
  // makes a single line of nodes. Throws it, too, if nodes use memory of a pool that the graph's
  // `hoisted` has released.
  explicit graph_exec(graph_ref source, instantiate_options const& options = {},
                      source_location where = source_location::current());
  graph_exec() = delete;                   // what is made later is a std::optional<graph_exec>
  graph_exec(graph_exec const&) = delete;  // std::move it, or make another of its graph
  graph_exec(graph_exec&& other) noexcept;
  graph_exec& operator=(graph_exec&& other) noexcept;
  ~graph_exec();

  // The CUDA handle, not owning; null if moved from. A plain launch of it is not ordered with other
  // execs, and its end is not recorded: keep this object alive until then. Plain calls that change
  // it do not change its copies, which launch_many() runs.
  [[nodiscard]] cudaGraphExec_t get() const noexcept ESCROW_OF_THIS;

  // Whether Escrow took off every reference set that it knows. If not, the exec is correct, but
  // launches may cost more. While any graph holds anything, this is false if there are more
  // conditional nodes than bodies that the options name or the `graph` created. Escrow does not
  // know what plain copies (cudaGraphClone, cudaGraphAddChildGraphNode) hold: an exec keeps that
  // and launches more slowly than this says. Use graph::clone() and graph::add_child(). The same
  // applies to an unregistered child (child_node) and to a body that is not named while the count
  // suffices.
  [[nodiscard]] bool is_bare() const noexcept;

  // What the exec itself keeps alive, without its user objects; nothing if it was moved from.
  // Throws std::bad_alloc.
  [[nodiscard]] resource_usage held() const;

  // Enqueues one run of the graph on `stream`, of any device. It waits, in its stream, for the last
  // launch of each exec that shares a slot or a sharing_group with this one, or an owner that was
  // moved in, as two execs of one graph do, unless that launch was on the same stream. Shared
  // owners (std::shared_ptr, libraries) order nothing. Not ordered, since Escrow cannot know of
  // them, are plain launches, execs of plain copies (cudaGraphClone, cudaGraphAddChildGraphNode),
  // execs created before hoist(), and what unnamed bodies hold. Execs of hoisted graphs are ordered
  // by hoisted::launch() only. Execs of different graphs are not ordered if they were given the
  // same owner or lease: by nodes built by hand, or a lease of before their captures.
  //   Launching into a capturing stream is cudaErrorStreamCaptureUnsupported and invalidates the
  // capture, as in CUDA: use graph::add_child(). So does launching on the legacy stream while a
  // blocking stream captures.
  //   Throws cuda_error. Throws usage_error for a capturing stream if it would have to wait for
  // another exec, and behind a launch that its stream_launcher has not recorded. Then at most waits
  // were enqueued. If the launch's end cannot be recorded, this blocks until the launch is done. If
  // that fails, too, the cuda_error names cudaEventRecord, and the graph runs. Execs serialized
  // with it then throw cuda_error on other streams until one of them, or this one on any, is
  // launched again; this one refuses update() and set() until it is, and leaks what it holds if it
  // ends before (deleter_stats::leaked).
  //   While another thread launches an exec that this one is serialized with, this blocks the host
  // as long as that cudaGraphLaunch blocks, e.g. for a copy to pageable memory. While another
  // thread is inside hoisted::launch() of such a graph, it blocks the host for at most 10 s and
  // then throws group_busy; inside this thread's it throws usage_error. Source: cudaGraphLaunch.
  void launch(stream_ref stream, source_location where = source_location::current());

  // Enqueues `times` runs, one after another, as so many calls of launch() do, but that what these
  // wait for and record comes once. With instantiate_options::copies, each call of CUDA enqueues
  // copies() of them, which saves the GPU time between small graphs; what remains is launched one
  // by one. As without copies, no two runs overlap, on any streams: after a launch whose end is not
  // known, an exec with copies throws cuda_error on another stream than that one's. 0: does
  // nothing; more than 2^31 - 1 throws usage_error. Throws as launch(); after a cuda_error that
  // names cudaGraphLaunch and says how many runs were enqueued, these run.
  void launch_many(stream_ref stream, std::size_t times,
                   source_location where = source_location::current());

  // The runs that launch_many() enqueues at once: 1 without the option, if CUDA embeds no such
  // graph, while a node is disabled, after set() and set_enabled(), which cannot change the copies,
  // until the next update(), or if moved from.
  [[nodiscard]] std::size_t copies() const noexcept;

  // Uploads the exec to the device before a first launch on `stream`. Upload what you will launch:
  // an exec that is uploaded and not launched slows the kernels of all graphs of the process, and
  // if it is destroyed so, for good (measured). So an exec with copies, of which one part may never
  // be launched, is uploaded by its first launches instead. Throws std::bad_alloc and cuda_error,
  // which names cudaEventRecord if the exec, with conditional nodes, was uploaded but not recorded:
  // the destructor may then block other threads. Source: cudaGraphUpload.
  void upload(stream_ref stream, source_location where = source_location::current());

  // From the next launch on, runs `source`, which must have the same nodes and edges, and holds
  // what `source` holds; the previous references are released after the launches in flight.
  // `bodies` as in the options; the copies are made anew. On failure throws cuda_error, which names
  // the node that does not fit, std::bad_alloc, or usage_error as the constructor, and exec, graph
  // and references are unchanged. Clusters of another size do not fit: CUDA would keep the old ones
  // without an error (measured). Source: cudaGraphExecUpdate.
  void update(graph_ref source, std::vector<cudaGraph_t> const& bodies = {},
              source_location where = source_location::current());

  // Internal: for changing one node (escrow/nodes.hpp: set).
  class state;
  // Internal: the same. If moved from, throws usage_error naming `call`.
  [[nodiscard]] state& require(char const* call) const;

 private:
  friend class stream_launcher;

  std::unique_ptr<state> state_;  // null if moved from
};

// What: owns an exec and launches it on one stream. Its launches are recorded together, by flush(),
//   release() or the destructor, so that each costs little more than a plain cudaGraphLaunch; some
//   are recorded at once: see launch(). While launches are not recorded, another exec (or hoisted)
//   that shares a slot or a moved-in owner with this one throws usage_error on any other stream:
//   only the launcher's thread may record. After flush(), or the launcher's next launch, it is
//   ordered as after graph_exec::launch().
// Thread safety: bound to the thread that created it, also after a move. Any thread may destroy it
//   after flush() or release().
// Lifetime: the stream must outlive the launches until they are recorded. What the exec holds is
//   released after its last launch. If the destructor cannot record that, e.g. on another thread or
//   while the stream is being captured, it leaks what the exec holds: see ~stream_launcher().
// Capture: as graph_exec. Call flush() before the stream is captured.
// Errors: usage_error on another thread, and after release() or a move; cuda_error.
// Example: docs/guides/graphs.md.
class ESCROW_API stream_launcher {
 public:
  // Takes the exec. Throws usage_error if that was moved from or the stream is being captured, and
  // cuda_error; then `exec` is unchanged.
  stream_launcher(graph_exec&& exec, stream_ref stream,
                  source_location where = source_location::current());
  stream_launcher(stream_launcher&& other) noexcept = default;
  stream_launcher& operator=(stream_launcher&& other) noexcept;
  // Records the launches, if they are not recorded. It cannot if it runs on another thread, if the
  // stream is being captured, or if recording and waiting fail. It then leaks what the exec holds,
  // reports that to deleter_options::on_error and counts it (deleter_stats::leaked). Execs that
  // share a slot or a moved-in owner then throw cuda_error until one is launched on that stream.
  ~stream_launcher();

  // Enqueues one run of the graph: graph_exec::launch(). Records it at once, as that does, for an
  // exec with conditional nodes or of a sharing_group, and on cudaStreamLegacy and
  // cudaStreamPerThread, which depend on the current device. It is so also while another exec or
  // hoisted::launch() shares with it what is written. Source: cudaGraphLaunch.
  void launch(source_location where = source_location::current());

  // The same with graph_exec::launch_many().
  void launch_many(std::size_t times, source_location where = source_location::current());

  // Records the launches so far, if they are not recorded. If that fails, waits until they are
  // done. Throws usage_error if there is one to record and the stream is being captured; cuda_error
  // if both fail. It can be called again then.
  void flush(source_location where = source_location::current());

  // Gives the exec back, after flush(). If that throws, the launcher keeps the exec.
  [[nodiscard]] graph_exec release(source_location where = source_location::current());

 private:
  [[nodiscard]] graph_exec::state& require(char const* call) const;
  void record(char const* call);

  stream_ref stream_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::uint64_t id_;  // the stream's; 0: each launch is recorded
  graph_exec exec_;   // moved from: released, or this was
};

}  // namespace escrow::inline v0_2
