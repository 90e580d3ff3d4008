// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs and execs that are set, ordered, destroyed, and read; conditional nodes, and what
// their bodies keep.
#pragma once

#include "world_nodes.hpp"

namespace escrow::test {

struct world_changes : world_nodes {
  /// What the graph has for the node may go when the graph is next used, or goes on to a hoisted.
  outcome set_in_graph(nth n, node_content const& what) {
    node_place& at = nodes_[n];
    contents& in = model_.graphs[at.graph];
    entries const old = take_node(in.held, at.id);
    append(in.replaced, old);
    outcome const result = attempt(is_stopped_, what.is_wrong, [&] {
      node_target to{.changed = &at.handle};
      to.shape.attributes = what.attributes;
      what.put(to);
    });
    if (result == done) {
      note_set(at, what.kept, what.work);
    } else {
      in.replaced.resize(in.replaced.size() - old.size());
      append(in.held, old);
    }
    return what.is_wrong ? refused_by_cuda(result) : result;
  }

  void note_set(node_place const& at, entries const& kept, piece_of_work* work = nullptr) {
    contents& in = model_.graphs[at.graph];
    note_work(in, at, at.is_in_body ? nullptr : work);
    take_node(in.held, at.id);
    take_node(in.needed, at.id);
    in.give(at.id, kept);
    model_.grow(at.serial, kept);
    ++graphs_[at.graph].changes;
    for (exec_place const& each : execs_)
      meet(node_changed_with_an_exec_there, each.is_there() && each.made_of == at.serial);
  }

  /// Whether with_owner() may be asked for another content of the node.
  bool can_be_set(node_place const& at, nth o, bool keeps) const {
    if (at.is_event()) return events_[o] != nullptr;
    return !keeps || owners_[o].share != nullptr;
  }

  /// A fill takes memory alone.
  bool can_take(node_place const& at, lease_place const& from) {
    return at.is == node_kind::kernel || (at.is == node_kind::fill && from.memory != nullptr);
  }

  outcome do_set_node(nth n, nth o, nth way) {
    node_place const& at = nodes_[n];
    bool const can_be_bare = at.is == node_kind::kernel || at.is == node_kind::fill;
    bool const keeps = way != 2 || !can_be_bare;
    if (!is_there(at) || !can_be_set(at, o, keeps)) return skipped;
    node_content what = with_owner(at.is, o, keeps, all_.add_work(), keeps ? 1 : 0);
    what.is_wrong = at.is == node_kind::empty || at.is == node_kind::child;
    return set_in_graph(n, what);
  }

  outcome do_set_node_of_lease(nth n, nth l) {
    if (!can_take(nodes_[n], leases_[l])) return skipped;
    return note_share(l, set_in_graph(n, with_lease(nodes_[n].is, l, all_.add_work())));
  }

  outcome do_set_node_of_code(nth n, nth y) {
    node_place const& at = nodes_[n];
    if (at.is != node_kind::kernel) return skipped;
    return set_in_graph(n, with_code(y, all_.add_work()));
  }

  /// Whether something fails inside the operation.
  static bool may_be_half_done() {
    return mine_->what->failing_call != 0 || mine_->what->failing_allocation != 0;
  }

  outcome do_destroy_node(nth n) {
    node_place& at = nodes_[n];
    node const destroyed = at.handle;
    contents& in = model_.graphs[at.graph];
    entries const old = take_node(in.held, at.id);
    append(in.replaced, old);
    // One of a graph with memory nodes stays.
    bool const may_stay = graphs_[at.graph].has_memory;
    outcome const result = attempt(false, may_stay, [&] { destroyed.destroy(); });
    if (result != done) {
      in.replaced.resize(in.replaced.size() - old.size());
      append(in.held, old);
      meet(node_stays_beside_memory_nodes, may_stay);
      return result;
    }
    note_set(at, {});
    // They go with the call.
    if (!may_be_half_done()) take_node(in.replaced, at.id);
    take_node(in.lingering, at.id);
    ++graphs_[at.graph].shape;
    at.id = 0;
    return result;
  }

  /// An exec has the nodes that its graph had, and perhaps what updates made of them: a later node
  /// may have the handle of one that was destroyed.
  bool may_set(exec_place const& place, node_place const& at) const {
    return place.own && is_there(at) && at.id <= place.nodes_then;
  }

