// Edges behind a kernel that do not wait for its end (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <vector>

#include "kernels.hpp"
#include "status.hpp"

namespace escrow::test {

[[nodiscard]] constexpr cudaGraphEdgeData edge_of(unsigned char port, unsigned char type) {
  cudaGraphEdgeData edge{};
  edge.from_port = port;
  edge.type = type;
  return edge;
}

inline constexpr cudaGraphEdgeData full_edge{};
/// Waits until all blocks of the kernel have begun.
inline constexpr cudaGraphEdgeData launch_completion_edge =
    edge_of(cudaGraphKernelNodePortLaunchCompletion, cudaGraphDependencyTypeDefault);
/// The same for a kernel that synchronizes with the end of the first one itself.
inline constexpr cudaGraphEdgeData block_start_edge =
    edge_of(cudaGraphKernelNodePortLaunchCompletion, cudaGraphDependencyTypeProgrammatic);
/// Waits until all blocks of the kernel have triggered.
inline constexpr cudaGraphEdgeData trigger_edge =
    edge_of(cudaGraphKernelNodePortProgrammatic, cudaGraphDependencyTypeProgrammatic);
/// All that CUDA knows.
inline constexpr std::array early_edges{launch_completion_edge, block_start_edge, trigger_edge};

[[nodiscard]] inline bool is_same(cudaGraphEdgeData const& one, cudaGraphEdgeData const& other) {
  return one.from_port == other.from_port && one.to_port == other.to_port && one.type == other.type;
}

/// Lets a kernel begin when the kernel in front of it has triggered.
[[nodiscard]] inline cudaLaunchAttribute programmatic_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

/// A kernel that does nothing, launched so.
[[nodiscard]] inline cudaError_t launch_programmatically(cudaStream_t stream) {
  cudaLaunchAttribute attribute = programmatic_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = 1;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel_address(kernel_id::tiny), nullptr);
}

/// What the next operation on a capturing stream comes after.
struct placed_edges {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};

[[nodiscard]] inline placed_edges frontier_in(cudaStream_t capturing) {
  cudaStreamCaptureStatus status{};
  cudaGraphNode_t const* nodes = nullptr;
  cudaGraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
  must(cudaStreamGetCaptureInfo(capturing, &status, nullptr, nullptr, &nodes, &edges, &count));
  return {{nodes, nodes + count}, {edges, edges + count}};
}

/// Makes what comes next on a capturing stream wait for no more of the kernels in front of it than
/// `edge` says, as it is behind an event that such a kernel was launched with.
inline void wait_early(cudaStream_t capturing, cudaGraphEdgeData const& edge) {
  placed_edges at = frontier_in(capturing);
  std::vector<cudaGraphEdgeData> const early(at.nodes.size(), edge);
  must(cudaStreamUpdateCaptureDependencies(capturing, at.nodes.data(), early.data(),
                                           at.nodes.size(), cudaStreamSetCaptureDependencies));
}

}  // namespace escrow::test
