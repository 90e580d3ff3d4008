// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs and execs that are set, ordered, destroyed, and read.
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
};

}  // namespace escrow::test
