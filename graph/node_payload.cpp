// Payloads come from the deleter's store, as retired owners do.
#include "escrow/graph/node_payload.hpp"

#include "escrow/core/error.hpp"

namespace escrow::detail {

node_payload::pointer node_payload::take(deleter_core& core) {
  if (!core.is_open()) {
    throw usage_error("node", "the deleter that destroys what nodes keep was stopped",
                      "add nodes before stop(), or make the graph with another deleter");
  }
  return pointer(&core.take_retired_object(0, false));
}

retired_object* node_payload::hand_on(int device) noexcept {
  retired_object* const handed_on = owner_.release();
  if (handed_on == nullptr) return nullptr;
  handed_on->set_device(device);
  handed_on->add_ref();
  handed_on->enter_graph();
  return handed_on;
}

void node_payload::put_back::operator()(retired_object* unused) const noexcept {
  unused->drop_companions();
  unused->clear();
  unused->core().put_retired_object(*unused);
}

}  // namespace escrow::detail
