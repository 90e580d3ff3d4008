// Which function does which operation.
#include "world.hpp"

namespace escrow::test {

outcome world::dispatch(operation const& next) {
  if (next.kind >= op::claim_scratch) return dispatch_kinds(next);
  if (next.kind >= op::make_graph) return dispatch_graphs(next);
  if (next.kind >= op::retire) return dispatch_owners(next);
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::step:
      return do_step(a[0]);
    case op::work:
      return do_work(a[0]);
    case op::poll:
      return do_poll();
    case op::settle:
      return do_settle();
    case op::drain:
      return do_drain();
    case op::stop:
      return do_stop();
    case op::fail_device:
      return do_fail_device(a[0]);
    case op::claim:
    case op::claim_captured:
      return do_claim(a[0], a[1], a[2]);
    case op::touch:
      return do_touch(a[0], a[1]);
    case op::release:
      return do_release(a[0], leases_[a[0]].stream, 0);
    case op::release_on:
      return do_release(a[0], a[1], 1);
    case op::drop_lease:
      return do_release(a[0], leases_[a[0]].stream, 2);
    case op::close_pool:
      return do_close_pool(a[0]);
    case op::destroy_pool:
      return do_destroy_pool(a[0]);
    case op::make_pool:
      return do_make_pool(a[0]);
    default:
      return outcome::skipped;
  }
}

outcome world::dispatch_owners(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::retire:
      return do_retire(a[0]);
    case op::retire_now:
      return do_retire_now();
    case op::retire_after:
      return do_retire_after(a[0]);
    case op::retire_graph:
      return do_retire_graph(a[0]);
    case op::own:
      return do_own(a[0]);
    case op::disown:
      return do_disown(a[0]);
    case op::keep:
      return do_keep(a[0], a[1], a[2]);
    case op::launch_lease:
      return do_launch_lease(a[0], a[1]);
    case op::share:
      return do_share(a[0]);
    case op::use_shared:
      return do_use_shared(a[0], a[1]);
    case op::unshare:
      return do_unshare(a[0]);
    case op::begin:
      return do_begin(a[0], a[1]);
    case op::begin_into:
      return do_begin_into(a[0], a[1]);
    case op::fork:
      return do_fork(a[0], a[1]);
    case op::join:
      return do_join(a[0], a[1]);
    case op::wait_early:
      return do_wait_early(a[0], a[1], a[2]);
    case op::end:
      return do_end(a[0], a[1], a[2]);
    case op::invalidate:
      return do_invalidate(a[0]);
    case op::destroy_stream:
      return do_destroy_stream(a[0]);
    default:
      return outcome::skipped;
  }
}

outcome world::dispatch_graphs(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::make_graph:
      return do_make_graph(a[0]);
    case op::expose:
      return do_expose(a[0]);
    case op::clone:
      return do_clone(a[0], a[1], a[2]);
    case op::child:
      return do_child(a[0], a[1], a[2]);
    case op::destroy_graph:
      return do_destroy_graph(a[0]);
    case op::instantiate:
      return do_instantiate(a[0], a[1], a[2]);
    case op::launch:
      return do_launch(a[0], a[1], a[2]);
    case op::update:
      return do_update(a[0], a[1], a[2]);
    case op::destroy_exec:
      return do_destroy_exec(a[0]);
    case op::hoist:
      return do_hoist(a[0], a[1], a[2]);
    case op::let_go:
      return do_let_go(a[0], a[1], a[2]);
    case op::drop_hoisted:
      return do_drop_hoisted(a[0]);
    case op::add_node:
      return do_add_node(a[0], a[1], a[2], a[3]);
    case op::add_node_of_lease:
      return do_add_node_of_lease(a[0], a[1], a[2]);
    case op::set_node:
      return do_set_node(a[0], a[1], a[2]);
    case op::set_node_of_lease:
      return do_set_node_of_lease(a[0], a[1]);
    case op::destroy_node:
      return do_destroy_node(a[0]);
    case op::exec_set:
      return do_exec_set(a[0], a[1], a[2]);
    case op::exec_set_of_lease:
      return do_exec_set_of_lease(a[0], a[1], a[2]);
    default:
      return outcome::skipped;
  }
}

}  // namespace escrow::test
