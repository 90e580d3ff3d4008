// SPDX-License-Identifier: Apache-2.0
// Reads nodes, edges, functions and attributes from CUDA, and compares them.
#include "graph_shape.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"

namespace escrow::inline v0_2 {

namespace {

// The runtime knows no function of another module (measured: cudaErrorInvalidDeviceFunction).
struct node_functions {
  CUresult(CUDAAPI* params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) =
      find_in_driver<decltype(params)>("cuGraphKernelNodeGetParams", 12000);
  CUresult(CUDAAPI* attribute)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*) =
      find_in_driver<decltype(attribute)>("cuGraphKernelNodeGetAttribute", 11080);
};

bool is_updated_reliably(cudaGraphNodeType type) {
  constexpr std::array known{cudaGraphNodeTypeKernel,    cudaGraphNodeTypeMemcpy,
                             cudaGraphNodeTypeMemset,    cudaGraphNodeTypeHost,
                             cudaGraphNodeTypeGraph,     cudaGraphNodeTypeEmpty,
                             cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeEventRecord};
  return std::ranges::find(known, type) != known.end();
}

// Devices before compute capability 10 form no preferred clusters.
bool may_prefer_clusters() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
    if (major >= 10) return true;
  }
  return false;
}

// In headers from CUDA 12.0, 12.8 and 12.4 on.
constexpr std::size_t cluster_id = 4;
constexpr std::size_t preferred_cluster_id = 11;
constexpr std::size_t device_updatable_id = 13;

bool is_known(CUresult answer) {
  return answer != CUDA_ERROR_INVALID_VALUE && answer != CUDA_ERROR_NOT_SUPPORTED;
}

void object(graph_shape& shape, std::size_t node, char const* problem) {
  if (!shape.obstacle.empty()) return;
  shape.obstacle = "node " + std::to_string(node) + " of the graph " + problem;
}

template <class Value>
void append(std::string& bytes, Value const& value) {
  bytes.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

void add_edges(graph_shape& shape, cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes) {
  std::unordered_map<cudaGraphNode_t, std::size_t> positions;
  for (std::size_t i = 0; i < nodes.size(); ++i) positions.emplace(nodes[i], i);
  auto const [from, to, data] = edges_of(graph);
  append(shape.edges, data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    append(shape.edges, std::array{positions.at(from[i]), positions.at(to[i])});
    append(shape.edges, std::array{data[i].from_port, data[i].to_port, data[i].type});
  }
}

void add_kernel(graph_shape& shape, cudaGraphNode_t handle, std::size_t node) {
  static node_functions const driver;
  constexpr std::size_t ids_max = 24;  // CUDA 13.0 has 16
  CUDA_KERNEL_NODE_PARAMS params{};
  check_driver(driver.params(handle, &params), "cuGraphKernelNodeGetParams");
  // A function is of a module, and thus of a context.
  append(shape.kernels, std::array<void const*, 3>{params.func, params.kern, params.ctx});
  std::bitset<ids_max> is_told;
  std::bitset<ids_max> is_set;
  for (std::size_t id = 1; id < ids_max; ++id) {
    CUlaunchAttributeValue value{};
    CUresult const result = driver.attribute(handle, static_cast<CUlaunchAttributeID>(id), &value);
    is_told[id] = is_known(result);
    if (is_told[id]) check_driver(result, "cuGraphKernelNodeGetAttribute");
    constexpr CUlaunchAttributeValue unset{};
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison,cert-*): all its bytes
    is_set[id] = std::memcmp(&value, &unset, sizeof(value)) != 0;
    if (is_set[id]) append(shape.attributes, value);  // most are not
  }
  append(shape.attributes, std::array{is_told.to_ulong(), is_set.to_ulong()});
  if (is_set[device_updatable_id]) object(shape, node, "can be updated by the device");
  if (is_set[cluster_id] && !is_told[preferred_cluster_id] && may_prefer_clusters()) {
    object(shape, node,
           "runs in clusters, whose preferred size CUDA does not tell and an update keeps");
  }
}

// Returns the number of the next graph's first node; this one's is `first`.
std::size_t add(graph_shape& shape, cudaGraph_t graph, std::size_t first) {
  std::vector<cudaGraphNode_t> const nodes = nodes_of(graph);
  append(shape.types, nodes.size());
  std::vector<cudaGraph_t> children;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    cudaGraphNodeType const type = type_of(nodes[i]);
    append(shape.types, type);
    if (!is_updated_reliably(type)) {
      object(shape, first + i,
             "is of a kind whose exec no other graph can use, e.g. conditional, memory");
    }
    if (type == cudaGraphNodeTypeKernel) add_kernel(shape, nodes[i], first + i);
    if (type != cudaGraphNodeTypeGraph) continue;
    check(cudaGraphChildGraphNodeGetGraph(nodes[i], &children.emplace_back()),
          "cudaGraphChildGraphNodeGetGraph");
  }
  add_edges(shape, graph, nodes);
  std::size_t next = first + nodes.size();
  for (cudaGraph_t const each : children) next = add(shape, each, next);
  return next;
}

}  // namespace

void add_clusters(kernel_clusters& to, std::vector<cudaGraphNode_t> const& kernels) {
  static node_functions const driver;
  for (cudaGraphNode_t const each : kernels) {
    CUlaunchAttributeValue value{};
    auto const ask = [&] {
      return driver.attribute(each, static_cast<CUlaunchAttributeID>(cluster_id), &value);
    };
    CUresult result = ask();
    if (!is_known(result)) result = ask();  // a failure does not repeat
    if (is_known(result)) check_driver(result, "cuGraphKernelNodeGetAttribute");
    auto const& size = value.clusterDim;
    if (size.x != 0) to.all.push_back({to.kernels, {size.x, size.y, size.z}});
    ++to.kernels;
  }
}

void add_order(kernel_clusters& to, cudaGraph_t graph) {
  graph_shape const shape = shape_of(graph, 0);
  to.order.append(shape.types).append(shape.edges);
}

graph_shape shape_of(cudaGraph_t graph, unsigned long long flags) {
  graph_shape shape;
  shape.flags = flags;
  add(shape, graph, 0);
  return shape;
}

std::string graph_shape::difference_from(graph_shape const& other) const {
  if (flags != other.flags) return "the flags of its instantiation differ";
  if (types != other.types) return "the number or the types of its nodes differ";
  if (edges != other.edges) return "its edges differ";
  if (kernels != other.kernels) return "its kernels differ";
  return attributes != other.attributes ? "its launch attributes differ" : "";
}

}  // namespace escrow::inline v0_2
