// Serializes creation and destruction of related graphs and execs.
#pragma once

#include "escrow/api.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// What: serializes the calls that create or destroy related graphs and execs. CUDA links a graph to
//   its clones, its copies in child nodes, and the execs instantiated or updated from it, without a
//   lock: destroying one while another is created or destroyed corrupts the host heap (measured, in
//   plain CUDA too). Escrow holds this lock around its own calls. Direct calls need it if another
//   thread, e.g. Escrow's worker, may concurrently create or destroy a related one:
//   cudaGraphInstantiate..., cudaGraphClone, cudaGraphNodeFindInClone, cudaGraphAddChildGraphNode
//   (cudaGraphAddNode of a child), cudaGraphExecUpdate, cudaGraphExecChildGraphNodeSetParams,
//   cudaGraphExecDestroy, cudaGraphDestroy, cudaGraphDestroyNode; and cudaStreamEndCapture and
//   cudaStreamDestroy of an invalidated capture, which destroy its graph. Launches, and adding and
//   setting other nodes, do not need it. It does not include a relaxed_capture_scope.
// Thread safety: any thread. One lock per process, or per copy of this library. Recursive.
// Waits: for CUDA calls; CUDA serializes instantiating and destroying execs anyway (measured: same
//   rate with 8 threads as without the lock). While holding it, wait neither for another thread
//   (deleter::drain() does) nor for the GPU: cudaGraphExecDestroy of an exec with conditional nodes
//   waits for its launches and uploads, so wait for those first. Destroy callbacks of your own user
//   objects may run under it: they must take neither this lock nor one that is held while calling
//   Escrow.
// Lifetime: until the end of the scope, on one thread. Usable during exit.
// Capture: capture-safe.
class [[nodiscard]] ESCROW_API graph_lifetime_lock {
 public:
  graph_lifetime_lock() noexcept;
  graph_lifetime_lock(graph_lifetime_lock&&) = delete;
  ~graph_lifetime_lock();
};

}  // namespace escrow::inline v0_1
