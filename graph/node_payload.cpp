// Payloads come from the deleter's store, as retired owners do.
#include "escrow/graph/node_payload.hpp"

#include "escrow/core/error.hpp"

namespace escrow::detail {

node_payload::pointer node_payload::take(release_hub& hub) {
  if (!hub.is_open()) {
    throw usage_error("node", "the deleter that destroys what nodes keep was stopped",
                      "add nodes before stop(), or make the graph with another deleter");
  }
  return pointer(&hub.take_retired_owner(0, false));
}

retired_owner* node_payload::hand_on(int device) noexcept {
  retired_owner* const handed_on = owner_.release();
  if (handed_on == nullptr) return nullptr;
  handed_on->set_device(device);
  handed_on->hold_first();
  handed_on->enter_graph();
  return handed_on;
}

void node_payload::put_back::operator()(retired_owner* unused) const noexcept {
  unused->let_go_parts();
  unused->clear();
  unused->hub().put_retired_owner(*unused);
}

}  // namespace escrow::detail
