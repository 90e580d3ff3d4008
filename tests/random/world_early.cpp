// Edges that wait for no more of a kernel than a point in it (programmatic dependent launch).
#include <algorithm>

#include "attempt.hpp"
#include "early_edges.hpp"

namespace escrow::test {

/// Whether what comes next on the stream runs beside a kernel of its capture.
bool world::is_beside_a_kernel(std::size_t stream) const {
  if (!capture_at(stream).is_active()) return false;
  return std::ranges::any_of(
      frontier_in(streams_[stream].handle).edges,
      [](cudaGraphEdgeData const& each) { return !is_same(each, full_edge); });
}

// Ways 0 to 2: the stream waits for the beginning, or the trigger, of the last kernels of another,
// as behind an event that they were launched with, and joins their capture; 3: it has a
// programmatic launch.
outcome world::do_wait_early(std::size_t at, std::size_t of, unsigned way) {
  capture_state const captured = capture_at(of);
  bool const is_fork = capture_at(at).is_none();
  if (at == of || at == 4 || !captured.is_active()) return outcome::skipped;
  if (!is_fork && capture_at(at).id != captured.id) return outcome::skipped;
  if (way == 3) {
    if (is_fork) return outcome::skipped;
    return enqueue(at, piece(at, {}), true) ? outcome::done : outcome::failed;
  }
  placed_edges before = frontier_in(streams_[of].handle);
  bool const are_kernels = std::ranges::all_of(before.nodes, [](cudaGraphNode_t each) {
    cudaGraphNodeType type{};
    must(cudaGraphNodeGetType(each, &type));
    return type == cudaGraphNodeTypeKernel;
  });
  if (before.nodes.empty() || !are_kernels) return outcome::skipped;
  if (is_fork) order(of, at);
  if (capture_at(at).id != captured.id) return outcome::failed;  // there is no event left
  std::vector<cudaGraphEdgeData> const edges(before.nodes.size(), early_edges.at(way));
  must(cudaStreamUpdateCaptureDependencies(
      streams_[at].handle, before.nodes.data(), edges.data(), before.nodes.size(),
      is_fork ? cudaStreamSetCaptureDependencies : cudaStreamAddCaptureDependencies));
  return outcome::done;
}

}  // namespace escrow::test
