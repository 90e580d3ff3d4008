// Threads that create and destroy graphs while somebody else launches.
#pragma once

#include <memory>

namespace escrow::bench {

// What: from its making to its end, a thread creates and destroys 1,000 graphs a second: it makes a
//   block of 1 MiB (cudaMalloc), captures 8 kernels, instantiates, and destroys exec and graph. A
//   second thread frees the blocks (cudaFree), each once its graph is gone.
// Thread safety: one thread.
// Lifetime: the destructor ends and joins the threads.
// Errors: what a thread throws comes out of end().
class graph_churn {
 public:
  virtual ~graph_churn() = default;
  // Ends it and returns how many graphs there were.
  [[nodiscard]] virtual int end() = 0;
};

// With plain CUDA calls alone: nothing is held, and the blocks go to a freeing thread by a queue.
[[nodiscard]] std::unique_ptr<graph_churn> plain_churn();
// With Escrow: the capture claims a slot from a pool too and retires the block, graph_exec
// instantiates, and the deleter's worker recycles the slot and frees the block.
[[nodiscard]] std::unique_ptr<graph_churn> escrow_churn();

}  // namespace escrow::bench
