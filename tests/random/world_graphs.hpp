// SPDX-License-Identifier: Apache-2.0
// Graphs: created, cloned, put into each other, hoisted, and destroyed.
#pragma once

#include "world_retired.hpp"

namespace escrow::test {

struct world_graphs : world_retired {
  /// Whether something fails inside the operation.
  static bool may_be_half_done() {
    return mine_->what->failing_call != 0 || mine_->what->failing_allocation != 0;
  }

  /// Whether the graph has a thing twice, as with copies of one graph in it, in some order.
  bool has_claims_twice(graph_place const& place) const {
    if (!place.is_parent) return false;
    if (place.is_hoisted) return true;
    contents const& in = model_.graphs[static_cast<nth>(&place - graphs_.data())];
    entries all = in.held;
    append(all, in.lingering);
    append(all, in.replaced);
    return std::ranges::any_of(all, [&all](entry const& each) {
      auto const is_same = [&each](entry const& other) {
        return &other != &each && other.thing == each.thing && other.generation == each.generation;
      };
      return std::ranges::any_of(all, is_same);
    });
  }
  /// Whether branches of the graph might run concurrently that share a slot.
  bool may_be_refused(graph_place const& place) const {
    return (run_->shares && (place.is_parent || place.is_single)) || has_claims_twice(place) ||
           (place.is_hoisted && is_any_let_go_);  // it may use what is another's now
  }

  /// What a copy of a graph keeps. `known`: Escrow made it.
  static contents copy_of(contents const& original, bool known) {
    contents copy = original;
    for (entries* const list : {&copy.held, &copy.lingering, &copy.needed}) {
      for (entry& each : *list) {
        each.node = 0;
        each.known = each.known && known;
      }
    }
    for (node_work& each : copy.works) each.node = 0;
    return copy;
  }

  /// A plain update keeps the clusters that there were.
  static void forget_clusters(contents const& one, contents const& other) {
    for (node_work const& each : one.works) each.work->clusters = 0;
    for (node_work const& each : other.works) each.work->clusters = 0;
  }
  /// How often they run from now on is not known.
  static void forget_works(contents& in) {
    for (node_work const& each : in.works) each.work->is_counted = false;
    in.works.clear();
  }

  /// The body has a copy of the child, in no order with other uses.
  void add_copy_of(nth child, contents& to, int node) {
    contents copy = copy_of(model_.graphs[child], true);
    for (entry& each : copy.held) each.on_body = true;
    copy.give_to(node);
    forget_works(copy);
    to.append(copy);
    make_racy(copy.needed);
  }

  /// What its changed and destroyed nodes kept goes.
  void note_use(nth g) { model_.graphs[g].replaced.clear(); }

  cudaGraph_t handle_of(graph_place& place) {
    if (!place.own) return place.plain;
    cudaGraph_t const native = place.own->get();  // throws as the library does
    note_use(static_cast<nth>(&place - graphs_.data()));
    meet(handle_exposed_between_changes, !place.is_exposed && place.changes > 0);
    place.is_exposed = true;
    return native;
  }

  void make_racy(entries const& needed) {
    for (entry const& each : needed)
      if (state_of(each.thing).is == thing_state::kind::slot) state_of(each.thing).racy = true;
  }

  /// A launch that orders itself by what is held, and by nothing else.
  void make_racy_unless_held(entries needed, entries const& held) {
    std::erase_if(needed, [&held](entry const& each) { return has_same(held, each); });
    make_racy(needed);
  }

  outcome do_make_graph(nth g) {
    outcome const result = attempt([&] { graphs_[g].own.emplace(*worker_); });
    if (result != done) return result;
    graphs_[g].serial = ++serials_;
    graphs_[g].is_built = true;
    model_.graphs[g].clear();
    return result;
  }

  outcome do_expose(nth g) {
    return attempt([&] { static_cast<void>(handle_of(graphs_[g])); });
  }