  /// What set() gave the exec for the node before may go from the beginning of the call, but for
  /// launches in flight. What the exec has of its graph stays.
  outcome set_in_exec(nth e, nth n, node_content const& what) {
    exec_place& place = execs_[e];
    node_place const& at = nodes_[n];
    contents& in = model_.execs[e];
    auto const is_replaced = [&](entry const& each) { return each.node == at.id && each.by_exec; };
    entries const old = take(in.held, is_replaced);
    model_.keep_for_launches(old, place.behind);
    append(in.lingering, old);
    // The exec may be another graph's, or be older than the node.
    outcome const result = attempt(true, true, [&] {
      node_target to{.changed = &at.handle, .exec = &*place.own};
      to.shape.attributes = what.attributes;
      what.put(to);
    });
    in.lingering.resize(in.lingering.size() - old.size());
    if (result != done) {
      append(in.held, old);
      return what.is_wrong ? refused_by_cuda(result) : result;
    }
    if (what.is_wrong || at.is == node_kind::empty || at.is == node_kind::child)
      fail("a node of an exec got what CUDA refuses");
    meet(exec_set_in_flight, is_in_flight(place));
    meet(exec_set_after_an_update, place.was_updated);
    std::erase_if(in.needed, is_replaced);
    if (place.is_end_unknown) append(in.lingering, old);
    // The node may stand for a captured kernel that began or ended the use of a slot.
    if (place.has_other_nodes) make_racy(in.needed);
    note_other_work(place, in);
    meet(node_set_while_it_is_disabled, is_off(known_off(place), at.id));
    note_work(in, at, at.is_in_body ? nullptr : what.work);
    in.give(at.id, what.kept, true);
    return result;
  }

  /// After an update from other nodes it is not known which of them is set.
  static void note_other_work(exec_place const& place, contents& in) {
    if (place.has_other_nodes) forget_works(in);
  }

  outcome do_exec_set(nth e, nth n, nth o) {
    node_place const& at = nodes_[n];
    if (!may_set(execs_[e], at) || !can_be_set(at, o, true)) return skipped;
    outcome const result = set_in_exec(e, n, with_owner(at.is, o, true, all_.add_work(), 1));
    meet(exec_set_of_another_kind, result == done && at.is != node_kind::kernel);
    return result;
  }

  outcome do_exec_set_of_lease(nth e, nth n, nth l) {
    if (!may_set(execs_[e], nodes_[n]) || !can_take(nodes_[n], leases_[l])) return skipped;
    return set_in_exec(e, n, with_lease(nodes_[n].is, l, all_.add_work()));
  }

  outcome do_exec_set_of_code(nth e, nth n, nth y) {
    node_place const& at = nodes_[n];
    if (!may_set(execs_[e], at) || at.is != node_kind::kernel) return skipped;
    return set_in_exec(e, n, with_code(y, all_.add_work()));
  }

  /// The later node waits for the earlier.
  outcome do_add_edge(nth one, nth other) {
    if (one == other) return skipped;
    bool const in_order = nodes_[one].id < nodes_[other].id;
    node_place const& first = nodes_[in_order ? one : other];
    node_place const& second = nodes_[in_order ? other : one];
    bool const is_foreign = first.graph != second.graph || first.is_in_body || second.is_in_body;
    // It may be there.
    outcome const result = attempt(is_foreign, true, [&] { second.handle.after(first.handle); });
    if (result == done) ++graphs_[first.graph].shape;
    return result;
  }

  /// What can be read of a graph is read; that changes nothing.
  outcome do_look(nth g) {
    graph_place& in = graphs_[g];
    if (!in.own || in.own->id() == ~std::uint64_t{0}) return skipped;
    outcome const result = attempt([&] {
      for (exec_place const& each : execs_)
        if (each.own && each.own->get() != nullptr) static_cast<void>(each.own->held());
      for (auto const& each : hoisted_)
        if (each) static_cast<void>(each->held());
      expect_bytes();
      resource_usage const kept = in.own->held();
      note_use(g);
      bool const is_plain = in.is_built && !in.is_parent && !in.is_hoisted;
      if (is_plain && kept.owners + kept.slots != 0 && model_.graphs[g].held.empty() &&
          model_.graphs[g].lingering.empty() && !is_disturbed_)
        fail("a graph says that it holds something, and nothing was given to it");
    });
    if (result == done) look_at_nodes(g);
    return result;
  }

