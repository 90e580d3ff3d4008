// Replacing what an exec holds: by update, and when a node is changed.
#include <array>
#include <sstream>
#include <string>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/last_error.hpp"
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

// Whether CUDA took the graph before, for an exec of the same shape.
enum class fit { unknown, known };

// Returns why CUDA refused, or nothing if it has updated. Throws cuda_error, std::bad_alloc.
std::string updated(cudaGraphExec_t exec, cudaGraph_t source, fit expected) {
  cudaGraphExecUpdateResultInfo result{};
  cudaError_t status = cudaSuccess;
  {
    graph_lifetime_lock const lock;
    auto const update = [&] { return cudaGraphExecUpdate(exec, source, &result); };
    if (expected == fit::known) {
      status = update();
      static_cast<void>(succeeded(status));
    } else {
      status = call_aside(update);  // a refusal is no surprise: a set then tries another exec
    }
  }
  if (status == cudaErrorGraphExecUpdateFailure) return describe(result);
  if (status != cudaSuccess) throw cuda_error(status, "cudaGraphExecUpdate");
  return "";
}

// `refused`: what updated() returned.
void require_updated(std::string const& refused, char const* call, char const* advice) {
  if (refused.empty()) return;
  throw cuda_error(cudaErrorGraphExecUpdateFailure, "cudaGraphExecUpdate",
                   source_location::current(), call + (": " + refused) + "; " + advice);
}

}  // namespace

void graph_exec::state::require_known_end(char const* call) const {
  if (now_.end == nullptr || now_.end->state != end_state::unknown) return;
  refuse_unknown(call, *now_.end,
                 "the end of the last launch is not known: launch the exec again before");
}

graph_exec::state::holding graph_exec::state::holding_of(reference_sets const& sets) const {
  holding next;
  next.held = hold_all(sets);
  next.orders = launch_orders(next.held);
  if (!sets.empty() || is_conditional_ || row_.is_wanted())
    next.end = std::make_shared<launch_end>(current_device());
  return next;
}

std::string graph_exec::state::update(char const* call, graph_ref source,
                                      std::vector<cudaGraph_t> const& bodies, references after,
                                      holding& before) {
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of(call, source.get(), source.core(), bodies);
  hoist_scope off(call, survey);
  holding next = holding_of(off.sets());
  exec_row row = row_.of(source.get());
  std::string refused = updated(exec_, source.get(), fit::unknown);
  if (!refused.empty()) return refused;
  if (after == references::stay_off) off.keep_off(source.core());
  is_bare_ = !survey.lacks_bodies;
  row_ = std::move(row);
  before = hold(std::move(next));
  return refused;
}

void graph_exec::state::update(graph_ref source, std::vector<cudaGraph_t> const& bodies) {
  constexpr char const* call = "graph_exec::update";
  require_known_end(call);
  holding before;
  require_updated(update(call, source, bodies, references::come_back, before), call,
                  "create another graph_exec from `source`");
  drop_after(std::move(before.held), before.end);
}

void graph_exec::state::switch_to(cudaGraph_t source, holding& its) {
  relaxed_capture_scope const relaxed;
  require_updated(updated(exec_, source, fit::known), "exec_set::launch",
                  "do not change a graph after adding it");
  std::swap(now_, its);
}

void graph_exec::state::set(cudaGraphNode_t node, cudaGraphNodeParams& params,
                            retired_object::loan payload) {
  require_known_end("set");
  relaxed_capture_scope const relaxed;
  auto const change = [&] {
    check(cudaGraphExecNodeSetParams(exec_, node, &params), "cudaGraphExecNodeSetParams");
    row_.drop();  // its nodes are others
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
    // In an order of its own: other execs of the graph do not have the owner.
    sets.push_back(source->set_of({&owner, 1}, nullptr));
    of_nodes.emplace(node, sets.back().get());
  }
  holding next = holding_of(sets);
  next.of_nodes = std::move(of_nodes);
  change();
  holding before = hold(std::move(next));
  drop_after(std::move(before.held), before.end);
}

graph_exec::state::holding graph_exec::state::hold(holding next) noexcept {
  std::swap(now_, next);
  graph_registry::global().note_ordered(now_.held);
  return next;
}

}  // namespace escrow::inline v0_1
