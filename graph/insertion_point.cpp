// Adding nodes; what they keep is graph_core's.
#include "escrow/graph/insertion_point.hpp"

#include <string>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/graph/allocation.hpp"
#include "escrow/graph/conditional_node.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/graph/node.hpp"
#include "graph_core.hpp"

namespace escrow {

graph_core& insertion_point::require(char const* call) const {
  if (!core_.expired() && graph_->native() != nullptr) return *graph_;
  throw usage_error(call, "the graph is gone: it ended, or was moved from or detached",
                    "keep the graph while nodes of it are used");
}

node insertion_point::node_of(cudaGraphNode_t made) const noexcept {
  return node(insertion_point(*this, made));
}

std::vector<node> insertion_point::nodes_of(std::vector<cudaGraphNode_t> const& found) const {
  std::vector<node> result;
  result.reserve(found.size());
  for (cudaGraphNode_t const each : found) result.push_back(node_of(each));
  return result;
}

release_hub& insertion_point::keeper_of(graph_core& core) {
  return core.keeper();
}

node insertion_point::add(graph_core& core, cudaGraphNodeParams& params,
                          detail::node_payload payload) const {
  std::size_t const count = after_ == nullptr ? 0 : 1;
  return node_of(core.add(in_, {&after_, count}, params, std::move(payload)));
}

node insertion_point::join(std::initializer_list<node> others) const {
  return join(std::vector<node>(others));
}

node insertion_point::join(std::vector<node> const& others) const {
  constexpr char const* call = "node::join";
  graph_core& core = require(call);
  std::vector<cudaGraphNode_t> after;
  if (after_ != nullptr) after.push_back(after_);
  for (node const& each : others) {
    if (each.in_ != in_ || each.core_.lock().get() != &core) {
      throw usage_error(call, "one of `others` is a node of another graph, or of another body",
                        "join nodes of one graph");
    }
    if (each.after_ != after_) after.push_back(each.after_);
  }
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeEmpty;
  return node_of(core.add(in_, after, params, {}));
}

allocation insertion_point::alloc(std::size_t bytes) const {
  graph_core& core = require("node::alloc");
  if (bytes == 0) throw usage_error("node::alloc", "`bytes` is 0", "leave the node out");
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeMemAlloc;
  params.alloc.poolProps.allocType = cudaMemAllocationTypePinned;
  params.alloc.poolProps.location = {cudaMemLocationTypeDevice, current_device()};
  params.alloc.bytesize = bytes;
  node const made = add(core, params, {});
  return allocation(made, params.alloc.dptr, bytes);
}

node insertion_point::free(void* address) const {
  graph_core& core = require("node::free");
  if (address == nullptr) {
    throw usage_error("node::free", "`address` is null", "free what a node allocates");
  }
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeMemFree;
  params.free.dptr = address;
  return add(core, params, {});
}

node insertion_point::free(allocation const& allocated) const {
  return free(allocated.address());
}

node insertion_point::embed(graph const& child) const {
  graph_core& core = require("node::embed");
  return node_of(child.embed_in("node::embed", core, in_, {&after_, after_ == nullptr ? 0U : 1U}));
}

node insertion_point::call(cudaHostFn_t function, void const* data, std::size_t bytes) const {
  return adding("node::call", [&](release_hub& keeper, auto apply) {
    return detail::apply_call(keeper, apply, function, data, bytes);
  });
}

node insertion_point::record(shared_event event) const {
  return adding("node::record", [&](release_hub& keeper, auto apply) {
    return detail::apply_event(keeper, apply, &detail::record_params, std::move(event));
  });
}

node insertion_point::record(event_ref event) const {
  return adding("node::record", [&](release_hub& keeper, auto apply) {
    return detail::apply_event(keeper, apply, &detail::record_params, event);
  });
}

node insertion_point::wait(shared_event event) const {
  return adding("node::wait", [&](release_hub& keeper, auto apply) {
    return detail::apply_event(keeper, apply, &detail::wait_params, std::move(event));
  });
}

node insertion_point::wait(event_ref event) const {
  return adding("node::wait", [&](release_hub& keeper, auto apply) {
    return detail::apply_event(keeper, apply, &detail::wait_params, event);
  });
}

condition insertion_point::make_condition(unsigned initial) const {
  static_cast<void>(require("node::make_condition"));
  cudaGraphConditionalHandle made{};
  check(cudaGraphConditionalHandleCreate(&made, in_, initial, cudaGraphCondAssignDefault),
        "cudaGraphConditionalHandleCreate");
  return condition(made, in_, core_);
}

conditional_node insertion_point::if_then(condition const& looked_at) const {
  return add_conditional("node::if_then", looked_at, cudaGraphCondTypeIf, 1);
}

conditional_node insertion_point::if_else(condition const& looked_at) const {
  return add_conditional("node::if_else", looked_at, cudaGraphCondTypeIf, 2);
}

conditional_node insertion_point::while_loop(condition const& looked_at) const {
  return add_conditional("node::while_loop", looked_at, cudaGraphCondTypeWhile, 1);
}

conditional_node insertion_point::switch_to(condition const& looked_at, unsigned bodies) const {
  return add_conditional("node::switch_to", looked_at, cudaGraphCondTypeSwitch, bodies);
}

conditional_node insertion_point::add_conditional(char const* call, condition const& looked_at,
                                                  cudaGraphConditionalNodeType type,
                                                  unsigned bodies) const {
  graph_core& core = require(call);
  if (looked_at.in_ != in_ || looked_at.core_.lock().get() != &core) {
    throw usage_error(call, "the condition is of another graph, or of another body",
                      "call make_condition() where the node is added");
  }
  if (bodies == 0) throw usage_error(call, "`bodies` is 0", "give at least one");
  std::vector<body_graph> made_bodies;
  made_bodies.reserve(bodies);
  core.bodies.reserve(core.bodies.size() + bodies);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = looked_at.handle_;
  params.conditional.type = type;
  params.conditional.size = bodies;
  node const made = add(core, params, {});
  for (unsigned i = 0; i < bodies; ++i) {
    cudaGraph_t const body = params.conditional.phGraph_out[i];
    core.bodies.push_back(body);
    made_bodies.push_back(body_graph(core_.lock(), body));
  }
  return conditional_node(made, std::move(made_bodies));
}

}  // namespace escrow
