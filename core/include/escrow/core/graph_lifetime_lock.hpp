// One thread at a time makes and ends graphs and execs, where CUDA lets several corrupt the heap.
#pragma once

namespace escrow {

// What: a turn of the calling thread among all that make or end members of a family: a graph, its
//   clones, its copies in child nodes, and the execs that were made of it or updated from it. CUDA
//   links each to the one it was made of, and guards the links by nothing: while one of a family
//   ends, or a node of the original is destroyed, no other may end, and none be made of that
//   original (measured: the host's heap is corrupted, in plain CUDA too). Launches, and what
//   else is done to graphs, e.g. adding and setting nodes, are no concern of it. Escrow takes a
//   turn around all such calls of its own. Plain ones need one if others may make or end something
//   of the same family meanwhile, and Escrow's worker may: cudaGraphInstantiate..., cudaGraphClone,
//   cudaGraphNodeFindInClone, cudaGraphAddChildGraphNode (cudaGraphAddNode of a child),
//   cudaGraphExecUpdate, cudaGraphExecChildGraphNodeSetParams, cudaGraphExecDestroy,
//   cudaGraphDestroy, cudaGraphDestroyNode; and cudaStreamEndCapture and cudaStreamDestroy of a
//   capture that was lost, whose graph they end. A turn does not stand in for Relaxed mode
//   (relaxed_capture_scope).
// Thread safety: any thread. One turn at a time in the process, or of those that share one copy of
//   this library; turns nest.
// Memory ordering: what happened in earlier turns happens before this one.
// Waits: for calls of CUDA. Instantiating and destroying execs is one at a time inside CUDA anyway:
//   as many a second are made with turns as without (measured, 8 threads). Wait for no other thread
//   inside a turn (deleter::drain() is such a wait), nor for the GPU: cudaGraphExecDestroy of an
//   exec with conditional nodes waits for its launches and uploads, so wait for those before.
//   Destroy callbacks of one's own user objects may run inside one: they take no turn, and no lock
//   under which others call Escrow.
// Lifetime: until the end of the scope, on one thread. Usable while the process exits.
// Capture: capture-safe.
// Errors: none.
class [[nodiscard]] graph_lifetime_lock {
 public:
  graph_lifetime_lock() noexcept;
  graph_lifetime_lock(graph_lifetime_lock&&) = delete;
  ~graph_lifetime_lock();
};

}  // namespace escrow