  /// Not counted: what an audit allocates depends on what the process had before.
  void look_at_nodes(nth g) {
    graph_place const& in = graphs_[g];
    if (is_lost() || !is_usable(g)) return;
    for (audit_finding const& found : audit(*in.own))
      if (found.text.empty()) fail("an audit has a finding without words");
    for (node_place const& at : nodes_)
      if (is_there(at) && at.graph == g) look_at(at);
  }

  /// Reads a node back; what it keeps is a share of the owner.
  void look_at(node_place const& at) {
    auto const is_its = [&at](entry const& each) { return each.node == at.id; };
    bool const keeps = std::ranges::any_of(model_.graphs[at.graph].held, is_its);
    try {
      any_kind const read = at.handle.kind();
      meet(node_read_with_its_owner, read.has_owner());
      if (read.has_owner() != keeps) fail("a node was read with another owner than its own");
    } catch (usage_error const&) {  // of another kind; or the graph keeps what may be its
      if (keeps && (at.is == node_kind::kernel || at.is == node_kind::fill))
        fail("a node with an owner is not read");
    }
  }

  /// What a conditional node is, by the way that it is added: if, if and else, while, switch.
  struct chosen_kind {
    unsigned runs;       // the value with which the body runs that is kept
    unsigned runs_none;  // one with which it does not
  };
  static constexpr std::array chosen_kinds{chosen_kind{1, 0}, chosen_kind{0, 1}, chosen_kind{1, 0},
                                           chosen_kind{1, 2}};
  static constexpr std::size_t loop = 2;

  static conditional_node add_of_kind(graph_builder_ref const& at, condition const& looked_at,
                                      nth kind) {
    if (kind == 0) return at.add(if_node(looked_at));
    if (kind == 1) return at.add(if_else_node(looked_at));
    if (kind == loop) return at.add(while_node(looked_at));
    return at.add(switch_node(looked_at, 3));
  }

  /// A setter, the conditional node, and for a loop what ends it. The body is kept in its place.
  outcome add_conditional(nth b, graph_builder_ref const& at, nth g, std::uint64_t serial,
                          nth way) {
    chosen_kind const kind = chosen_kinds[way];
    looked_at& state = all_.add_condition();
    state.chosen = kind.runs;
    state.otherwise = kind.runs_none;
    state.can_run = way != loop;
    piece_of_work& setter = all_.add_work();
    piece_of_work& ender = all_.add_work();
    setter.sets = &state;
    ender.sets = &state;
    ender.ends_turn = true;
    std::optional<body_graph> body;
    outcome const result = attempt([&] {
      condition const made = at.make_condition(way == loop ? 0 : kind.runs);
      state.handle = made.get();
      node const set = at.add(kernel_node(work_kernel(), {}, &setter, 1));
      conditional_node const node = add_of_kind(set, made, way);
      body.emplace(way == 1 ? node.otherwise() : node.bodies().at(way == 3 ? 1 : 0));
      if (way != loop) return;
      static_cast<void>(node.body().add(kernel_node(work_kernel(), {}, &ender, 0)));
      state.can_run = true;  // and will end
    });
    if (result == done) bodies_[b] = {std::move(body), g, serial};
    return result;
  }

  outcome do_add_conditional(nth b, nth g, nth way) {
    graph_place& in = graphs_[g];
    in.is_single = true;  // also if only a part of it comes to be
    ++in.shape;
    return add_conditional(b, *in.own, g, in.serial, way);
  }

  outcome do_add_conditional_inside(nth b, nth outer, nth way) {
    body_place const& around = bodies_[outer];
    if (is_body_of_a_graph(around)) ++graphs_[around.graph].shape;
    outcome const result = add_conditional(b, *around.own, around.graph, around.serial, way);
    meet(conditional_in_a_body, result == done);
    return result;
  }

  contents& contents_around(body_place const& place) {
    return is_body_of_a_graph(place) ? model_.graphs[place.graph] : model_.orphans[place.serial];
  }

