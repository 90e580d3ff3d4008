// The kernels of a graph: a straight line of them, or several lines side by side.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "handles.hpp"

namespace escrow::bench {

// Lines of tiny kernels that run side by side.
struct shape {
  char const* name;  // as it stands in the names of benchmarks
  int branches;
  int kernels;  // in each of them
};

inline constexpr shape line_of_8{"kernels:8", 1, 8};

// What: enqueues a shape on a stream, with streams of its own for all branches but the first.
// Lifetime: must outlive a capture that it enqueues in, for the sake of these streams.
class work {
 public:
  explicit work(shape const& of);

  void enqueue(cudaStream_t stream);

 private:
  void enqueue_line(cudaStream_t stream) const;

  int kernels_;
  test::owned_event fork_;
  std::vector<test::owned_stream> side_streams_;
  std::vector<test::owned_event> joins_;  // one for each side stream
};

// Captures what `enqueue` enqueues on `stream`, with plain CUDA calls.
[[nodiscard]] test::owned_graph captured(cudaStream_t stream, std::function<void()> const& enqueue);
// Captures the shape and nothing else.
[[nodiscard]] test::owned_graph captured(cudaStream_t stream, shape const& of);

}  // namespace escrow::bench
