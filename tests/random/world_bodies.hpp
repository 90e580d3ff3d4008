// SPDX-License-Identifier: Apache-2.0
// Conditional nodes, what their bodies keep, and their end.
#pragma once

#include "world_changes.hpp"

namespace escrow::test {

struct world_bodies : world_changes {
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
  /// `inside`: the conditional node around it.
  outcome add_conditional(nth b, graph_builder_ref const& at, nth g, std::uint64_t serial, nth way,
                          int inside) {
    // That of a destroyed node may still be set by the kernel that was its setter.
    auto const loose = std::ranges::find_if(loose_, [&](conditional_place const& each) {
      return each.serial == serial && each.inside == inside && way != loop;
    });
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
    std::optional<condition> tested;
    node of;
    outcome const result = attempt([&] {
      condition const made =
          loose != loose_.end() ? loose->tested : at.make_condition(way == loop ? 0 : kind.runs);
      state.handle = made.get();
      node const set = at.add(kernel_node(work_kernel(), {}, &setter, 1));
      conditional_node const node = add_of_kind(set, made, way);
      tested = made;
      of = node;
      body.emplace(way == 1 || way == 3 ? node.otherwise() : node.body());  // these keep the graph
      if (way != loop) return;
      static_cast<void>(node.body().add(kernel_node(work_kernel(), {}, &ender, 0)));
      state.can_run = true;  // and will end
    });
    // It has its node, also if the rest failed.
    if (tested && loose != loose_.end()) {
      loose_.erase(loose);
      meet(condition_of_a_destroyed_node_used);
    }
    if (tested) conditionals_.insert({++node_ids_, {serial, inside, *tested}});
    if (result == done) bodies_[b] = {std::move(body), g, serial, node_ids_, of};
    return result;
  }

  outcome do_add_conditional(nth b, nth g, nth way) {
    graph_place& in = graphs_[g];
    in.is_single = true;  // also if only a part of it comes to be
    ++in.shape;
    return add_conditional(b, *in.own, g, in.serial, way, 0);
  }

  outcome do_add_conditional_inside(nth b, nth outer, nth way) {
    body_place const& around = bodies_[outer];
    if (is_body_of_a_graph(around)) ++graphs_[around.graph].shape;
    outcome const result =
        add_conditional(b, *around.own, around.graph, around.serial, way, around.conditional);
    meet(conditional_in_a_body, result == done);
    return result;
  }

  /// A number for what is in the body, and is of no node that the program knows.
  int note_inside(body_place const& place) {
    inside_[++node_ids_] = place.conditional;
    return node_ids_;
  }
  /// Whether that conditional node is the other, or in a body of it.
  bool is_inside(int conditional, int other) const {
    while (conditional != other) {
      auto const found = conditionals_.find(conditional);
      if (found == conditionals_.end()) return false;  // the graph, or it was destroyed
      conditional = found->second.inside;
    }
    return true;
  }
  bool is_node_inside(int node, int conditional) const {
    auto const found = inside_.find(node);
    return found != inside_.end() && is_inside(found->second, conditional);
  }

  contents& contents_around(body_place const& place) {
    return is_body_of_a_graph(place) ? model_.graphs[place.graph] : model_.orphans[place.serial];
  }

  void note_body_node(nth n, body_place const& at, node const& made, entries const& kept) {
    meet(owner_in_a_body, !kept.empty());
    if (is_body_of_a_graph(at)) {
      note_node(n, at.graph, made, kept, node_kind::kernel);
      return note_in_body(nodes_[n], at.conditional);
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
      graphs_[at.graph].is_loose = graphs_[at.graph].is_loose || is_loose(inner);
      graphs_[at.graph].is_hoisted = graphs_[at.graph].is_hoisted || inner.is_hoisted;
    }
    add_copy_of(child, contents_around(at), note_inside(at));
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
    if (way == 0) {
      result = retire_with(at.graph, true, [native] { return native; });
      if (result == done) model_.graphs[at.graph].held.back().node = note_inside(at);
      return result;
    }
    if (!begin_capture_into(s, native, at.graph, {})) return failed;
    open_capture const opened = captures_.back();
    if (way == 1) result = claim_and_release_on(s);
    if (way == 2) result = do_keep(s, 0, 0);
    if (way == 3) result = do_retire(s);
    if (cudaStreamEndCapture(streams_[s].handle, &native) != cudaSuccess)
      fail("a capture into a body was harmed");
    std::erase_if(captures_, [&](open_capture const& each) { return each.id == opened.id; });
    for (entry& each : model_.capture_of(opened.id).held) each.on_body = true;
    model_.capture_of(opened.id).give_to(note_inside(at));
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

  /// A conditional node is destroyed, with its bodies and all in them. What they kept goes with the
  /// call.
  outcome do_destroy_conditional(nth b) {
    body_place const doomed = bodies_[b];
    if (!is_body_of_a_graph(doomed)) return skipped;
    contents& in = model_.graphs[doomed.graph];
    auto const is_in_it = [&](entry const& each) {
      return is_node_inside(each.node, doomed.conditional);
    };
    contents const before = in;
    entries const old = take(in.held, is_in_it);
    entries const lingered = take(in.lingering, is_in_it);
    append(in.replaced, old);
    append(in.replaced, lingered);
    bool const may_stay = graphs_[doomed.graph].has_memory;
    outcome const result = attempt(false, may_stay, [&] { doomed.of.destroy(); });
    if (result != done) {
      in = before;
      return result;
    }
    if (!may_be_half_done()) take(in.replaced, is_in_it);
    take(in.needed, is_in_it);
    meet(conditional_destroyed);
    meet(conditional_with_things_destroyed, !old.empty());
    meet(conditional_destroyed_in_flight, std::ranges::any_of(execs_, [&](exec_place const& each) {
           return each.made_of == doomed.serial && is_in_flight(each);
         }));
    ++graphs_[doomed.graph].shape;
    for (node_place& each : nodes_)
      if (each.id != 0 && is_node_inside(each.id, doomed.conditional)) each.id = 0;
    loosen(doomed);
    return result;
  }

  /// Its condition has no node any more, nor have those of its bodies.
  void loosen(body_place const& doomed) {
    int const inside = conditionals_.at(doomed.conditional).inside;
    for (conditional_place& each : loose_)
      if (is_inside(each.inside, doomed.conditional)) each.inside = inside;
    for (nth b = 0; b < bodies_.size(); ++b)
      if (bodies_[b].own && is_inside(bodies_[b].conditional, doomed.conditional)) drop_body(b);
    std::vector<int> gone;
    for (auto const& [number, each] : conditionals_)
      if (is_inside(number, doomed.conditional)) gone.push_back(number);
    meet(conditional_destroyed_with_another_inside, gone.size() > 1);
    for (int const each : gone) {
      conditional_place its = conditionals_.extract(each).mapped();
      its.inside = inside;
      loose_.push_back(its);
    }
  }
};

}  // namespace escrow::test
