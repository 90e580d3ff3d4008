// Reading nodes back and changing them.
#include "escrow/graph/node.hpp"

#include "escrow/core/error.hpp"
#include "escrow/graph/body_graph.hpp"
#include "escrow/graph/library.hpp"
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

release_hub& node::keeper(char const* call) const {
  return keeper_of(require(call));
}

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
  if (other.in_ != in_ || other.core_.lock().get() != &core) {
    throw usage_error("node::after", "`other` is a node of another graph, or of another body",
                      "order nodes of one graph");
  }
  check(cudaGraphAddDependencies(in_, &other.after_, &after_, nullptr, 1),
        "cudaGraphAddDependencies");
  core.note_reshaped();
  return *this;
}

launch_params node::launch_parameters() const {
  graph_core& core = require("node::launch_parameters");
  if (launch_params const* const known = core.launched(get())) return *known;
  auto const found = read(get(), &cudaGraphKernelNodeGetParams, "cudaGraphKernelNodeGetParams");
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

cudaHostNodeParams node::call_parameters() const {
  static_cast<void>(require("node::call_parameters"));
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

bool node::set(cudaGraphNodeParams& params, detail::node_payload payload) const {
  require("node::set").set(get(), params, std::move(payload));
  return true;
}

void node::set_call(cudaHostFn_t function, void const* data, std::size_t bytes) const {
  detail::apply_call(keeper("node::set_call"), setting(), function, data, bytes);
}

auto node::event_params() const -> cudaGraphNodeParams (*)(cudaEvent_t) {
  return type() == cudaGraphNodeTypeEventRecord ? &detail::record_params : &detail::wait_params;
}

void node::set_event(shared_event event) const {
  detail::apply_event(keeper("node::set_event"), setting(), event_params(), std::move(event));
}

void node::set_event(event_ref event) const {
  detail::apply_event(keeper("node::set_event"), setting(), event_params(), event);
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

cudaGraph_t body_graph::get() const {
  static_cast<void>(require("body_graph::get").expose());
  return in_;
}

std::vector<node> body_graph::nodes() const {
  static_cast<void>(require("body_graph::nodes"));
  return nodes_of(escrow::nodes_of(in_));
}

std::vector<std::pair<node, node>> body_graph::edges() const {
  static_cast<void>(require("body_graph::edges"));
  std::vector<std::pair<node, node>> result;
  for (graph_edge const& each : edges_of(in_)) {
    result.emplace_back(node_of(each.from), node_of(each.to));
  }
  return result;
}

}  // namespace escrow
