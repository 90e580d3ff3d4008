// Which operations meet.
#include "meetings.hpp"

namespace escrow::test {

namespace {

sequence const slots_in_use{op::claim, op::release, op::claim};
sequence const slot_in_graph{op::claim,       op::make_graph, op::add_node_of_lease,
                             op::instantiate, op::release,    op::instantiate};
sequence const slot_in_two_execs{op::begin, op::claim,       op::release,
                                 op::end,   op::instantiate, op::instantiate};
sequence const two_execs{op::own,         op::make_graph,  op::add_node,
                         op::instantiate, op::instantiate, op::launch};
sequence const exec_gone{op::own,           op::make_graph,   op::add_node, op::instantiate,
                         op::launch,        op::step,         op::step,     op::disown,
                         op::destroy_graph, op::destroy_exec, op::step};
sequence const capture_gone{op::begin, op::claim,         op::retire,       op::release,
                            op::end,   op::instantiate,   op::launch,       op::step,
                            op::step,  op::destroy_graph, op::destroy_exec, op::step};

}  // namespace

std::vector<meeting> const& meetings() {
  static std::vector<meeting> const all{
      {{}, {op::claim, op::close_pool}},
      {{}, {op::claim, op::claim, op::close_pool}},
      {slots_in_use, {op::claim, op::claim}},
      {slots_in_use, {op::claim, op::release}},
      {slots_in_use, {op::release, op::claim}},
      {slots_in_use, {op::release, op::release, op::claim}},
      {slots_in_use, {op::release_on, op::claim, op::poll}},
      {slots_in_use, {op::release, op::close_pool}},
      {{op::claim}, {op::drop_lease, op::destroy_pool}},
      {{op::claim}, {op::drop_lease, op::destroy_pool, op::poll}},
      {{op::claim}, {op::launch_lease, op::poll}},
      {{}, {op::claim, op::begin}},
      {{}, {op::claim, op::poll}},
      {exec_gone, {op::claim, op::step}},
      {capture_gone, {op::claim, op::step}},
      {capture_gone, {op::claim, op::step, op::poll}},
      {capture_gone, {op::claim, op::claim, op::step}},
      {capture_gone, {op::close_pool, op::step, op::poll}},
      {{op::begin, op::claim, op::release, op::end}, {op::claim, op::destroy_graph}},
      {exec_gone, {op::retire, op::step}},
      {exec_gone, {op::instantiate, op::step}},
      {exec_gone, {op::drain, op::step}},
      {exec_gone, {op::instantiate, op::destroy_graph, op::destroy_exec}},
      {exec_gone, {op::poll, op::step}},
      {{}, {op::retire, op::poll}},
      {{}, {op::retire, op::step, op::poll}},
      {{}, {op::retire, op::retire, op::poll}},
      {{}, {op::drain, op::retire}},
      {{op::settle}, {op::poll, op::retire_now, op::drain}},
      {{op::retire, op::settle}, {op::poll, op::drain}},
      {{}, {op::poll, op::poll}},
      {{}, {op::keep, op::poll}},
      {{op::share}, {op::use_shared, op::unshare}},
      {{op::share, op::use_shared}, {op::use_shared, op::unshare, op::poll}},
      {{op::share, op::use_shared}, {op::use_shared, op::use_shared, op::unshare}},
      {two_execs, {op::launch, op::launch}},
      {two_execs, {op::launch, op::destroy_exec}},
      {two_execs, {op::launch, op::launch, op::destroy_exec}},
      {two_execs, {op::launch, op::step}},
      {two_execs, {op::launch, op::update}},
      {two_execs, {op::launch, op::destroy_graph, op::poll}},
      {two_execs, {op::destroy_exec, op::poll}},
      {two_execs, {op::destroy_exec, op::destroy_graph}},
      {two_execs, {op::update, op::poll}},
      {two_execs, {op::update, op::step, op::poll}},
      {two_execs, {op::exec_set, op::poll}},
      {two_execs, {op::set_node, op::poll}},
      {two_execs, {op::hoist, op::poll}},
      {two_execs, {op::instantiate, op::poll, op::step}},
      {slot_in_graph, {op::launch, op::launch}},
      {slot_in_two_execs, {op::launch, op::launch}},
      {slot_in_two_execs, {op::launch, op::launch, op::step}},
      {slot_in_two_execs, {op::launch, op::destroy_exec, op::claim}},
      {slot_in_graph, {op::launch, op::launch, op::step}},
      {slot_in_graph, {op::destroy_exec, op::destroy_exec, op::claim}},
      {slot_in_graph, {op::destroy_graph, op::claim}},
      {slot_in_graph, {op::claim, op::destroy_exec, op::poll}},
      {{op::hoist}, {op::let_go, op::poll}},
  };
  return all;
}

}  // namespace escrow::test
