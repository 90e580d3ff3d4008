// SPDX-License-Identifier: Apache-2.0
// Changes of single nodes in an exec, and what it then keeps.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "audited_call.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "exec_state.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_2 {

void graph_exec::state::audit_launch(char const* call, void const* holder) {
  refuse_own_owner(call, audit_, "exec", holder, now_.held);
  std::shared_ptr<graph_core> const source = runs_source_ ? source_.lock() : nullptr;
  if (source == nullptr || !source->is_changed()) return;
  runs_source_ = false;
  source->report(usage_error(call,
                             "the graph was changed after this exec was made or updated from it: "
                             "the exec runs it as it was then",
                             "change the exec, too, by set(exec, node, kind), or by "
                             "exec.update(graph)"),
                 {});
}

void graph_exec::state::change(cudaGraphNode_t node, cudaGraphNodeParams& params,
                               reference_sets added) {
  auto const change = [&] {
    {
      std::optional<graph_lifetime_lock> turn;
      if (params.type == cudaGraphNodeTypeGraph) turn.emplace();  // it is copied
      check(cudaGraphExecNodeSetParams(exec(), node, &params), "cudaGraphExecNodeSetParams");
    }
    row_.reset();  // its nodes are others
    runs_source_ = false;
  };
  auto of_nodes = of_nodes_;
  auto const replaced = of_nodes.extract(node);
  if (replaced.empty() && added.empty()) return change();
  reference_sets sets = now_.sets();
  if (!replaced.empty()) {
    for (auto const& old : replaced.mapped()) {
      // Once: the exec's graph, or another node, may have the set as well, of the same child graph.
      auto const is_it = [&](auto const& each) { return each.get() == old.get(); };
      sets.erase(std::ranges::find_if(sets, is_it));
    }
  }
  std::ranges::copy(added, std::back_inserter(sets));
  if (!added.empty()) of_nodes.emplace(node, std::move(added));
  holding next = holding_of(sets);
  change();
  of_nodes_ = std::move(of_nodes);
  hold(next);
}

void graph_exec::state::set(cudaGraphNode_t node, cudaGraphNodeParams& params, node_owner owner) {
  require_known_end("set");
  group_pins pins;
  now_.pin("set", pins);
  relaxed_capture_scope const relaxed;
  reference_sets added;
  std::shared_ptr<graph_core> const source = source_.lock();
  if (auto const kept = std::move(owner).hand_on(source->device())) {
    retired_object* const its = kept.get();
    // In an order of its own: other execs of the graph do not have the owner.
    added.push_back(source->set_of({&its, 1}, nullptr));
  }
  change(node, params, std::move(added));
}

void graph_exec::state::set_child(cudaGraphNode_t node, graph_core* child) {
  constexpr char const* call = "set";
  require_known_end(call);
  group_pins pins;
  now_.pin(call, pins);
  graph_core& source = detail::require_graph(call, child);
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of(call, source.native(), &source, {}, true);
  if (!survey.groups.empty()) {
    throw usage_error(call, "`kind` is a child graph that uses a sharing group",
                      "change the node by node::set, and use graph_exec::update");
  }
  if (!survey.clusters.all.empty() || !clusters_.all.empty()) {
    throw usage_error(
        call,
        "a kernel of `kind`, or of the exec, runs in clusters, which CUDA may keep as they are",
        "change the node by node::set, and create another graph_exec");
  }
  graph_registry::group_set const claims = claims_in(source.native());
  if (claims_.may_race(node, claims)) {
    throw usage_error(call,
                      "`kind` is a graph that uses what one capture claimed, or an owner that was "
                      "moved in, and so may another part of the exec",
                      "capture its work once more, or change the node by node::set, and use "
                      "graph_exec::update");
  }
  exec_claims next = claims_;
  next.set(node, claims);
  hoist_scope const off(call, survey);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeGraph;
  params.graph.graph = source.native();
  change(node, params, off.sets());
  claims_ = std::move(next);
}

void graph_exec::state::set_enabled(cudaGraphNode_t node, bool is_enabled) {
  group_pins pins;
  now_.pin("set_enabled", pins);
  relaxed_capture_scope const relaxed;
  auto disabled = disabled_;
  is_enabled ? static_cast<void>(disabled.erase(node)) : static_cast<void>(disabled.insert(node));
  check(cudaGraphNodeSetEnabled(exec(), node, is_enabled ? 1 : 0), "cudaGraphNodeSetEnabled");
  disabled_.swap(disabled);
  row_.reset();
}

}  // namespace escrow::inline v0_2
