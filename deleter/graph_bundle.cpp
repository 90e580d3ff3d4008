// A bundle lets go what it stands for on the thread that lets go of it.
#include "escrow/deleter/graph_bundle.hpp"

#include "escrow/deleter/graph_registry.hpp"

namespace escrow {

graph_bundle& graph_bundle::make(release_hub& hub, std::vector<graph_reference*> parts,
                                 std::shared_ptr<launch_order> order) {
  graph_bundle& made = *new graph_bundle(hub, std::move(parts), std::move(order));
  for (graph_reference* const part : made.parts_) part->hold();
  return made;
}

graph_bundle::graph_bundle(release_hub& hub, std::vector<graph_reference*> parts,
                           std::shared_ptr<launch_order> order)
    : release_node(hub, release_lane::destroy, parts.front()->device(), &reclaim_bundle),
      parts_(std::move(parts)),
      order_(std::move(order)) {}

void graph_bundle::let_go() noexcept {
  // As graph_reference::let_go().
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (graph_reference* const part : parts_) part->let_go();
  push();  // last: the worker frees it
}

void graph_bundle::reclaim_bundle(release_node& node) noexcept {
  auto& bundle = static_cast<graph_bundle&>(node);
  graph_registry::global().remove(bundle);
  delete &bundle;
}

}  // namespace escrow
