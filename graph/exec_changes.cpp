// What an exec holds, and how one set of that takes the place of another: at update, when a node is
// changed, and at the end.
#include <algorithm>
#include <optional>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/detail/device.hpp"
#include "exec_state.hpp"

namespace escrow {

namespace {

// Whether the last launch is known to be over.
bool is_over(launch_end const& end) noexcept {
  if (!end.was_launched) return true;
  if (end.failure != cudaSuccess) return false;
  try {
    relaxed_capture_scope const relaxed;  // a query would kill a capture
    // After a fault the worker judges: another device may run on.
    return succeeded(cudaEventQuery(end.ready.get()));
  } catch (std::exception const&) {
    return false;  // it could not be asked: the worker will
  }
}

// Each once, by their addresses.
void make_unique(launch_orders& orders) noexcept {
  std::ranges::sort(orders);
  orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
}

// What child graphs and bodies hold for themselves.
std::vector<graph_bundle const*> bundles_of_inner_graphs(graph_survey const& survey,
                                                         cudaGraph_t root) {
  std::vector<graph_bundle const*> found;
  for (auto const& each : survey.known) {
    if (each.graph == root) continue;
    for (auto const& placed : graph_registry::global().bundles_of(each.id)) {
      found.push_back(placed.bundle);
    }
  }
  return found;
}

// A payload that is held for the time of a call.
class held_payload {
 public:
  held_payload(detail::node_payload payload, int device) noexcept
      : held_(payload.hand_on(device)) {}
  held_payload(held_payload&&) = delete;
  ~held_payload() {
    if (held_ != nullptr) held_->let_go();
  }
  [[nodiscard]] retired_owner* get() const noexcept { return held_; }

 private:
  retired_owner* held_;
};

}  // namespace

graph_exec::state::holding::holding(bundle_holds given, state const& before)
    : held(std::move(given)) {
  if (!held.empty() || before.is_conditional_) end = std::make_shared<launch_end>(current_device());
  // With room for what is held now: see hold_more().
  held.reserve(held.size() + before.held_.size());
  orders.reserve(held.size() + before.orders_.size());
  for (auto const& each : held) orders.push_back(each->bundle().order().get());
  make_unique(orders);
}

graph_exec::state::holding graph_exec::state::holding_of(hoist_scope const& off,
                                                         graph_survey const& survey,
                                                         survey_root const& source) const {
  holding next(hold_all(off.bundles()), *this);
  next.of_inner_graphs = bundles_of_inner_graphs(survey, source.handle);
  return next;
}

void graph_exec::state::let_go_after(bundle_holds held,
                                     std::shared_ptr<launch_end> const& end) noexcept {
  if (held.empty() || is_over(*end)) return;  // the holds let go as they end
  for (auto& each : held) {
    if (end->failure != cudaSuccess) {
      each->hub().report(end->failure, "cudaEventRecord");
      bundle_hold::keep_for_ever(std::move(each));
    } else {
      bundle_hold::let_go_after(std::move(each), end->ready.get(), end->device, end);
    }
  }
}

void graph_exec::state::update(graph_survey const& survey, survey_root const& source) {
  relaxed_capture_scope const relaxed;
  hoist_scope const off(survey);
  holding next = holding_of(off, survey, source);
  if (is_unchanged(source.core)) next.payloads = source.core->snapshot();
  cudaGraphExecUpdateResultInfo result{};
  {
    graph_lifetime_lock const turn;
    check(cudaGraphExecUpdate(exec_, source.handle, &result), "cudaGraphExecUpdate");
  }
  is_bare_ = off.is_bare();
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
  retired_owner* const dropped = old == nullptr ? nullptr : old->owner;
  launch_params const* const launched = payload.launched();
  std::shared_ptr<graph_core> const source = source_.lock();
  held_payload const added(std::move(payload), source->device());
  std::optional<holding> next;
  if (dropped != nullptr || added.get() != nullptr) {
    auto const table = payloads_ == nullptr ? std::make_shared<node_table>()
                                            : std::make_shared<node_table>(*payloads_);
    table->replace(node, {node, added.get(), launched});
    next.emplace(holds_with(dropped, added.get(), source->order()), *this);
    next->of_inner_graphs = of_inner_graphs_;
    next->payloads = table;
  }
  check(cudaGraphExecNodeSetParams(exec_, node, &params), "cudaGraphExecNodeSetParams");
  if (next) hold(std::move(*next));
}

bundle_holds graph_exec::state::holds_with(retired_owner* dropped, retired_owner* added,
                                           std::shared_ptr<launch_order> const& order) const {
  std::vector<graph_bundle::pointer> made;
  std::vector<graph_bundle*> bundles;
  auto const make = [&](release_hub& hub, std::vector<graph_reference*> parts,
                        std::shared_ptr<launch_order> its_order) {
    if (parts.empty()) return;
    graph_bundle::pointer bundle(&graph_bundle::make(hub, std::move(parts), std::move(its_order)));
    bundles.push_back(bundle.get());
    made.push_back(std::move(bundle));
  };
  for (auto const& each : held_) {
    graph_bundle& bundle = each->bundle();
    bool const has_dropped =
        dropped != nullptr && std::ranges::find(bundle.parts(), dropped) != bundle.parts().end();
    // What a child graph uses as well stays.
    if (!has_dropped || std::ranges::find(of_inner_graphs_, &bundle) != of_inner_graphs_.end()) {
      bundles.push_back(&bundle);
      continue;
    }
    std::vector<graph_reference*> parts(bundle.parts().begin(), bundle.parts().end());
    std::erase(parts, dropped);
    if (added != nullptr) parts.push_back(std::exchange(added, nullptr));
    make(bundle.hub(), std::move(parts), bundle.order());
  }
  if (added != nullptr) make(added->hub(), {added}, order);
  return hold_all(bundles);
}

void graph_exec::state::hold(holding next) noexcept {
  payloads_ = std::move(next.payloads);
  of_inner_graphs_ = std::move(next.of_inner_graphs);
  if (end_ != nullptr && end_->failure != cudaSuccess) return hold_more(next);
  held_.swap(next.held);
  orders_.swap(next.orders);
  end_.swap(next.end);
  // Its own end, since the new one is recorded again and again.
  let_go_after(std::move(next.held), next.end);
}

void graph_exec::state::hold_more(holding& next) noexcept {
  // Nothing tells when the last launch ends, but that it does before the next: so all stays until
  // then with the same end, which the next launch may record.
  for (auto& each : held_) {
    auto const is_same = [&](auto const& other) { return &other->bundle() == &each->bundle(); };
    if (std::ranges::none_of(next.held, is_same)) next.held.push_back(std::move(each));
  }
  next.orders.insert(next.orders.end(), orders_.begin(), orders_.end());
  make_unique(next.orders);
  held_.swap(next.held);
  orders_.swap(next.orders);
}

}  // namespace escrow
