// What the worker does with an owner.
#include "escrow/deleter/retired_owner.hpp"

#include "escrow/deleter/graph_registry.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

retired_owner::retired_owner(place_is_reserved reserved, release_hub& hub,
                             std::size_t place) noexcept
    : graph_reference(reserved, hub, release_lane::destroy, -1, &reclaim_owner),
      place_(place & 7U) {}

retired_owner::~retired_owner() {
  clear();
  if (own_event_) event_cache::put(event_device_, std::move(own_event_));
}

void retired_owner::enter_graph() noexcept {
  in_graph_ = true;
  hub().count_in_graphs(+1);
}

void retired_owner::reclaim_owner(release_node& node) noexcept {
  auto& owner = static_cast<retired_owner&>(node);
  if (std::exchange(owner.in_graph_, false)) {
    owner.hub().count_in_graphs(-1);
    graph_registry::global().remove(owner);
    // CUDA let it go, perhaps too early.
    if (may_work_go_on_untold()) return release_hub::keep_for_ever(owner);
  }
  owner.clear();
  owner.hub().put_after_pass(owner);
}

}  // namespace escrow
