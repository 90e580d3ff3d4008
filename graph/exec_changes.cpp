// Replacing what an exec holds: by update, and when a node is changed.
#include <array>
#include <sstream>
#include <string>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "exec_state.hpp"

namespace escrow::inline v0_1 {

namespace {

// Which node of the new graph does not fit, and why.
std::string describe(cudaGraphExecUpdateResultInfo const& failed) {
  constexpr std::array<char const*, 9> reasons{"",
                                               "for an unknown reason",
                                               "its edges, or the number of nodes, differ",
                                               "it is of another type",
                                               "its kernel differs",
                                               "its parameters cannot be changed so",
                                               "what it uses cannot be updated",
                                               "its kernel cannot be changed to this one",
                                               "its attributes cannot be changed so"};
  auto const reason = static_cast<std::size_t>(failed.result);
  std::ostringstream text;
  text << "a node";
  if (failed.errorNode != nullptr) text << " (" << failed.errorNode << ')';
  text << " of `source` does not fit: " << (reason < reasons.size() ? reasons[reason] : "");
  return text.str();
}

// Returns why CUDA refused, or nothing if it has updated. Throws cuda_error, std::bad_alloc.
std::string updated(cudaGraphExec_t exec, cudaGraph_t source) {
  cudaGraphExecUpdateResultInfo result{};
  cudaError_t status = cudaSuccess;
  {
    graph_lifetime_lock const lock;
    status = cudaGraphExecUpdate(exec, source, &result);
  }
  bool const is_refused = status == cudaErrorGraphExecUpdateFailure;
  if (!is_refused) check(status, "cudaGraphExecUpdate");
  if (is_refused) static_cast<void>(cudaGetLastError());
  return is_refused ? describe(result) : "";
}

// Throws also if CUDA refuses.
void update_to(cudaGraph_t source, cudaGraphExec_t exec, char const* call, char const* advice) {
  std::string const refused = updated(exec, source);
  if (refused.empty()) return;
  throw cuda_error(cudaErrorGraphExecUpdateFailure, "cudaGraphExecUpdate",
                   source_location::current(), call + (": " + refused) + "; " + advice);
}

}  // namespace

graph_exec::state::holding graph_exec::state::holding_of(reference_sets const& sets,
                                                         launch_orders const* more) const {
  holding next;
  next.held = hold_all(sets);
  next.orders = launch_orders(next.held, more);
  if (!sets.empty() || is_conditional_) next.end = std::make_shared<launch_end>(current_device());
  return next;
}

graph_exec::state::holding graph_exec::state::replacement_of(reference_sets const& sets) const {
  bool const is_end_unknown = now_.end != nullptr && now_.end->failure != cudaSuccess;
  return holding_of(sets, is_end_unknown ? &now_.orders : nullptr);
}

void graph_exec::state::update(graph_ref source, std::vector<cudaGraph_t> const& bodies) {
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of("graph_exec::update", source.get(), source.core(), bodies);
  hoist_scope const off("graph_exec::update", survey);
  holding next = replacement_of(off.sets());
  update_to(source.get(), exec_, "graph_exec::update", "create another graph_exec from `source`");
  is_bare_ = !survey.lacks_bodies;
  hold(std::move(next));
}

std::string graph_exec::state::add_turn(graph_ref source, std::vector<cudaGraph_t> const& bodies,
                                        holding& before) {
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of("exec_set::add", source.get(), source.core(), bodies);
  hoist_scope off("exec_set::add", survey);
  holding next = holding_of(off.sets());
  std::string refused = updated(exec_, source.get());
  if (!refused.empty()) return refused;
  off.keep_off(source.core());
  before = std::exchange(now_, std::move(next));
  graph_registry::global().note_ordered(now_.held);
  return refused;
}

void graph_exec::state::switch_to(cudaGraph_t source, holding& its) {
  relaxed_capture_scope const relaxed;
  update_to(source, exec_, "exec_set::launch", "do not change a graph after adding it");
  std::swap(now_, its);
}

void graph_exec::state::set(cudaGraphNode_t node, cudaGraphNodeParams& params,
                            retired_object::loan payload) {
  relaxed_capture_scope const relaxed;
  auto const change = [&] {
    check(cudaGraphExecNodeSetParams(exec_, node, &params), "cudaGraphExecNodeSetParams");
  };
  auto of_nodes = now_.of_nodes;
  auto const replaced = of_nodes.extract(node);
  if (replaced.empty() && payload == nullptr) return change();
  reference_sets sets;
  for (auto const& each : now_.held) {
    if (replaced.empty() || each.set.get() != replaced.mapped()) sets.push_back(each.set);
  }
  std::shared_ptr<graph_core> const source = source_.lock();
  if (auto const added = hand_on(std::move(payload), source->device())) {
    retired_object* const owner = added.get();
    sets.push_back(source->set_of({&owner, 1}));
    of_nodes.emplace(node, sets.back().get());
  }
  holding next = replacement_of(sets);
  next.of_nodes = std::move(of_nodes);
  change();
  hold(std::move(next));
}

void graph_exec::state::hold(holding next) noexcept {
  std::swap(now_, next);
  graph_registry::global().note_ordered(now_.held);
  if (next.end == nullptr) return;
  // With its old end, since launches record the new one again and again.
  release(std::move(next.held), next.end);
  // Other execs refuse to launch until a launch of this one is recorded. They read this end under
  // the orders whose last launch it is, which therefore stay among this exec's.
  if (next.end->failure != cudaSuccess) now_.end = std::move(next.end);
}

}  // namespace escrow::inline v0_1