  void note_body_node(nth n, body_place const& at, node const& made, entries const& kept) {
    meet(owner_in_a_body, !kept.empty());
    if (is_body_of_a_graph(at)) {
      note_node(n, at.graph, made, kept, node_kind::kernel);
      nodes_[n].is_in_body = true;
      return;
    }
    append(contents_around(at).held, kept);
    model_.grow(at.serial, kept);
    meet(body_outlived_its_graph);
  }

  outcome add_to_body(nth n, nth b, node_content const& what) {
    node_target to{.at = &*bodies_[b].own};
    outcome const result = attempt(is_stopped_, false, [&] { what.put(to); });
    if (result == done) note_body_node(n, bodies_[b], to.made, what.kept);
    return result;
  }

  // Ways 0 to 2: a kernel that keeps an owner; 3: one that keeps nothing.
  outcome do_add_body_node(nth n, nth b, nth o, nth way) {
    if (!is_body_usable(bodies_[b]) || (way != 3 && !owners_[o].share)) return skipped;
    piece_of_work& work = all_.add_work();
    return add_to_body(
        n, b, with_owner(node_kind::kernel, o, way != 3, work, way == 3 ? work.rounds : 1));
  }

  outcome do_add_body_node_of_lease(nth n, nth b, nth l) {
    outcome const result = add_to_body(n, b, with_lease(node_kind::kernel, l, all_.add_work()));
    meet(lease_in_a_body, result == done);
    return note_share(l, result);
  }

  outcome do_embed_in_body(nth b, nth child) {
    body_place& at = bodies_[b];
    graph_place& inner = graphs_[child];
    if (!inner.own || inner.has_calls || inner.serial == at.serial) return skipped;
    inner.was_copied = true;
    // It may use the slot of a lease that lives.
    outcome const result = attempt(run_->shares, inner.is_single,
                                   [&] { static_cast<void>(at.own->add(child_node(*inner.own))); });
    if (result != done) return result;
    note_use(child);
    if (is_body_of_a_graph(at)) {
      ++graphs_[at.graph].shape;
      graphs_[at.graph].is_parent = true;
      graphs_[at.graph].is_hoisted = graphs_[at.graph].is_hoisted || inner.is_hoisted;
    }
    add_copy_of(child, contents_around(at));
    meet(things_on_a_child_of_a_body, !model_.graphs[child].held.empty());
    return result;
  }

  // A whole capture into the body, of which the graph gets: way 0: an owner by the body's handle,
  // 1: a claim and its release, 2: a launch's owner, 3: a retired owner.
  outcome do_capture_into_body(nth s, nth b, nth way) {
    body_place& at = bodies_[b];
    if (!is_body_of_a_graph(at) || s == legacy_stream || is_lost() ||
        (way == 2 && !owners_[0].share))
      return skipped;
    graph_place& in = graphs_[at.graph];
    cudaGraph_t native = nullptr;
    outcome result = attempt([&] { native = at.own->get(); });
    if (result != done) return result;
    in.is_exposed = true;
    if (way == 0) return retire_with(at.graph, true, [native] { return native; });
    if (!begin_capture_into(s, native, at.graph, {})) return failed;
    open_capture const opened = captures_.back();
    if (way == 1) result = claim_and_release_on(s);
    if (way == 2) result = do_keep(s, 0, 0);
    if (way == 3) result = do_retire(s);
    if (cudaStreamEndCapture(streams_[s].handle, &native) != cudaSuccess)
      fail("a capture into a body was harmed");
    std::erase_if(captures_, [&](open_capture const& each) { return each.id == opened.id; });
    for (entry& each : model_.capture_of(opened.id).held) each.on_body = true;
    // An exec created from the graph's handle is not refused.
    if (run_->shares) make_racy(model_.capture_of(opened.id).held);
    take_captured(opened, native, at.graph, true);
    meet(body_captured_into, result == done);
    return result;
  }

  /// The graph is destroyed if its own handle was, and this is the last of its bodies.
  void drop_body(nth b) {
    std::uint64_t const serial = bodies_[b].serial;
    bool const has_graph = is_body_of_a_graph(bodies_[b]);
    bodies_[b].own.reset();
    if (!has_graph && !has_bodies(serial)) model_.orphans.erase(serial);
  }

  outcome do_drop_body(nth b) {
    if (!bodies_[b].own) return skipped;
    return attempt([&] { drop_body(b); });
  }
};

}  // namespace escrow::test
