// SPDX-License-Identifier: Apache-2.0
// Nodes that are switched off in an exec, child nodes that get another graph, and kernels with
// launch attributes.
#pragma once

#include "world_bodies.hpp"

namespace escrow::test {

struct world_parts : world_bodies {
  // Ways 0 and 1: it does not run any more; 2: it runs; 3: the same, also of a kind that cannot be
  // switched.
  outcome do_set_enabled(nth e, nth n, nth way) {
    exec_place& place = execs_[e];
    node_place const& at = nodes_[n];
    if (!may_set(place, at)) return skipped;
    bool const can_be = at.can_be_disabled();
    bool const is_sure =
        can_be && place.is_of_graph && at.serial == place.made_of && !place.has_other_nodes;
    auto const its = std::ranges::find(place.off, at.handle.get(), &disabled_node::handle);
    bool const was_off = its != place.off.end();
    bool const is_on = way >= 2;
    bool had_run = !was_off;
    outcome const result = attempt(!is_sure, !is_sure, [&] {
      had_run = is_enabled(*place.own, at.handle);
      set_enabled(*place.own, at.handle, is_on);
    });
    meet(node_of_another_kind_not_disabled, result == failed && !can_be);
    if (result != done) return result;
    if (!can_be) fail("a node was disabled that CUDA does not disable");
    if (had_run == was_off) fail("a node of an exec was disabled, or enabled, by nobody");
    meet(disabled_node_asked_after_an_update, was_off && place.was_updated);
    meet(node_disabled_in_flight, !is_on && !was_off && is_in_flight(place));
    meet(node_enabled_again, is_on && was_off);
    if (is_on && was_off) place.off.erase(its);
    if (!is_on && !was_off) place.off.push_back({at.handle.get(), at.id});
    return result;
  }

  /// What a child node has of its graph.
  contents child_contents(nth g, int node, bool by_exec) {
    contents copy = copy_of(model_.graphs[g], true);
    copy.give_to(node);
    for (entries* const list : {&copy.held, &copy.lingering, &copy.needed})
      for (entry& each : *list) each.by_exec = by_exec;
    // A copy that could not be noted is in the graph all the same; hoisting does not find it.
    if (may_be_half_done()) append(copy.lingering, std::exchange(copy.held, {}));
    if (may_be_half_done()) make_racy(copy.needed);
    return copy;
  }

  /// The graph has a copy of the other in it.
  void note_child(nth parent, nth child) {
    graph_place& outer = graphs_[parent];
    graph_place const& inner = graphs_[child];
    note_use(child);
    outer.is_parent = true;
    outer.is_loose = outer.is_loose || is_loose(inner);
    outer.is_hoisted = outer.is_hoisted || inner.is_hoisted;
    outer.has_calls = outer.has_calls || inner.has_calls;
    outer.has_events = outer.has_events || inner.has_events;
  }

  /// A call that copies the graph, which CUDA, or the slots of living leases, may forbid.
  outcome attempt_copy(nth parent, nth child, bool is_wrong, std::function<void()> const& action) {
    graph_place& inner = graphs_[child];
    inner.was_copied = true;
    bool const is_itself = parent == child;
    outcome const result = attempt(is_itself || run_->shares, is_wrong || inner.is_single, action);
    if (result == done && (is_itself || is_wrong)) fail("a graph was copied to where it cannot be");
    meet(graph_not_put_into_itself, is_itself && result == refused);
    return is_wrong && result == failed ? refused : result;
  }

  outcome do_add_child_node(nth n, nth g, nth child) {
    if (!graphs_[child].own) return skipped;
    node made;
    outcome const result = attempt_copy(g, child, false, [&] {
      made = build(*graphs_[g].own).add(child_node(*graphs_[child].own));
    });
    if (result != done) return result;
    note_node(n, g, made, {}, node_kind::child);
    nodes_[n].child = graphs_[child].serial;
    note_child(g, child);
    contents const added = child_contents(child, nodes_[n].id, false);
    model_.graphs[g].append(added);
    meet(things_on_a_parent_graph, !added.held.empty());
    return result;
  }

  // Way 3: also of a node of another kind, which is refused.
  outcome do_set_child_node(nth n, nth child, nth way) {
    node_place& at = nodes_[n];
    if (!is_there(at) || !is_usable(child) || !graphs_[child].own) return skipped;
    bool const is_wrong = at.is != node_kind::child;
    if ((is_wrong && way != 3) || at.is_in_body) return skipped;
    contents& in = model_.graphs[at.graph];
    contents const before = in;
    for (entries* const list : {&in.held, &in.lingering})
      append(in.replaced, take_node(*list, at.id));
    outcome const result = attempt_copy(at.graph, child, is_wrong,
                                        [&] { at.handle.set(child_node(*graphs_[child].own)); });
    if (result != done) {
      in = before;
      return result;
    }
    meet(child_replaced);
    meet(child_replaced_beside_its_exec, has_exec(at.serial));
    meet(child_with_things_replaced, in.replaced.size() > before.replaced.size());
    note_set(at, {});
    in.append(child_contents(child, at.id, false));
    note_child(at.graph, child);
    ++graphs_[at.graph].shape;
    at.child = graphs_[child].serial;
    return result;
  }