  // Ways 0 and 1: clone(), where it is a `graph`; 2 and 3: cudaGraphClone.
  outcome do_clone(nth to, nth from, nth way) {
    graph_place& original = graphs_[from];
    graph_place& copy = graphs_[to];
    bool const is_known = original.own && way < 2;
    original.was_copied = true;
    outcome const result = attempt(false, original.is_single, [&] {
      if (is_known) {
        copy.own.emplace(original.own->clone());
      } else {
        cudaGraph_t const native = handle_of(original);
        graph_lifetime_lock const turn;
        escrow::check(cudaGraphClone(&copy.plain, native), "cudaGraphClone");
      }
    });
    if (result != done) {
      copy.plain = nullptr;
      return result;
    }
    copy.serial = ++serials_;
    copy.is_hoisted = original.is_hoisted;
    copy.is_loose = is_loose(original);
    copy.is_parent = original.is_parent;
    copy.has_calls = original.has_calls;
    copy.has_events = original.has_events;
    note_use(from);
    contents& kept = model_.graphs[to] = copy_of(model_.graphs[from], is_known);
    if (is_known) return result;
    make_racy(kept.needed);
    kept.grows_with.push_back(original.serial);
    return result;
  }

  // Ways 0 and 1: add_child(), 2: a child node, 3: cudaGraphAddChildGraphNode.
  outcome do_child(nth parent, nth child, nth way) {
    if (parent == child) return skipped;
    graph_place& outer = graphs_[parent];
    graph_place& inner = graphs_[child];
    bool const is_known = outer.own && inner.own && way < 3;
    // It may use the slot of a lease that lives.
    bool const may_overwrite = is_known && run_->shares;
    inner.was_copied = true;
    outcome const result = attempt(may_overwrite, inner.is_single, [&] {
      if (!is_known) {
        cudaGraph_t const native = handle_of(outer);
        cudaGraph_t const added = handle_of(inner);
        cudaGraphNode_t made = nullptr;
        graph_lifetime_lock const turn;
        escrow::check(cudaGraphAddChildGraphNode(&made, native, nullptr, 0, added),
                      "cudaGraphAddChildGraphNode");
      } else if (way == 2) {
        static_cast<void>(build(*outer.own).add(child_node(*inner.own)));
      } else {
        outer.own->add_child(*inner.own);
      }
    });
    if (result != done) return result;
    note_use(child);
    ++outer.shape;
    outer.is_parent = true;
    outer.is_loose = outer.is_loose || is_loose(inner);
    // The copy is known to have been hoisted, too.
    outer.is_hoisted = outer.is_hoisted || (is_known && inner.is_hoisted);
    outer.has_calls = outer.has_calls || inner.has_calls;
    outer.has_events = outer.has_events || inner.has_events;
    contents added = copy_of(model_.graphs[child], is_known);
    // A child that could not be noted stays beside memory nodes; hoisting does not find it.
    if (is_known && outer.has_memory && is_disturbed_) append(added.lingering, added.held);
    if (!is_known) added.grows_with.push_back(inner.serial);
    model_.graphs[parent].append(added);
    meet(claims_of_a_capture_twice_in_a_graph, has_claims_twice(outer));
    meet(things_on_a_parent_graph, !added.held.empty());
    // Execs of graphs in which two copies may run concurrently are refused.
    if (!is_known || may_be_half_done()) make_racy(added.needed);
    return result;
  }

  void drop_graph(nth g) {
    graph_place& place = graphs_[g];
    for (exec_place const& each : execs_)
      meet(graph_gone_before_its_exec, each.is_there() && each.made_of == place.serial);
    for (nth h = 0; h < turns_.size(); ++h)
      meet(graph_gone_in_its_turn, turns_[h] && hoisted_from_[h] == place.serial);
    leave_to_bodies(g);
    model_.graphs[g].clear();
    if (place.plain != nullptr) {
      relaxed_capture_scope const relaxed;
      graph_lifetime_lock const turn;
      static_cast<void>(cudaGraphDestroy(place.plain));
    }
    place = {};
  }

  outcome do_destroy_graph(nth g) {
    return attempt([&] { drop_graph(g); });
  }

  void note_hoist(nth h, nth g, bool by_handle) {
    contents& from = model_.graphs[g];
    contents& to = model_.hoisted[h];
    to.clear();
    entries const known = take(from.held, [](entry const& each) { return each.known; });
    for (entry const& each : known) {
      // Of nodes' owners a handle does not give all up: the graph has them until it is used again.
      if (by_handle) from.lingering.push_back(each);
      if (!by_handle || !each.on_body) to.held.push_back(each);
    }
    to.lingering = from.lingering;
  }

