// Which function does which operation on other kinds of memory, nodes and code.
#include "world.hpp"

namespace escrow::test {

outcome world::dispatch_kinds(operation const& next) {
  if (next.kind >= op::load_library) return dispatch_code(next);
  if (next.kind >= op::add_fill) return dispatch_nodes(next);
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

outcome world::dispatch_nodes(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::add_fill:
      return do_add_fill(a[0], a[1], a[2], a[3]);
    case op::add_fill_of_lease:
      return do_add_fill_of_lease(a[0], a[1], a[2]);
    case op::add_copy:
      return do_add_copy(a[0], a[1], a[2], a[3]);
    case op::add_join:
      return do_add_join(a[0], a[1]);
    case op::add_edge:
      return do_add_edge(a[0], a[1]);
    case op::make_event:
      return do_make_event(a[0]);
    case op::drop_event:
      return do_drop_event(a[0]);
    case op::add_event:
      return do_add_event(a[0], a[1], a[2], a[3]);
    case op::add_alloc:
      return do_add_alloc(a[0], a[1], a[2]);
    case op::add_free:
      return do_add_free(a[0], a[1]);
    case op::look:
      return do_look(a[0]);
    default:
      return outcome::skipped;
  }
}

outcome world::dispatch_code(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::load_library:
      return do_load_library(a[0]);
    case op::unload_library:
      return do_unload_library(a[0]);
    case op::launch_code:
      return do_launch_code(a[0], a[1]);
    case op::add_node_of_code:
      return do_add_node_of_code(a[0], a[1], a[2]);
    case op::set_node_of_code:
      return do_set_node_of_code(a[0], a[1]);
    case op::exec_set_of_code:
      return do_exec_set_of_code(a[0], a[1], a[2]);
    case op::upload:
      return do_upload(a[0], a[1]);
    case op::capture_call:
      return do_capture_call(a[0], a[1], a[2]);
    case op::move:
      return do_move(a[0], a[1]);
    case op::try_claim:
      return do_claim(a[0], a[1], a[2], true);
    default:
      return outcome::skipped;
  }
}

}  // namespace escrow::test
