// SPDX-License-Identifier: Apache-2.0
// State shared by a graph, its nodes and the bodies of its conditional nodes.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "escrow/detail/retired_object.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

// Destroys what CUDA made. Capture-safe. In a CUDA callback the worker destroys it. Any other
// status is ignored. Any thread.
struct handle_end {
  void operator()(cudaGraph_t doomed) const noexcept;
  void operator()(cudaGraphExec_t doomed) const noexcept;
};
template <class Handle>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, handle_end>;

// A new, empty graph. Throws cuda_error.
[[nodiscard]] owned<cudaGraph_t> new_graph();

// What a node is to keep: what was made for it, or what another node keeps, too; or nothing.
struct node_owner {
  retired_object::loan made;
  ref<retired_object> shared = {};

  [[nodiscard]] bool is_any() const noexcept { return made != nullptr || shared; }
  // The owner, if any: from now on a graph or exec holds it. One that was made is destroyed with
  // `device` current.
  [[nodiscard]] ref<retired_object> hand_on(int device) && noexcept;
};

// What: owns a cudaGraph_t and the payloads of its nodes: what each node that was added by hand
//   keeps alive. They are in a reference set on the graph, which grows with each node until it is
//   sealed. What a changed or destroyed node kept stays there until seal() puts one set of what is
//   kept now in place of the sets. Payloads of nodes in bodies belong to the graph.
// Thread safety: exclusive access, as CUDA requires for the graph.
// Lifetime: shared by the graph and its bodies; nodes have weak references. Destroys the graph.
class graph_core : public std::enable_shared_from_this<graph_core> {
 public:
  // A graph that was just created. Throws std::bad_alloc.
  explicit graph_core(owned<cudaGraph_t> created);
  // A graph created elsewhere; `id`: 0 if not known. Throws the same, and cuda_error, usage_error
  // if the id is needed and cannot be learned.
  graph_core(owned<cudaGraph_t> native, std::uint64_t id);
  graph_core(graph_core&&) = delete;
  ~graph_core();

  // Null after detach().
  [[nodiscard]] cudaGraph_t native() const noexcept { return native_.get(); }
  // The capture id; 0 if not known.
  [[nodiscard]] std::uint64_t id() const noexcept {
    return graph_registry::global().known(native()).id;
  }
  // The deleter of node payloads; the process-wide one by default.
  [[nodiscard]] deleter_core& keeper();
  // To it: a call has done what it is for, and failed afterwards, with this consequence.
  void report(std::exception const& why, std::string_view consequence);
  // Payloads are destroyed with this device current: the one current when the graph, or the graph
  // that it is a clone of, was created.
  [[nodiscard]] int device() const noexcept { return device_; }
  void set_keeper(deleter_core& keeper) noexcept;

  // Takes off the graph what no node keeps any more. Throws cuda_error, std::bad_alloc.
  void seal();
  [[nodiscard]] cudaGraph_t expose();  // for external use; throws as seal()
  void note_exposed() noexcept;        // others have the handle: see graph_registry::expose()
  // Transfers the handle to the caller. Throws as seal(), and nothing has changed then.
  [[nodiscard]] cudaGraph_t detach();
  void forget_payloads() noexcept;  // after hoisting: keeps nothing more

