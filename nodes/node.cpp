// Reading nodes back and changing them, in their graph or in an exec.

#include "escrow/core/error.hpp"
#include "escrow/nodes/build.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"

namespace escrow {

namespace {

// What a call of CUDA lists of a node.
template <class List>
std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t of, List list, char const* api) {
  std::size_t count = 0;
  check(list(of, nullptr, nullptr, &count), api);
  std::vector<cudaGraphNode_t> found(count);
  std::vector<cudaGraphEdgeData> data(count);  // without it programmatic edges are an error
  if (count != 0) check(list(of, found.data(), data.data(), &count), api);
  return found;
}

// What a call of CUDA reads of a node.
template <class Params>
Params read(cudaGraphNode_t of, cudaError_t (*get)(cudaGraphNode_t, Params*), char const* api) {
  Params result{};
  check(get(of, &result), api);
  return result;
}

cudaGraph_t embedded_in(cudaGraphNode_t child) {
  return read(child, &cudaGraphChildGraphNodeGetGraph, "cudaGraphChildGraphNodeGetGraph");
}

// The graph of a child node, with those of its own child nodes.
void list_copies(cudaGraph_t embedded, std::vector<cudaGraph_t>& found) {
  found.push_back(embedded);
  for (cudaGraph_t const inner : inner_graphs_of(embedded).children) list_copies(inner, found);
}

}  // namespace

cudaGraphNodeType node::type() const {
  static_cast<void>(require("node::type"));
  return read(get(), &cudaGraphNodeGetType, "cudaGraphNodeGetType");
}

std::vector<node> node::predecessors() const {
  static_cast<void>(require("node::predecessors"));
  return nodes_of(neighbours(get(), &cudaGraphNodeGetDependencies, "cudaGraphNodeGetDependencies"));
}

std::vector<node> node::successors() const {
  static_cast<void>(require("node::successors"));
  return nodes_of(
      neighbours(get(), &cudaGraphNodeGetDependentNodes, "cudaGraphNodeGetDependentNodes"));
}

node const& node::after(node const& other) const {
  graph_core& core = require("node::after");
  if (!is_of_same_graph(other)) {
    throw usage_error("node::after", "`other` is a node of another graph, or of another body",
                      "order nodes of one graph");
  }
  check(cudaGraphAddDependencies(in_, &other.after_, &after_, nullptr, 1),
        "cudaGraphAddDependencies");
  core.note_reshaped();
  return *this;
}

launch_params node::kernel_parameters() const {
  graph_core& core = require("node::kernel_parameters");
  cudaKernelNodeParams found{};
  cudaError_t const status = cudaGraphKernelNodeGetParams(get(), &found);
  // CUDA does not tell of a kernel of a cudaLibrary_t; the node may, but only where CUDA does not:
  // its handle may have been that of another node, which was destroyed by a plain call.
  launch_params const* const known = core.launched(get());
  if (status == cudaErrorInvalidDeviceFunction && known != nullptr) {
    static_cast<void>(cudaGetLastError());
    return *known;
  }
  check(status, "cudaGraphKernelNodeGetParams");
  return {kernel(found.func), found.gridDim, found.blockDim, found.sharedMemBytes};
}

cudaMemsetParams node::memset_parameters() const {
  static_cast<void>(require("node::memset_parameters"));
  return read(get(), &cudaGraphMemsetNodeGetParams, "cudaGraphMemsetNodeGetParams");
}

cudaMemcpy3DParms node::memcpy_parameters() const {
  static_cast<void>(require("node::memcpy_parameters"));
  return read(get(), &cudaGraphMemcpyNodeGetParams, "cudaGraphMemcpyNodeGetParams");
}

cudaHostNodeParams node::host_parameters() const {
  static_cast<void>(require("node::host_parameters"));
  return read(get(), &cudaGraphHostNodeGetParams, "cudaGraphHostNodeGetParams");
}

cudaEvent_t node::event() const {
  if (type() == cudaGraphNodeTypeEventRecord) {
    return read(get(), &cudaGraphEventRecordNodeGetEvent, "cudaGraphEventRecordNodeGetEvent");
  }
  return read(get(), &cudaGraphEventWaitNodeGetEvent, "cudaGraphEventWaitNodeGetEvent");
}

cudaMemAllocNodeParams node::alloc_parameters() const {
  static_cast<void>(require("node::alloc_parameters"));
  return read(get(), &cudaGraphMemAllocNodeGetParams, "cudaGraphMemAllocNodeGetParams");
}

void* node::freed() const {
  static_cast<void>(require("node::freed"));
  void* address = nullptr;
  check(cudaGraphMemFreeNodeGetParams(get(), &address), "cudaGraphMemFreeNodeGetParams");
  return address;
}

cudaGraph_t node::embedded() const {
  static_cast<void>(require("node::embedded").expose());
  return embedded_in(get());
}

void node::set_params(cudaGraphNodeParams& params, detail::node_payload payload) const {
  graph_->set(get(), params, std::move(payload));
}

deleter_core& node::core_in(graph_exec const& exec) const {
  constexpr char const* call = "set";
  std::shared_ptr<graph_core> const source = exec.source(call);
  bool const is_there = source != nullptr && source->native() != nullptr;
  if (is_there && core_.lock() == source) return source->keeper();
  throw usage_error(
      call, "the node is not of the graph that the exec was created from, or that is destroyed",
      "make the exec of a `graph`, and keep that while nodes of it are used");
}

void node::destroy() const {
  graph_core& core = require("node::destroy");
  if (type() == cudaGraphNodeTypeConditional) {
    throw usage_error("node::destroy", "the node is conditional",
                      "build the graph anew: CUDA cannot instantiate one whose condition has no "
                      "node");
  }
  std::vector<cudaGraph_t> copies;
  if (type() == cudaGraphNodeTypeGraph) list_copies(embedded_in(get()), copies);
  core.destroy(get());
  // Others may get their handles.
  for (cudaGraph_t const each : copies) core.blank_copies.erase(each);
}

}  // namespace escrow
