// Letting go at once, after an event, or never.
#include "escrow/deleter/bundle_hold.hpp"

#include <utility>

#include "escrow/deleter/graph_registry.hpp"
#include "release_hub_state.hpp"

namespace escrow {

bundle_hold::bundle_hold(graph_bundle& bundle)
    : release_node(bundle.hub(), release_lane::destroy, -1, &reclaim_hold), bundle_(bundle) {
  bundle_.hold();
}

void bundle_hold::let_go_now::operator()(bundle_hold* hold) const noexcept {
  hold->bundle_.let_go();
  delete hold;  // last: it keeps the hub
}

void bundle_hold::let_go_after(pointer hold, cudaEvent_t ready, int device,
                               std::shared_ptr<launch_end> owner) noexcept {
  bundle_hold& sent = *hold.release();
  sent.owner_ = std::move(owner);
  sent.awaited_ = ready;
  sent.set_device(device);
  sent.reclaim_after(ready, {});
  // A caller's event may be destroyed as soon as it is done: only the worker asks about it.
  if (sent.owner_ != nullptr) sent.hub().await(sent);
  sent.push();
}

void bundle_hold::reclaim_hold(release_node& node) noexcept {
  node.hub().reclaim_awaited(static_cast<bundle_hold&>(node));
}

void bundle_hold::keep_for_ever(pointer hold) noexcept {
  release_hub::keep_for_ever(*hold.release());
}

bundle_holds hold_all(std::vector<graph_bundle*> const& bundles) {
  bundle_holds held;
  held.reserve(bundles.size());
  for (graph_bundle* const each : bundles) held.emplace_back(new bundle_hold(*each));
  return held;
}

resource_usage resource_usage_of(bundle_holds const& held) {
  std::vector<graph_reference const*> found;
  for (auto const& each : held) {
    auto const parts = each->bundle().parts();
    found.insert(found.end(), parts.begin(), parts.end());
  }
  return graph_registry::describe(std::move(found));
}

}  // namespace escrow
