// One thread at a time creates and destroys related graphs and execs.
#pragma once

namespace escrow {

// What: serializes the calls that create or destroy related graphs and execs. CUDA links a graph to
//   its clones, its copies in child nodes, and the execs instantiated or updated from it, without a
//   lock: destroying one of them while another is created or destroyed corrupts the host's heap
//   (measured, in plain CUDA too). Escrow holds this lock around its own calls. Direct calls need
//   it if another thread, as Escrow's worker, may create or destroy a related one meanwhile:
//   cudaGraphInstantiate..., cudaGraphClone, cudaGraphNodeFindInClone, cudaGraphAddChildGraphNode
//   (cudaGraphAddNode of a child), cudaGraphExecUpdate, cudaGraphExecChildGraphNodeSetParams,
//   cudaGraphExecDestroy, cudaGraphDestroy, cudaGraphDestroyNode; and cudaStreamEndCapture and
//   cudaStreamDestroy of an invalidated capture, whose graph they destroy. Launches, and adding and
//   setting nodes, need none. It is no relaxed_capture_scope.
// Thread safety: any thread. One lock in the process, or for each copy of this library. A thread
//   may lock it again.
// Waits: for calls of CUDA, which serializes instantiating and destroying execs anyway (measured:
//   as many a second with 8 threads as without the lock). Under it, wait for no other thread
//   (deleter::drain() does) and not for the GPU: cudaGraphExecDestroy of an exec with conditional
//   nodes waits for its launches and uploads, so wait for those before. Destroy callbacks of your
//   own user objects may run under it: in them, take neither this lock nor one under which another
//   thread calls Escrow.
// Lifetime: until the end of the scope, on one thread. Usable while the process exits.
// Capture: capture-safe.
class [[nodiscard]] graph_lifetime_lock {
 public:
  graph_lifetime_lock() noexcept;
  graph_lifetime_lock(graph_lifetime_lock&&) = delete;
  ~graph_lifetime_lock();
};

}  // namespace escrow
