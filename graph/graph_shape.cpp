// Reads nodes, edges, functions and attributes from CUDA, and compares them.
#include "graph_shape.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/detail/driver.hpp"
#include "escrow/detail/graph_query.hpp"

namespace escrow::inline v0_1 {

namespace {

constexpr int ids_max = 24;  // CUDA 13.0 has 16
// In headers from CUDA 12.0, 12.8 and 12.4 on.
constexpr int cluster = 4;
constexpr int preferred_cluster = 11;
constexpr int device_updatable = 13;

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

std::string about_node(std::size_t position, char const* problem) {
  return "node " + std::to_string(position) + " of the graph " + problem;
}

}  // namespace

graph_shape::graph_shape(cudaGraph_t graph, unsigned long long flags) : flags_(flags) {
  add(graph);
}

void graph_shape::object(char const* problem) {
  if (obstacle_.empty()) obstacle_ = about_node(nodes_.size() - 1, problem);
}

void graph_shape::add(cudaGraph_t graph) {
  std::size_t const first = nodes_.size();
  std::vector<cudaGraphNode_t> const handles = nodes_of(graph);
  for (cudaGraphNode_t const each : handles) {
    node& added = nodes_.emplace_back();
    check(cudaGraphNodeGetType(each, &added.type), "cudaGraphNodeGetType");
    if (added.type == cudaGraphNodeTypeKernel) add_kernel(each);
    if (!is_updated_reliably(added.type)) {
      object("is of a kind whose exec no other graph can use, e.g. conditional or memory");
    }
  }
  add_edges(graph, handles, first);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (nodes_[first + i].type != cudaGraphNodeTypeGraph) continue;
    cudaGraph_t child = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(handles[i], &child), "cudaGraphChildGraphNodeGetGraph");
    add(child);
  }
}

void graph_shape::add_edges(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes,
                            std::size_t first) {
  constexpr char const* api = "cudaGraphGetEdges";
  std::unordered_map<cudaGraphNode_t, std::size_t> positions;
  for (std::size_t i = 0; i < nodes.size(); ++i) positions.emplace(nodes[i], first + i);
  std::size_t count = 0;
  check(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), api);
  std::vector<cudaGraphNode_t> from(count);
  std::vector<cudaGraphNode_t> to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count != 0) check(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), api);
  for (std::size_t i = 0; i < count; ++i) {
    edges_.push_back({positions.at(from[i]),
                      positions.at(to[i]),
                      {data[i].from_port, data[i].to_port, data[i].type}});
  }
}

template <class Value>
bool graph_shape::add_attribute(int id, Value const& value) {
  attribute added{nodes_.size() - 1, id, {}};
  static_assert(sizeof(value) <= sizeof(added.value));
  std::memcpy(added.value.data(), &value, sizeof(value));
  if (added.value == attribute{}.value) return false;
  attributes_.push_back(added);
  return true;
}

void graph_shape::add_kernel(cudaGraphNode_t handle) {
  static node_functions const driver;
  node& added = nodes_.back();
  CUDA_KERNEL_NODE_PARAMS params{};
  check_driver(driver.params(handle, &params), "cuGraphKernelNodeGetParams");
  added.function = params.func != nullptr ? static_cast<void const*>(params.func) : params.kern;
  added.context = params.ctx;
  bool has_clusters = false;
  std::uint32_t readable = 0;  // a bit for each id
  for (int id = 1; id < ids_max; ++id) {
    CUlaunchAttributeValue value{};
    CUresult const result = driver.attribute(handle, static_cast<CUlaunchAttributeID>(id), &value);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) continue;
    check_driver(result, "cuGraphKernelNodeGetAttribute");
    readable |= 1U << static_cast<unsigned>(id);
    if (!add_attribute(id, value)) continue;
    if (id == cluster) has_clusters = true;
    if (id == device_updatable) object("can be updated by the device, and so its exec by no graph");
  }
  add_attribute(0, readable);  // the id of none
  bool const is_preference_known = (readable >> preferred_cluster & 1U) != 0;
  if (has_clusters && !is_preference_known && may_prefer_clusters()) {
    object("runs in clusters, whose preferred size CUDA does not tell and an update keeps");
  }
}

graph_shape::difference graph_shape::compare(graph_shape const& other) const {
  std::size_t const count = nodes_.size();
  if (flags_ != other.flags_) return {0, "the flags of the instantiation differ"};
  if (count != other.nodes_.size()) {
    return {0, "the graph has " + std::to_string(other.nodes_.size()) + " nodes, not " +
                   std::to_string(count)};
  }
  for (std::size_t i = 0; i < count; ++i) {
    node const& one = nodes_[i];
    node const& its = other.nodes_[i];
    if (one.type != its.type) return {i, about_node(i, "is of another type")};
    if (one.function != its.function || one.context != its.context) {
      return {i, about_node(i, "has another kernel")};
    }
  }
  if (edges_ != other.edges_) return {count, "the edges differ"};
  auto const [one, its] = std::ranges::mismatch(attributes_, other.attributes_);
  std::size_t const at = std::min(one == attributes_.end() ? count : one->node,
                                  its == other.attributes_.end() ? count : its->node);
  if (at == count) return {2 * count, ""};
  return {count + at, about_node(at, "has other launch attributes")};
}

}  // namespace escrow::inline v0_1
