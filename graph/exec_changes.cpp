// What an exec holds, and how one set of that takes the place of another: at update, and when a
// node is changed.
#include <algorithm>
#include <optional>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/reference_set.hpp"
#include "exec_state.hpp"

namespace escrow {

namespace {

// What child graphs and bodies hold for themselves.
std::vector<reference_set const*> sets_of_inner_graphs(graph_survey const& survey,
                                                       cudaGraph_t root) {
  std::vector<reference_set const*> found;
  for (auto const& each : survey.known) {
    if (each.graph == root) continue;
    for (auto const& placed : graph_registry::global().seal(each.id)) found.push_back(placed.set);
  }
  return found;
}

}  // namespace

graph_exec::state::holding::holding(reference_sets const& sets, bool is_conditional)
    : held(hold_all(sets)), orders(held) {
  if (!held.empty() || is_conditional) end = std::make_shared<launch_end>(current_device());
}

graph_exec::state::holding graph_exec::state::holding_of(hoist_scope const& off,
                                                         graph_survey const& survey,
                                                         survey_root const& source) const {
  holding next(off.sets(), is_conditional_);
  next.of_inner_graphs = sets_of_inner_graphs(survey, source.handle);
  return next;
}

void graph_exec::state::update(graph_survey const& survey, survey_root const& source) {
  relaxed_capture_scope const relaxed;
  hoist_scope const off(survey);
  holding next = holding_of(off, survey, source);
  if (is_unchanged(source.core)) next.payloads = source.core->snapshot();
  cudaGraphExecUpdateResultInfo result{};
  {
    graph_lifetime_lock const lock;
    check(cudaGraphExecUpdate(exec_, source.handle, &result), "cudaGraphExecUpdate");
  }
  is_bare_ = !survey.lacks_bodies;
  hold(std::move(next));
}

bool graph_exec::state::is_unchanged(graph_core const* source) const noexcept {
  // An update goes by places in the graph, while nodes keep their names.
  return source != nullptr && source == source_.lock().get() && !source->is_exposed() &&
         source->shape() == source_shape_;
}

void graph_exec::state::set(cudaGraphNode_t node, cudaGraphNodeParams& params,
                            detail::node_payload payload) {
  relaxed_capture_scope const relaxed;
  node_table::entry const* const old = payloads_ == nullptr ? nullptr : payloads_->find(node);
  retired_object* const dropped = old == nullptr ? nullptr : old->owner;
  std::shared_ptr<graph_core> const source = source_.lock();
  auto const added = ref<retired_object>::adopt(payload.hand_on(source->device()));
  std::optional<holding> next;
  if (dropped != nullptr || added.get() != nullptr) {
    auto const table = payloads_ == nullptr ? std::make_shared<node_table>()
                                            : std::make_shared<node_table>(*payloads_);
    table->replace(node, {node, added.get()});
    next.emplace(sets_with(dropped, added.get(), source->order()), is_conditional_);
    next->of_inner_graphs = of_inner_graphs_;
    next->payloads = table;
  }
  check(cudaGraphExecNodeSetParams(exec_, node, &params), "cudaGraphExecNodeSetParams");
  if (next) hold(std::move(*next));
}

reference_sets graph_exec::state::sets_with(retired_object* dropped, retired_object* added,
                                            std::shared_ptr<launch_order> const& order) const {
  reference_sets sets;
  auto const make = [&](deleter_core& core, std::vector<retired_object*> const& parts,
                        std::shared_ptr<launch_order> const& its_order) {
    if (parts.empty()) return;
    sets.push_back(reference_set::make(core, parts.front()->device(), its_order));
    sets.back()->reserve_shared(parts.size());
    for (retired_object* const each : parts) {
      sets.back()->append_shared(ref<reclaimable>(*each), each->is_written());
    }
  };
  for (auto const& each : held_) {
    reference_set& set = *each.set;
    auto const is_dropped = [dropped](auto const& member) { return member.get() == dropped; };
    bool const has_dropped = dropped != nullptr && std::ranges::any_of(set.shared(), is_dropped);
    // What a child graph uses as well stays.
    if (!has_dropped || std::ranges::find(of_inner_graphs_, &set) != of_inner_graphs_.end()) {
      sets.push_back(each.set);
      continue;
    }
    std::vector<retired_object*> parts;
    for (auto const& member : set.shared()) {
      if (!is_dropped(member)) parts.push_back(static_cast<retired_object*>(member.get()));
    }
    if (added != nullptr) parts.push_back(std::exchange(added, nullptr));
    make(set.core(), parts, set.order());
  }
  if (added != nullptr) make(added->core(), {added}, order);
  return sets;
}

void graph_exec::state::hold(holding next) noexcept {
  payloads_ = std::move(next.payloads);
  of_inner_graphs_ = std::move(next.of_inner_graphs);
  held_.swap(next.held);
  orders_ = std::move(next.orders);
  end_.swap(next.end);
  if (next.end == nullptr) return;
  // With its own end, since the new one is recorded again and again.
  release(std::move(next.held), next.end);
  // Other execs refuse to launch until a launch of this one is recorded.
  if (next.end->failure != cudaSuccess && end_ != nullptr) end_ = std::move(next.end);
}

}  // namespace escrow
