// The way of a node into the release queue.
#include "escrow/deleter/release_node.hpp"

#include "release_hub_state.hpp"

namespace escrow {

release_node::release_node(release_hub& hub, release_lane lane, int device,
                           reclaim_function reclaim)
    : hub_(&hub), reclaim_(reclaim), device_(device), lane_(lane) {
  queue().reserve_places(1);
  hub.add_use();
}

release_node::release_node(place_is_reserved /*reserved*/, release_hub& hub, release_lane lane,
                           int device, reclaim_function reclaim) noexcept
    : hub_(&hub), reclaim_(reclaim), device_(device), lane_(lane) {
  hub.add_use();
}

release_node::~release_node() {
  queue().cancel_place();
  hub_->drop_use();
}

release_queue& release_node::queue() const noexcept {
  release_hub::state& hub = *hub_->state_;
  return lane_ == release_lane::recycle ? hub.recycled : hub.destroyed;
}

void release_node::push() noexcept {
  // Once the node is in the queue, it may be gone, and the hub with it; the wakeup stays.
  wakeup& bell = *hub_->state_->bell;
  queue().push(*this);
  bell.notify();
}

void release_node::reclaim_again_after(cudaEvent_t ready) noexcept {
  ready_ = ready;
  hub_->state_->reclaiming.postpone(*this);
}

}  // namespace escrow
