// Reads nodes, edges, functions and attributes from CUDA, and compares them.
#include "graph_shape.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_query.hpp"

namespace escrow::inline v0_1 {

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

std::string about_node(std::size_t node, char const* problem) {
  return "node " + std::to_string(node) + " of the graph " + problem;
}

}  // namespace

graph_shape::graph_shape(cudaGraph_t graph, unsigned long long flags) : flags_(flags) {
  add(graph);
}

template <class Value>
bool graph_shape::add_fact(std::size_t node, char const* said, Value const& value, int id) {
  fact& added = facts_.emplace_back(fact{node, said, id, {}});
  static_assert(sizeof(value) <= sizeof(added.value));
  std::memcpy(added.value.data(), &value, sizeof(value));
  return added.value != fact{}.value;
}

void graph_shape::object(std::size_t node, char const* problem) {
  if (obstacle_.empty()) obstacle_ = about_node(node, problem);
}

void graph_shape::add(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> const handles = nodes_of(graph);
  std::size_t const first = nodes_;
  nodes_ += handles.size();
  std::vector<cudaGraph_t> children;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(handles[i], &type), "cudaGraphNodeGetType");
    add_fact(first + i, "is of another type", type);
    if (!is_updated_reliably(type)) {
      object(first + i, "is of a kind whose exec no other graph can use, e.g. conditional, memory");
    }
    if (type == cudaGraphNodeTypeKernel) add_kernel(first + i, handles[i]);
    if (type != cudaGraphNodeTypeGraph) continue;
    check(cudaGraphChildGraphNodeGetGraph(handles[i], &children.emplace_back()),
          "cudaGraphChildGraphNodeGetGraph");
  }
  add_edges(graph, handles, first);
  for (cudaGraph_t const each : children) add(each);
}

void graph_shape::add_edges(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes,
                            std::size_t first) {
  std::unordered_map<cudaGraphNode_t, std::size_t> positions;
  for (std::size_t i = 0; i < nodes.size(); ++i) positions.emplace(nodes[i], first + i);
  auto const [from, to, data] = edges_of(graph);
  for (std::size_t i = 0; i < data.size(); ++i) {
    std::array<std::size_t, 4> const edge{positions.at(from[i]), data[i].from_port, data[i].to_port,
                                          data[i].type};
    add_fact(positions.at(to[i]), "has other edges", edge);
  }
}

void graph_shape::add_kernel(std::size_t node, cudaGraphNode_t handle) {
  static node_functions const driver;
  constexpr int ids_max = 24;  // CUDA 13.0 has 16
  // In headers from CUDA 12.0, 12.8 and 12.4 on.
  constexpr int cluster = 4;
  constexpr int preferred_cluster = 11;
  constexpr int device_updatable = 13;
  CUDA_KERNEL_NODE_PARAMS params{};
  check_driver(driver.params(handle, &params), "cuGraphKernelNodeGetParams");
  // A function is of a module, and thus of a context.
  add_fact(node, "has another kernel",
           std::array<void const*, 3>{params.func, params.kern, params.ctx});
  bool const is_first = readable_.none();
  bool has_clusters = false;
  for (int id = 1; id < ids_max; ++id) {
    auto is_readable = readable_[static_cast<std::size_t>(id)];
    if (!is_first && !is_readable) continue;
    CUlaunchAttributeValue value{};
    CUresult const result = driver.attribute(handle, static_cast<CUlaunchAttributeID>(id), &value);
    bool const is_told = result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_NOT_SUPPORTED;
    if (is_told) check_driver(result, "cuGraphKernelNodeGetAttribute");
    if (is_first) is_readable = is_told;
    if (!is_told && !is_first) object(node, "has a launch attribute that CUDA does not tell");
    bool const is_set = add_fact(node, "has other launch attributes", value, id);
    if (!is_set) facts_.pop_back();  // as most are
    if (is_set && id == device_updatable) object(node, "can be updated by the device");
    if (is_set && id == cluster) has_clusters = true;
  }
  if (has_clusters && !readable_[preferred_cluster] && may_prefer_clusters()) {
    object(node, "runs in clusters, whose preferred size CUDA does not tell and an update keeps");
  }
}

graph_shape::difference graph_shape::compare(graph_shape const& other) const {
  if (flags_ != other.flags_) return {0, "the flags of the instantiation differ"};
  if (nodes_ != other.nodes_) {
    return {0, "the graph has " + std::to_string(other.nodes_) + " nodes, not " +
                   std::to_string(nodes_)};
  }
  auto const [one, its] = std::ranges::mismatch(facts_, other.facts_);
  auto const agreement = static_cast<std::size_t>(one - facts_.begin());
  bool const is_end = one == facts_.end();
  if (is_end && its == other.facts_.end()) {
    return {agreement, readable_ == other.readable_ ? "" : "CUDA tells other launch attributes"};
  }
  fact const& found = is_end ? *its : *one;
  return {agreement, about_node(found.node, found.said)};
}

}  // namespace escrow::inline v0_1