  // For the graph and its bodies. Throw cuda_error, std::bad_alloc, and then have changed nothing.
  [[nodiscard]] cudaGraphNode_t add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                    cudaGraphNodeParams& params, node_owner owner,
                                    std::span<cudaLaunchAttribute const> attributes = {});
  void set(cudaGraphNode_t changed, cudaGraphNodeParams& params, node_owner owner,
           std::span<cudaLaunchAttribute const> attributes = {});
  // Also takes off the graph what the node kept; if that fails, seal() does. A conditional node's
  // bodies go with it.
  void destroy(cudaGraphNode_t doomed, std::uint64_t in_body);
  // Whether a node with the handle was destroyed since: one that was made when so many had been.
  [[nodiscard]] bool has_ended(cudaGraphNode_t node, std::uint64_t made_at) const noexcept {
    auto const found = ended_.find(node);
    return found != ended_.end() && found->second > made_at;
  }
  std::uint64_t nodes_ended = 0;
  // Nodes went by a call that this is not told.
  void note_changed() noexcept { is_changed_.store(true, std::memory_order_relaxed); }
  // Whether nodes were changed or destroyed since an exec was made or updated from it. Any thread.
  [[nodiscard]] bool is_changed() const noexcept {
    return is_changed_.load(std::memory_order_relaxed);
  }

  // A set of these owners, for the graph or one exec: execs with sets of one order are serialized
  // if they may write an owner. `order`: null: a new one. Throws std::bad_alloc.
  [[nodiscard]] ref<reference_set> set_of(std::span<retired_object* const> owners,
                                          std::shared_ptr<launch_order> order);
  // Takes payloads, device and deleter of the graph that this is a clone of. Throws cuda_error,
  // std::bad_alloc.
  void copy_payloads(graph_core& original);

  // Whether it, or a child graph, keeps what was not given to add() or set() of its nodes.
  [[nodiscard]] bool keeps_more_than_owners() const;
  // What the graph keeps for the node; null: nothing.
  [[nodiscard]] ref<retired_object> owner_of(cudaGraphNode_t node) const noexcept;

  // Bodies of conditional nodes added by hand, also nested ones.
  struct body {
    cudaGraphNode_t of;
    cudaGraph_t graph;
    std::uint64_t number;  // of the graph's bodies; CUDA gives handles again
    cudaGraphConditionalHandle tested;
  };
  std::vector<body> bodies;
  std::uint64_t bodies_made = 0;
  // Whether that body was not destroyed. 0: the graph itself.
  [[nodiscard]] bool has_body(std::uint64_t number) const noexcept;
  // Whether a node that was not destroyed has the condition.
  [[nodiscard]] bool is_tested(cudaGraphConditionalHandle condition) const noexcept;
  // Where a condition serves that was made in that body: there, or where its node was, if it was
  // destroyed with that.
  [[nodiscard]] std::uint64_t home_of(std::uint64_t made_in) const;

 private:
  struct kept_owner {
    cudaGraphNode_t node;
    retired_object* owner;  // a member of a set of `placed_`; null: none any more
  };

  void place(std::span<retired_object* const> owners);  // puts their set on the graph
  void take_off(reference_set& set) noexcept;
  // Throws usage_error, naming `call`, if a sharing group of the graph, or of `in`, is parked.
  void refuse_parked_groups(char const* call, cudaGraph_t in) const;
  void forget_hoisted() noexcept;
  // Of the node, and of nodes in these; throws std::bad_alloc, cuda_error.
  [[nodiscard]] std::vector<cudaGraph_t> bodies_of(cudaGraphNode_t conditional) const;
  void forget_unused();
  // Calls `call`, which returns a node, and then notes what that keeps; null: nothing any more.
  template <class Call>
  void keep_after(Call const& call, node_owner kept);

  owned<cudaGraph_t> native_;
  deleter_core* keeper_ = nullptr;  // null: the default
  int device_ = current_device();
  // In the order of changes: the last of a node counts. Not a map, which allocates for each node.
  std::vector<kept_owner> payloads_;
  std::map<std::uint64_t, std::uint64_t> homes_;  // of destroyed bodies
  // By the handle: which of those that ended the last node with it was, from 1.
  std::unordered_map<cudaGraphNode_t, std::uint64_t> ended_;
  bool is_exposed_ = false;
  // Nodes were changed or destroyed since seal(). Relaxed: audits look at nothing else on other
  // threads.
  std::atomic<bool> is_changed_{false};
  reference_sets placed_;  // on the graph, with all payloads
  std::shared_ptr<launch_order> order_ = make_apart<launch_order>();
};

}  // namespace escrow::inline v0_2
