// SPDX-License-Identifier: Apache-2.0
// Operations that go together, by their names: see generate.cpp.
#pragma once

#include <string_view>

namespace escrow::test {

/// Operations that go together, which a program of single ones would seldom come to. What lies
/// between them is as random as the places.
inline constexpr std::string_view sequences_text = R"(
  own make_graph add_node add_node instantiate launch;
  own make_graph add_node own add_node instantiate launch exec_set launch destroy_exec;
  own make_graph add_node add_node instantiate destroy_node add_node update exec_set launch disown
      settle;
  own make_graph add_node expose set_node disown instantiate launch destroy_graph;
  own make_graph add_node instantiate set_node hoist instantiate launch let_go settle;
  claim make_graph add_node_of_lease add_node_of_lease release instantiate launch destroy_graph
      destroy_exec poll;
  own make_graph add_node add_node instantiate set_enabled launch exec_set launch set_enabled launch
      destroy_graph destroy_exec settle;
  own make_graph add_node add_node instantiate launch set_enabled launch update launch set_enabled
      launch set_enabled settle;
  own make_graph add_node add_fill hoist instantiate disown set_enabled set_enabled launch let_go
      poll launch settle;
  own make_graph add_node make_graph add_child_node instantiate launch own set_node exec_set_child
      launch exec_set_child launch disown step poll destroy_graph settle;
  own make_graph add_node make_graph add_child_node instantiate own set_node exec_set_child launch
      disown own set_node exec_set_child disown step settle launch settle;
  own make_graph add_node make_graph add_child_node instantiate launch own make_graph add_node
      set_child_node disown instantiate launch destroy_exec step poll update settle;
  begin claim_captured release end make_graph add_child_node instantiate launch set_child_node
      exec_set_child launch instantiate launch destroy_graph settle claim;
  own make_graph add_kernel_with instantiate launch set_kernel_with update launch
      exec_set_kernel_with launch destroy_node settle;
  begin claim_captured release claim_captured fork claim_captured release join claim_captured end
      instantiate launch launch;
  begin fork claim_captured release fork claim_captured release retire end clone instantiate
      instantiate launch launch;
  begin work fork claim_captured release wait_early claim_captured release join claim_captured end
      instantiate launch launch;
  begin fork claim_captured touch wait_early release claim_captured release end instantiate launch
      launch;
  begin retire claim_captured drop_lease end child instantiate launch destroy_graph destroy_exec;
  begin claim_captured release end clone child child instantiate launch;
  begin claim_captured keep release end instantiate launch destroy_graph destroy_exec step poll
      claim;
  claim release claim touch release_on claim release;
  claim launch_lease step release begin claim end;
  begin claim_captured release end begin_into claim_captured release end;
  share use_shared use_shared unshare step poll;
  claim_scratch touch release claim_scratch release_on claim_scratch;
  begin claim_scratch release claim_scratch fork claim_scratch release join claim_scratch end
      instantiate launch launch;
  begin fork fork claim_scratch touch leave_to_graph claim_scratch leave_to_graph claim_scratch
      release end instantiate launch launch destroy_graph destroy_exec poll claim_scratch;
  begin fork fork claim_scratch touch claim_scratch end touch leave_to_graph leave_to_graph
      release_on destroy_graph claim_scratch;
  begin fork fork claim_scratch end instantiate launch destroy_scratch launch destroy_graph settle;
  claim_scratch touch release claim_scratch release trim claim_scratch step trim settle trim;
  begin claim_scratch release claim_scratch end trim release instantiate launch trim destroy_graph
      step trim destroy_exec settle trim;
  claim_scratch make_scratch_claimer claim_on claim_on release release trim claim_on trim;
  claim_scratch release claim_scratch claim_scratch release claim_scratch release claim_scratch
      release claim_scratch poll;
  claim_scratch claim_scratch begin claim_scratch release claim_scratch end release claim_scratch;
  claim_scratch claim_scratch claim_scratch begin drop_lease drop_lease drop_lease end settle;
  claim touch retire_lease step poll claim touch release claim;
  claim begin retire_lease end instantiate launch destroy_graph destroy_exec poll claim begin
      claim_captured end;
  begin claim_captured end instantiate launch touch retire_lease poll destroy_graph destroy_exec
      poll begin claim_captured release end;
  begin claim_captured retire_lease claim_captured end instantiate launch destroy_graph destroy_exec
      poll claim claim;
  claim_scratch make_graph add_node_of_lease release instantiate launch destroy_graph destroy_exec
      poll claim_scratch;
  own make_graph add_conditional add_body_node instantiate launch destroy_exec poll;
  make_graph add_conditional claim add_body_node_of_lease release own add_conditional_inside
      add_body_node instantiate launch exec_set launch destroy_graph destroy_exec drop_body
      settle;
  make_graph add_conditional capture_into_body capture_into_body instantiate launch hoist launch
      destroy_graph add_body_node drop_body settle;
  own make_graph add_node make_graph add_conditional embed_in_body disown hoist destroy_graph
      drop_body settle;
  own make_graph add_conditional add_body_node instantiate launch destroy_conditional disown
      add_conditional instantiate destroy_exec step poll instantiate launch destroy_graph settle;
  own make_graph add_conditional add_body_node add_conditional_inside capture_into_body
      add_body_node destroy_conditional add_conditional hoist instantiate launch settle;
  own make_graph add_fill own add_copy add_join clone instantiate launch set_node exec_set disown
      launch settle;
  make_event make_graph add_event drop_event make_event make_graph add_event instantiate launch
      instantiate launch exec_set drop_event destroy_graph launch destroy_exec settle;
  own make_graph add_alloc add_node disown instantiate launch make_graph add_free instantiate
      launch launch destroy_node;
  own make_graph add_alloc add_node add_free instantiate launch launch destroy_exec instantiate
      launch;
  claim_scratch make_graph add_fill_of_lease release instantiate launch destroy_graph launch
      destroy_exec settle claim_scratch;
  load_library launch_code make_graph add_node_of_code unload_library instantiate launch
      destroy_graph destroy_exec settle;
  load_foreign launch_code make_graph add_node_of_code set_node_of_code unload_library instantiate
      launch destroy_graph destroy_exec settle;
  load_foreign begin launch_code end clone unload_library instantiate launch destroy_graph
      destroy_exec settle;
  begin claim_captured release end set_add begin claim_captured release end set_add begin retire end
      set_add set_launch set_launch set_launch set_launch drop_set settle;
  begin claim_captured release end instantiate set_add begin claim_captured release end set_add
      launch set_launch set_launch launch set_launch destroy_exec set_launch settle;
  own make_graph add_node add_node_of_lease clone set_add set_add set_launch set_launch drop_set
      launch set_add set_launch settle;
  begin claim_captured release end begin claim_captured release end make_graph child child
      instantiate;
  begin claim_captured release end instantiate bind launch_bound launch_bound destroy_graph flush
      launch_bound destroy_exec poll claim;
  begin claim_captured release end instantiate bind launch_bound instantiate launch flush launch
      launch_bound launch destroy_exec launch_bound unbind launch destroy_exec settle;
  begin claim_captured release end instantiate bind launch_bound set_add set_launch flush set_launch
      launch_bound destroy_exec settle;
  load_library begin launch_code end clone unload_library instantiate upload launch settle;
  begin claim_captured release end hoist instantiate enter launch_in_turn leave begin claim_captured
      release end instantiate launch enter launch_in_turn leave launch let_go settle;
  begin claim_captured release end hoist instantiate instantiate enter launch_in_turn leave enter
      launch_in_turn leave let_go settle;
  begin claim_captured release end hoist work let_go begin claim_captured claim_captured release end
      instantiate launch;
  begin claim_captured release end clone instantiate hoist instantiate launch launch_hoisted
      launch_hoisted launch let_go settle;
  begin claim_captured release end clone instantiate hoist instantiate launch enter launch_in_turn
      leave hoist launch enter launch_in_turn destroy_graph leave launch let_go let_go;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter flush enter
      launch_in_turn launch_bound leave launch_bound enter launch_in_turn leave let_go settle;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter
      launch_in_turn flush launch_in_turn leave enter launch_in_turn destroy_exec leave settle;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter
      launch_in_turn drop_hoisted launch_bound settle;
  make_claimer claim_on release claim_on release claim work claim_on release flush_claims claim;
  make_claimer claim_on claim_on claim_on release release release claim claim begin claim_captured;
  make_claimer claim_on release begin_on claim_on release claim_on release end claim_on instantiate
      launch release claim_on launch claim_on release;
  make_claimer claim_on claim_on release begin_on release claim_on touch release end claim_on;
  make_claimer claim_on release begin_on claim_captured end_claimer end claim claim;
  make_claimer claim_on release destroy_pool flush_claims make_pool make_claimer claim_on
      destroy_pool release end_claimer;
  make_claimer claim_on end_claimer make_claimer claim_on release release claim claim_on;
  make_claimer claim_on release_on claim_on touch release claim_on drop_lease close_pool
      end_claimer;
  make_scratch_claimer claim_on release claim_on release claim_scratch claim_scratch flush_claims
      claim_scratch end_claimer;
  stage release stage step release stage step stage;
  claim visit release claim visit release claim visit release_on claim visit;
  begin fork fork claim_captured visit release claim_captured visit release claim_captured visit
      release end instantiate launch launch;
  claim claim retire_both destroy_stream step poll claim claim claim;
  claim retire_lease destroy_stream poll claim retire_lease destroy_stream step poll claim;
  make_claimer claim_on claim_on retire_both step poll claim_on claim;
  claim touch end_in_host_function step claim release;
  capture_output instantiate launch read launch read release destroy_graph destroy_exec poll claim;
  capture_output instantiate launch destroy_stream read retire_lease poll destroy_graph destroy_exec
      poll claim begin claim_captured end;
  capture_output instantiate end_in_host_function launch step destroy_graph destroy_exec settle
      claim;
  capture_output leave_to_graph instantiate launch destroy_graph destroy_exec poll claim;
  capture_output begin launch_lease touch release end instantiate launch destroy_graph destroy_exec
      settle claim;
  claim begin launch_lease end instantiate launch release claim destroy_graph destroy_exec poll
      claim;
  claim begin touch retire_lease end instantiate launch destroy_graph destroy_exec poll claim;)";

