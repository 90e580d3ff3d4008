// Rows of child nodes: made, instantiated, and destroyed in flight.
#include "exec_row.hpp"

#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

namespace {

// A graph that lives as long as this.
struct temporary_graph {
  temporary_graph() { check(cudaGraphCreate(&graph, 0), "cudaGraphCreate"); }
  temporary_graph(temporary_graph&&) = delete;
  ~temporary_graph() { destroy_graph(graph); }

  cudaGraph_t graph = nullptr;
};

}  // namespace

exec_row::exec_row(exec_row&& other) noexcept
    : wanted_(other.wanted_), flags_(other.flags_), exec_(std::exchange(other.exec_, nullptr)) {}

exec_row& exec_row::operator=(exec_row&& other) noexcept {
  std::swap(wanted_, other.wanted_);
  std::swap(flags_, other.flags_);
  std::swap(exec_, other.exec_);
  return *this;
}

exec_row::~exec_row() {
  drop();
}

void exec_row::drop() noexcept {
  destroy_exec(std::exchange(exec_, nullptr));
}

exec_row exec_row::of(cudaGraph_t graph) const {
  exec_row made(wanted_, flags_);
  if (wanted_ < 2) return made;
  temporary_graph const row;
  cudaGraphNode_t last = nullptr;
  for (std::size_t i = 0; i < wanted_; ++i) {
    cudaGraphNode_t const before = last;
    cudaError_t const status = call_aside([&] {
      graph_lifetime_lock const lock;
      return cudaGraphAddChildGraphNode(&last, row.graph, &before, i == 0 ? 0 : 1, graph);
    });
    if (status == cudaErrorNotSupported) return made;
    check(status, "cudaGraphAddChildGraphNode");
  }
  cudaError_t const status = call_aside([&] {
    graph_lifetime_lock const lock;
    return cudaGraphInstantiate(&made.exec_, row.graph, flags_);
  });
  if (status != cudaErrorNotSupported) check(status, "cudaGraphInstantiate");
  return made;
}

}  // namespace escrow::inline v0_1
