// Which function does which operation on other kinds of memory, nodes and code.
#include "world.hpp"

namespace escrow::test {

outcome world::dispatch_kinds(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::claim_scratch:
      return do_claim_scratch(a[0], a[1], a[2]);
    case op::close_scratch:
      return do_close_scratch();
    case op::destroy_scratch:
      return do_destroy_scratch();
    case op::add_conditional:
      return do_add_conditional(a[0], a[1], a[2]);
    case op::add_conditional_inside:
      return do_add_conditional_inside(a[0], a[1], a[2]);
    case op::add_body_node:
      return do_add_body_node(a[0], a[1], a[2], a[3]);
    case op::add_body_node_of_lease:
      return do_add_body_node_of_lease(a[0], a[1], a[2]);
    case op::embed_in_body:
      return do_embed_in_body(a[0], a[1]);
    case op::capture_into_body:
      return do_capture_into_body(a[0], a[1], a[2]);
    case op::drop_body:
      return do_drop_body(a[0]);
    default:
      return outcome::skipped;
  }
}

}  // namespace escrow::test