/// The same before ':'; then operations that run at the same time, in several forms.
inline constexpr std::string_view meetings_text = R"(
  : claim close_pool, claim claim close_pool;
  claim release claim: claim claim, claim release, release claim, release release claim,
      release_on claim poll, release close_pool;
  claim: drop_lease destroy_pool, drop_lease destroy_pool poll, launch_lease poll;
  claim: retire_lease poll, retire_lease poll claim;
  claim touch retire_lease step: poll claim, poll claim release, poll destroy_pool, poll begin;
  : claim begin, claim poll;
  own make_graph add_node instantiate launch step step disown destroy_graph destroy_exec step:
      claim step;
  begin claim retire release end instantiate launch step step destroy_graph destroy_exec step:
      claim step, claim step poll, claim claim step, close_pool step poll;
  begin claim release end: claim destroy_graph;
  begin retire end instantiate launch step destroy_graph destroy_exec make_graph: instantiate step;
  begin fork fork claim_scratch claim_scratch end: leave_to_graph destroy_graph, leave_to_graph
      destroy_graph poll, release_on destroy_graph;
  claim_scratch touch claim_scratch step release: release trim, trim release, trim drop_lease step,
      trim release_on poll, trim trim;
  begin claim_scratch release end: destroy_graph trim, trim destroy_graph poll;
  own make_graph add_node instantiate launch step step disown destroy_graph destroy_exec step:
      retire step, instantiate step, drain step, instantiate destroy_graph destroy_exec, poll
      step;
  : retire poll, retire step poll, retire retire poll, drain retire;
  settle: poll retire_now drain;
  retire settle: poll drain;
  : poll poll, keep poll;
  share: use_shared unshare;
  share use_shared: use_shared unshare poll, use_shared use_shared unshare;
  own make_graph add_node instantiate instantiate launch: launch launch, launch destroy_exec,
      launch launch destroy_exec, launch step, launch update, launch destroy_graph poll,
      destroy_exec poll, destroy_exec destroy_graph, update poll, update step poll, exec_set poll,
      set_node poll, hoist poll, instantiate poll step;
  claim make_graph add_node_of_lease instantiate release instantiate: launch launch;
  begin claim release end instantiate instantiate: launch launch, launch launch step, launch
      destroy_exec claim;
  claim make_graph add_node_of_lease instantiate release instantiate: launch launch step,
      destroy_exec destroy_exec claim, destroy_graph claim, claim destroy_exec poll;
  begin claim_captured release end instantiate bind launch_bound instantiate: launch_bound launch,
      launch_bound launch step, launch flush, launch flush step, launch destroy_exec, launch unbind;
  begin claim_captured release end instantiate bind instantiate: launch_bound launch, launch_bound
      launch step;
  begin claim_captured release end instantiate bind: launch_bound instantiate, launch_bound begin,
      launch_bound destroy_graph step;
  own make_graph add_node add_node instantiate instantiate launch: set_enabled launch, set_enabled
      launch step, set_enabled poll, set_enabled destroy_exec poll;
  own make_graph add_node make_graph add_child_node instantiate launch: exec_set_child poll,
      exec_set_child step poll, set_child_node poll;
  hoist: let_go poll;
  begin claim_captured release end clone instantiate hoist instantiate enter launch_in_turn: launch
      leave, launch launch_in_turn leave, launch launch, leave launch step, launch leave enter;
  begin claim_captured release end clone hoist hoist instantiate instantiate enter launch_in_turn:
      enter leave, enter leave step, enter launch, launch_hoisted leave, launch_hoisted leave step;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate: enter
      launch_bound, enter flush, enter flush step, enter unbind step, enter destroy_exec step;
  begin claim_captured release end instantiate bind hoist instantiate launch_bound enter
      launch_in_turn: launch_bound leave, launch_bound launch_in_turn leave, flush leave step;
  make_claimer claim_on: claim_on release, claim_on release claim, release claim, end_claimer
      release, end_claimer release claim, flush_claims release, claim_on drop_lease begin;
  make_claimer claim_on release: claim_on claim, claim_on claim claim, flush_claims claim,
      end_claimer claim, end_claimer destroy_pool, end_claimer close_pool, claim_on close_pool;
  make_claimer claim_on claim_on: release release, release release claim_on, release release
      claim, release claim_on claim;
  make_claimer make_claimer claim_on claim_on release release: claim_on claim_on, claim_on claim_on
      claim, make_claimer claim_on, end_claimer claim_on, end_claimer make_claimer;
  stage: release stage, release stage step, stage step release;
  claim claim: retire_both poll claim, retire_both step poll, retire_both read_stats poll;
  claim claim retire_both step: poll claim, poll claim claim, poll begin;
  claim end_in_host_function: step claim, step release claim;
  begin claim_captured release end: claim read_stats, claim_captured read_stats step, destroy_graph
      read_stats claim, release read_stats;
  begin claim_captured release end instantiate instantiate: launch launch read_stats, launch
      read_stats step, launch read_stats destroy_exec;
  claim begin: launch_lease claim, launch_lease poll, visit claim;)";

}  // namespace escrow::test
