// The value that a conditional node looks at.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace escrow {

class graph_core;

// What: a condition for one conditional node of one graph. Kernels of the graph set it
//   (cudaGraphSetConditional); get() is what they take.
// Thread safety: a value.
// Memory ordering: CUDA's.
// Lifetime: the graph's; does not keep it.
// Capture: none.
// Errors: none.
class condition {
 public:
  [[nodiscard]] cudaGraphConditionalHandle get() const noexcept { return handle_; }

 private:
  friend class insertion_point;

  condition(cudaGraphConditionalHandle handle, cudaGraph_t in,
            std::weak_ptr<graph_core> core) noexcept
      : handle_(handle), in_(in), core_(std::move(core)) {}

  cudaGraphConditionalHandle handle_;
  cudaGraph_t in_;
  std::weak_ptr<graph_core> core_;
};

}  // namespace escrow