  // Ways 0 to 2: hoist(graph), where it is one; 3: by its handle.
  outcome do_hoist(nth h, nth g, nth way) {
    graph_place& place = graphs_[g];
    bool const by_handle = !place.own || way == 3;
    // Again, with nothing new to take, is refused.
    outcome const result = attempt(place.is_hoisted || may_be_refused(place), false, [&] {
      hoisted_[h].emplace(by_handle ? hoist(handle_of(place)) : hoist(*place.own));
    });
    if (result != done) return result;
    note_use(g);
    place.is_hoisted = true;
    hoisted_from_[h] = place.serial;
    meet(by_handle ? hoisted_by_handle_after_changes_of_nodes : hoisted_after_changes_of_nodes,
         place.changes > 0);
    note_hoist(h, g, by_handle);
    return result;
  }

  // capture(): ways 0 and 1: an owner is retired; 2: a slot is claimed and released; 3: and throws.
  outcome do_capture_call(nth s, nth g, nth way) {
    struct thrown_in_a_capture : std::exception {};
    if (!is_own_stream(s) || is_lost()) return skipped;
    open_capture opened{};
    outcome inside = skipped;
    std::optional<graph> made;
    try {
      made.emplace(capture(streams_[s].handle, [&](stream_ref) {
        opened = {capture_at(s).id, s, thread_, false, std::nullopt};
        captures_.push_back(opened);
        inside = way < 2 ? do_retire(s) : claim_and_release_on(s);
        if (way == 3) throw thrown_in_a_capture();
      }));
    } catch (thrown_in_a_capture const&) {
      meet(capture_left_by_an_exception);
    } catch (std::exception const& error) {
      fail(std::string("a capture ended for no reason: ") + error.what());
    }
    std::erase_if(captures_, [&](open_capture const& each) { return each.id == opened.id; });
    if (!made) {
      model_.forget_capture(opened.id);
      return refused;
    }
    if (made->id() != opened.id) fail("a graph does not know its capture's id");
    take_captured(opened, made->detach(), g, true);
    return inside;
  }

  // capture(), after which a lease goes on. Even ways: of the first pool; 2 and 3: the stream ends.
  outcome do_capture_output(nth s, nth g, nth l, nth way) {
    if (!is_own_stream(s) || is_lost() || pools_[way % 2] == nullptr) return skipped;
    open_capture opened{};
    outcome inside = skipped;
    graph made = capture(streams_[s].handle, [&](stream_ref) {
      opened = {capture_at(s).id, s, thread_, false, std::nullopt};
      captures_.push_back(opened);
      inside = claim(l, way % 2, s, claim_way::kept);
    });
    std::erase_if(captures_, [&](open_capture const& each) { return each.id == opened.id; });
    lease_place& output = leases_[l];
    output.is_over = output.is_over || inside == done;
    take_captured(opened, made.detach(), g, true);
    if (way >= 2) meet(output_outlived_its_stream, do_destroy_stream(s) == done && inside == done);
    return inside;
  }

  /// What may be moved, moved away and back.
  outcome do_move(nth g, nth e) {
    auto const move_away_and_back = [](auto& place) {
      if (!place) return;
      auto moved = std::move(*place);
      *place = std::move(moved);
    };
    move_away_and_back(graphs_[g].own);
    move_away_and_back(execs_[e].own);
    move_away_and_back(execs_[e].bound);
    for (auto& each : hoisted_) move_away_and_back(each);
    move_away_and_back(own_scratch_);
    move_away_and_back(allocator_);
    for (lease_place& each : leases_) move_away_and_back(each.held);
    for (claimer_place& each : claimers_) {
      move_away_and_back(each.own);
      move_away_and_back(each.memory);
    }
    return done;
  }

  outcome do_retire_graph(nth g) {
    return retire_with(g, false, [this, g] { return handle_of(graphs_[g]); });
  }

  /// Before the end of a graph's own handle: what it keeps its bodies keep from then on.
  void leave_to_bodies(nth g) {
    std::uint64_t const serial = graphs_[g].serial;
    if (has_bodies(serial)) model_.orphans[serial] = model_.graphs[g];
  }
};

}  // namespace escrow::test
