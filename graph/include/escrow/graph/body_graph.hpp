// The graph that a conditional node runs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "escrow/graph/insertion_point.hpp"

namespace escrow {

// What: the body of a conditional node, to which nodes are added as to a graph.
// Thread safety, Memory ordering, Capture, Errors: as insertion_point.
// Lifetime: a share of the graph that the body belongs to, which it keeps.
class body_graph : public insertion_point {
 public:
  // The CUDA handle, e.g. to capture into. Never owning. Throws as graph::get().
  [[nodiscard]] cudaGraph_t get() const;

  // As of graph.
  [[nodiscard]] std::vector<node> nodes() const;
  [[nodiscard]] std::vector<std::pair<node, node>> edges() const;

 private:
  friend class insertion_point;

  body_graph(std::shared_ptr<graph_core> core, cudaGraph_t body) noexcept
      : insertion_point(core, body), kept_(std::move(core)) {}

  std::shared_ptr<graph_core> kept_;
};

}  // namespace escrow
