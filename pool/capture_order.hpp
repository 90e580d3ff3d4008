// Which work of a capture comes before other work of it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "escrow/core/stream.hpp"

namespace escrow {

// Where the next operation on a capturing stream is placed.
struct capture_frontier {
  std::vector<cudaGraphNode_t> nodes;  // that it comes after
  std::size_t ended = 0;               // for the end of so many of them, the first, it waits
};

// The frontier of the capturing `stream`. Throws cuda_error, std::bad_alloc. Source:
// cudaStreamGetCaptureInfo.
[[nodiscard]] capture_frontier frontier_of(stream_ref stream);

// Adds to `frontier` the nodes of `more` that it lacks.
void merge_frontier(std::vector<cudaGraphNode_t>& frontier,
                    std::vector<cudaGraphNode_t> const& more);

// Where some work lies in a graph: between the nodes `from`, which are older, and the nodes `to`.
struct captured_span {
  std::vector<cudaGraphNode_t> const* from;
  std::vector<cudaGraphNode_t> const* to;
};

// The last one of `spans` whose nodes `to` have all ended before what is placed at `frontier`
// begins; nothing if there is none. Walks the graph backwards, a step on each path at a time, and
// takes the first that it comes to, not beyond nodes that are older than all spans; nor beyond an
// edge that does not wait for the end of a kernel, unless what is behind it ends after that (a
// programmatic launch). Gives up after some thousands of nodes, which is always safe. Calls CUDA
// only for `frontier` and what it comes to, so that the spans' nodes may be gone. Throws
// cuda_error, std::bad_alloc. Source: cudaGraphNodeGetDependencies, which may be called on a graph
// that is being captured.
[[nodiscard]] std::optional<std::size_t> last_before(capture_frontier const& frontier,
                                                     std::vector<captured_span> const& spans);

// What each of `nodes` depends on, and by which edges, in a form to compare: a node that stands for
// another one, under the same handle, is told by it. Throws cuda_error, std::bad_alloc.
using dependency_list = std::vector<std::pair<cudaGraphNode_t, unsigned>>;
[[nodiscard]] dependency_list dependencies_of(std::vector<cudaGraphNode_t> const& nodes);

// Whether all `nodes`, which may be gone, are nodes of `graph`. Looks at all that it has. Throws
// cuda_error, std::bad_alloc. Source: cudaGraphGetNodes.
[[nodiscard]] bool has_all(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes);

}  // namespace escrow
