// A node of a graph that is built by hand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/graph/insertion_point.hpp"
#include "escrow/graph/launch_params.hpp"

namespace escrow {

// What: a node, which is also the place after it: `node.launch(...).memcpy(...)` is a chain. Its
//   parameters can be read back and changed, with what they keep alive. Changes concern the graph
//   and what is made of it from then on, not clones and execs that are there (graph_exec::set_...).
// Thread safety, Memory ordering, Capture: as insertion_point.
// Lifetime: a value, which knows its graph and does not keep it. Once the node was destroyed, its
//   other copies must not be used, as with CUDA's handles.
// Errors: as insertion_point; cuda_error: cudaErrorInvalidValue for parameters of another kind of
//   node.
class node : public insertion_point {
  // Stands before its uses: its type is deduced.
  [[nodiscard]] auto setting() const {
    return [this](cudaGraphNodeParams& params, detail::node_payload payload) {
      return set(params, std::move(payload));
    };
  }

 public:
  // A node that is none.
  node() noexcept = default;

  // The CUDA handle. Never owning.
  [[nodiscard]] cudaGraphNode_t get() const noexcept { return after_; }
  friend bool operator==(node const& one, node const& other) noexcept {
    return one.after_ == other.after_;
  }

  [[nodiscard]] cudaGraphNodeType type() const;
  // The nodes that this one waits for, and those that wait for it.
  [[nodiscard]] std::vector<node> predecessors() const;
  [[nodiscard]] std::vector<node> successors() const;
  // Makes this node wait for `other`, too. Throws cuda_error if it does already, also if only for
  // its beginning (programmatic dependent launch). Source: cudaGraphAddDependencies.
  node const& after(node const& other) const;

  // What a kernel node launches; the kernel keeps its library. Throws cuda_error
  // (cudaErrorInvalidDeviceFunction) for a kernel of a cudaLibrary_t in a node that was not added
  // through this graph: captured, or hoisted. Source: cudaGraphKernelNodeGetParams, as for those
  // that follow.
  [[nodiscard]] launch_params launch_parameters() const;
  [[nodiscard]] cudaMemsetParams memset_parameters() const;
  [[nodiscard]] cudaMemcpy3DParms memcpy_parameters() const;
  [[nodiscard]] cudaHostNodeParams call_parameters() const;
  // The event of a node that records or waits; shared_event::find() leads from it to its owner.
  [[nodiscard]] cudaEvent_t event() const;
  [[nodiscard]] cudaMemAllocNodeParams alloc_parameters() const;
  // What a node that frees memory frees.
  [[nodiscard]] void* freed() const;
  // The copy that a node embeds. It is the graph's.
  [[nodiscard]] cudaGraph_t embedded() const;

  // Changes what the node does, and what is kept for it; arguments as of the function that adds
  // such a node. On failure node and owners are as before.
  template <class... Arguments>
  void set_launch(kernel const& launched, launch_config const& config,
                  Arguments&&... arguments) const {
    detail::apply_launch(keeper("node::set_launch"), setting(), launched, config,
                         std::forward<Arguments>(arguments)...);
  }
  template <class... Parameters, class... Arguments>
  void set_launch(void (*launched)(Parameters...), launch_config const& config,
                  Arguments&&... arguments) const {
    detail::apply_launch(keeper("node::set_launch"), setting(), launched, config,
                         std::forward<Arguments>(arguments)...);
  }
  template <class Destination>
  void set_memset(Destination&& destination, memset_config const& config) const {
    detail::apply_memset(keeper("node::set_memset"), setting(), config,
                         std::forward<Destination>(destination));
  }
  template <class To, class From>
  void set_memcpy(To&& to, From&& from, std::size_t bytes) const {
    detail::apply_memcpy(keeper("node::set_memcpy"), setting(), bytes, std::forward<To>(to),
                         std::forward<From>(from));
  }
  template <std::invocable Function>
  void set_call(Function function) const {
    detail::apply_call(keeper("node::set_call"), setting(), std::move(function));
  }
  void set_call(cudaHostFn_t function, void const* data, std::size_t bytes) const;
  void set_event(shared_event event) const;
  void set_event(event_ref event) const;

  // Takes the node out of its graph, with its edges, and lets go of what is kept for it; not that
  // of a conditional node, without which CUDA cannot instantiate its condition's graph. Source:
  // cudaGraphDestroyNode.
  void destroy() const;

 protected:
  friend class insertion_point;
  friend class graph_exec;

  explicit node(insertion_point&& place) noexcept : insertion_point(std::move(place)) {}

 private:
  // The deleter that destroys what the node keeps. The graph has to be there.
  [[nodiscard]] deleter_core& keeper(char const* call) const;
  bool set(cudaGraphNodeParams& params, detail::node_payload payload) const;
  // What makes the parameters for a node that records, or waits, as this one does.
  [[nodiscard]] auto event_params() const -> cudaGraphNodeParams (*)(cudaEvent_t);
};

template <class Apply>
node insertion_point::adding(char const* call, Apply apply) const {
  graph_core& core = require(call);
  return apply(keeper_of(core), [&](cudaGraphNodeParams& params, detail::node_payload payload) {
    return add(core, params, std::move(payload));
  });
}

template <class... Arguments>
node insertion_point::launch(kernel const& launched, launch_config const& config,
                             Arguments&&... arguments) const {
  return adding("node::launch", [&](deleter_core& keeper, auto apply) {
    return detail::apply_launch(keeper, apply, launched, config,
                                std::forward<Arguments>(arguments)...);
  });
}

template <class... Parameters, class... Arguments>
node insertion_point::launch(void (*launched)(Parameters...), launch_config const& config,
                             Arguments&&... arguments) const {
  return adding("node::launch", [&](deleter_core& keeper, auto apply) {
    return detail::apply_launch(keeper, apply, launched, config,
                                std::forward<Arguments>(arguments)...);
  });
}

template <class Destination>
node insertion_point::memset(Destination&& destination, memset_config const& config) const {
  return adding("node::memset", [&](deleter_core& keeper, auto apply) {
    return detail::apply_memset(keeper, apply, config, std::forward<Destination>(destination));
  });
}

template <class To, class From>
node insertion_point::memcpy(To&& to, From&& from, std::size_t bytes) const {
  return adding("node::memcpy", [&](deleter_core& keeper, auto apply) {
    return detail::apply_memcpy(keeper, apply, bytes, std::forward<To>(to),
                                std::forward<From>(from));
  });
}

template <std::invocable Function>
node insertion_point::call(Function function) const {
  return adding("node::call", [&](deleter_core& keeper, auto apply) {
    return detail::apply_call(keeper, apply, std::move(function));
  });
}

}  // namespace escrow