  /// As set_in_exec().
  outcome do_exec_set_child(nth e, nth n, nth child, nth way) {
    exec_place& place = execs_[e];
    node_place const& at = nodes_[n];
    if (!may_set(place, at) || !is_usable(child) || !graphs_[child].own) return skipped;
    bool const is_wrong = at.is != node_kind::child;
    if (is_wrong && way != 3) return skipped;
    contents& in = model_.execs[e];
    contents const before = in;
    auto const is_replaced = [&](entry const& each) { return each.node == at.id && each.by_exec; };
    entries const old = take(in.held, is_replaced);
    model_.keep_for_launches(old, place.behind);
    append(in.lingering, old);
    graphs_[child].was_copied = true;
    // The exec may be another graph's, and only a graph of the same form will do.
    outcome const result =
        attempt(true, true, [&] { set(*place.own, at.handle, child_node(*graphs_[child].own)); });
    in.lingering = before.lingering;
    if (result != done) {
      in.held = before.held;
      return result;
    }
    if (is_wrong) fail("a node of an exec runs a graph, and is no child");
    meet(child_replaced_in_an_exec);
    meet(child_replaced_in_an_exec_in_flight, is_in_flight(place));
    meet(child_with_things_replaced_in_an_exec, !old.empty());
    note_use(child);
    std::erase_if(in.needed, is_replaced);
    if (!place.is_end_unknown) take(in.lingering, is_replaced);
    if (place.is_end_unknown) append(in.lingering, old);
    if (place.has_other_nodes) make_racy(in.needed);
    note_other_work(place, in);
    note_work(in, at, nullptr);
    in.append(child_contents(child, at.id, true));
    return result;
  }

  /// A kernel that keeps an owner, and its attributes by the way: 0: clusters; 1: others, and a
  /// priority; 2: a cooperative launch; 3: ones that no node can have.
  node_content with_attributes(nth o, nth way) {
    auto const number = [](cudaLaunchAttributeID id, int value) {
      cudaLaunchAttribute made{};
      made.id = id;
      made.val.cooperative = value;
      return made;
    };
    auto const clusters = [](unsigned blocks) {
      cudaLaunchAttribute made{};
      made.id = cudaLaunchAttributeClusterDimension;
      made.val.clusterDim = {blocks, 1, 1};
      return made;
    };
    piece_of_work& work = all_.add_work();
    node_content what = with_owner(node_kind::kernel, o, true, work, 1);
    if (way < 2) work.clusters = way == 0 ? 2 : 4;
    if (way < 2) what.attributes.push_back(clusters(static_cast<unsigned>(work.clusters)));
    if (way == 1 || way == 3) what.attributes.push_back(number(cudaLaunchAttributePriority, -1));
    if (way == 2) what.attributes.push_back(number(cudaLaunchAttributeCooperative, 1));
    what.is_wrong = way == 3;
    if (what.is_wrong && o == 0)
      what.attributes.push_back(number(cudaLaunchAttributeProgrammaticStreamSerialization, 1));
    if (what.is_wrong && o != 0) what.attributes.push_back(clusters(3));
    return what;
  }

  outcome do_add_kernel_with(nth n, nth g, nth o, nth way) {
    outcome const result = add_to_graph(n, g, with_attributes(o, way));
    meet(kernel_added_with_attributes, result == done);
    meet(attributes_refused, result == refused && way == 3);
    return result;
  }

  outcome do_set_kernel_with(nth n, nth o, nth way) {
    node_place const& at = nodes_[n];
    if (!is_there(at) || at.is != node_kind::kernel || !owners_[o].share) return skipped;
    node_content const what = with_attributes(o, way);
    if (at.is_in_body) what.work->clusters = 0;
    outcome const result = set_in_graph(n, what);
    meet(kernel_set_with_attributes, result == done);
    meet(attributes_refused, result == refused && way == 3);
    return result;
  }

  /// CUDA ignores them there. Even ways: with attributes, which is refused; else those stay that
  /// the node has.
  outcome do_exec_set_kernel_with(nth e, nth n, nth o, nth way) {
    node_place const& at = nodes_[n];
    if (!may_set(execs_[e], at) || at.is != node_kind::kernel || !owners_[o].share) return skipped;
    bool const is_wrong = way % 2 == 0;
    piece_of_work& work = all_.add_work();
    outcome const result = set_in_exec(
        e, n, is_wrong ? with_attributes(o, way) : with_owner(node_kind::kernel, o, true, work, 1));
    if (result == done && is_wrong) fail("a kernel of an exec got launch attributes");
    meet(attributes_refused_in_an_exec, result == refused && is_wrong);
    meet(clusters_stay_in_an_exec, result == done && work.clusters != 0);
    return result;
  }
};

}  // namespace escrow::test
