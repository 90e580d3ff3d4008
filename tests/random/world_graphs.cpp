// Graphs: made, copied, put into each other, hoisted, and ended.
#include <algorithm>
#include <escrow/sim.hpp>

#include "attempt.hpp"
#include "relaxed_scope.hpp"

namespace escrow::test {

namespace {

/// What a copy of a graph keeps. `known`: Escrow made it.
contents copy_of(contents const& original, bool known) {
  contents copy = original;
  for (entries* const list : {&copy.held, &copy.lingering, &copy.needed}) {
    for (entry& each : *list) {
      each.node = 0;
      each.known = each.known && known;
    }
  }
  return copy;
}

void add_copy(contents const& copy, contents& to) {
  append(to.held, copy.held);
  append(to.lingering, copy.lingering);
  append(to.needed, copy.needed);
  to.grows_with.insert(to.grows_with.end(), copy.grows_with.begin(), copy.grows_with.end());
}

}  // namespace

/// The body has a copy of the child, in no order with other uses.
void world::add_copy_of(std::size_t child, contents& to) {
  contents copy = copy_of(all_.model.graphs[child], true);
  for (entry& each : copy.held) each.on_body = true;
  add_copy(copy, to);
  make_racy(copy.needed);
}

bool world::is_usable(std::size_t g) const {
  return graphs_[g].is_there() && !graphs_[g].is_captured_into;
}

cudaGraph_t world::handle_of(graph_place& place) {
  if (!place.own) return place.plain;
  cudaGraph_t const native = place.own->get();  // throws as the library does
  if (!place.is_exposed && place.changes > 0)
    counts_.meet(situation::handle_exposed_between_changes);
  place.is_exposed = true;
  return native;
}

void world::make_racy(entries const& needed) {
  for (entry const& each : needed)
    if (all_.model.state_of(each.thing).is == reference::kind::slot)
      all_.slot_of(each.thing).racy = true;
}

outcome world::do_make_graph(std::size_t g) {
  if (graphs_[g].is_there()) return outcome::skipped;
  outcome const result = attempt(false, false, [&] { graphs_[g].own.emplace(*worker_); });
  if (result != outcome::done) return result;
  graphs_[g].serial = ++serials_;
  graphs_[g].is_built = true;
  all_.model.graphs[g].clear();
  return result;
}

outcome world::do_expose(std::size_t g) {
  if (!is_usable(g)) return outcome::skipped;
  return attempt(false, false, [&] { static_cast<void>(handle_of(graphs_[g])); });
}

// Ways 0 and 1: clone(), where it is a `graph`; 2 and 3: cudaGraphClone.
outcome world::do_clone(std::size_t to, std::size_t from, unsigned way) {
  if (graphs_[to].is_there() || !is_usable(from)) return outcome::skipped;
  graph_place& original = graphs_[from];
  graph_place& copy = graphs_[to];
  bool const is_known = original.own && way < 2;
  outcome const result = attempt(false, original.is_single, [&] {
    if (is_known) {
      copy.own.emplace(original.own->clone());
    } else {
      cudaGraph_t const native = handle_of(original);
      graph_lifetime_lock const turn;
      escrow::check(cudaGraphClone(&copy.plain, native), "cudaGraphClone");
    }
  });
  if (result != outcome::done) {
    copy.plain = nullptr;
    return result;
  }
  copy.serial = ++serials_;
  copy.is_hoisted = original.is_hoisted;
  copy.is_parent = original.is_parent;
  copy.has_calls = original.has_calls;
  copy.has_events = original.has_events;
  all_.model.graphs[to] = copy_of(all_.model.graphs[from], is_known);
  if (!is_known) make_racy(all_.model.graphs[to].needed);
  if (!is_known) all_.model.graphs[to].grows_with.push_back(original.serial);
  return result;
}

// Ways 0 and 1: add_child(), 2: embed(), 3: cudaGraphAddChildGraphNode.
outcome world::do_child(std::size_t parent, std::size_t child, unsigned way) {
  if (parent == child || !is_usable(parent) || !is_usable(child)) return outcome::skipped;
  graph_place& outer = graphs_[parent];
  graph_place& inner = graphs_[child];
  bool const is_known = outer.own && inner.own && way < 3;
  outcome const result = attempt(false, inner.is_single, [&] {
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
  if (result != outcome::done) return result;
  ++outer.shape;
  outer.is_parent = true;
  outer.has_calls = outer.has_calls || inner.has_calls;
  outer.has_events = outer.has_events || inner.has_events;
  contents added = copy_of(all_.model.graphs[child], is_known);
  // A child that could not be noted stays beside memory nodes, and hoisting does not find it then.
  if (is_known && outer.has_memory && is_disturbed_) append(added.lingering, added.held);
  if (!is_known) added.grows_with.push_back(inner.serial);
  add_copy(added, all_.model.graphs[parent]);
  if (!added.held.empty()) counts_.meet(situation::things_on_a_parent_graph);
  // add_child() comes after all that is there, which may use the same; the others do not.
  if (!is_known || way == 2) make_racy(added.needed);
  return result;
}

void world::drop_graph(std::size_t g) {
  graph_place& place = graphs_[g];
  if (!place.is_there()) return;
  for (exec_place const& each : execs_) {
    if (each.is_there() && each.made_of == place.serial)
      counts_.meet(situation::graph_gone_before_its_exec);
  }
  leave_to_bodies(g);
  all_.model.graphs[g].clear();
  if (place.plain != nullptr) {
    relaxed_scope const relaxed;
    graph_lifetime_lock const turn;
    static_cast<void>(cudaGraphDestroy(place.plain));
  }
  place = {};
}

outcome world::do_destroy_graph(std::size_t g) {
  if (!is_usable(g)) return outcome::skipped;
  return attempt(false, false, [&] { drop_graph(g); });
}

void world::note_hoist(std::size_t h, std::size_t g, bool by_handle) {
  contents& from = all_.model.graphs[g];
  contents& to = all_.model.hoisted[h];
  to.clear();
  make_racy(from.needed);
  entries stay;
  for (entry const& each : from.held) {
    if (!each.known) {
      stay.push_back(each);
      continue;
    }
    if (by_handle && each.on_body) {
      from.lingering.push_back(each);
      continue;
    }
    to.held.push_back(each);
    // Of nodes' owners a handle does not give all up: the graph has them until it is used again.
    if (by_handle) from.lingering.push_back(each);
  }
  to.lingering = from.lingering;
  from.held = stay;
}

// Ways 0 to 2: hoist(graph), where it is one; 3: by its handle.
outcome world::do_hoist(std::size_t h, std::size_t g, unsigned way) {
  if (hoisted_[h] || !is_usable(g)) return outcome::skipped;
  graph_place& place = graphs_[g];
  bool const by_handle = !place.own || way == 3;
  outcome const result = attempt(false, false, [&] {
    hoisted_[h].emplace(by_handle ? hoist(handle_of(place)) : hoist(*place.own));
  });
  if (result != outcome::done) return result;
  place.is_hoisted = true;
  if (place.changes > 0) {
    counts_.meet(by_handle ? situation::hoisted_by_handle_after_changes_of_nodes
                           : situation::hoisted_after_changes_of_nodes);
  }
  note_hoist(h, g, by_handle);
  return result;
}

// Way 0: after the stream's work, 1: after an event, 2 and 3: now, when the machine is idle. The
// caller has to order all launches before that.
outcome world::do_let_go(std::size_t h, std::size_t s, unsigned way) {
  if (!hoisted_[h] || is_any_capturing() || lost_[0] || lost_[1]) return outcome::skipped;
  for (std::size_t i = 0; i < streams_.size(); ++i) order(i, s);
  piece_of_work& work = piece(s, {});
  if (way >= 2) sim::run_until_idle();
  if (way < 2 && !enqueue(s, work)) return outcome::failed;
  contents const kept = std::exchange(all_.model.hoisted[h], {});
  for (entry const& each : kept.held) all_.model.pend(each.thing, work.mark);
  if (way >= 2) all_.model.set_mark(work.mark);
  cudaEvent_t made = nullptr;
  if (way == 1) {
    must(cudaSetDevice(streams_[s].device));
    must(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    must(cudaEventRecord(made, streams_[s].handle));
    must(cudaSetDevice(0));
    events_.emplace_back(made);
  }
  outcome const result = attempt(false, false, [&] {
    if (way == 0) return hoisted_[h]->release_after(stream_ref(streams_[s].handle));
    if (way == 1) return hoisted_[h]->release_after(event_ref(made));
    hoisted_[h]->release();
  });
  if (result == outcome::done) {
    hoisted_[h].reset();
  } else {
    all_.model.hoisted[h] = kept;
  }
  return result;
}

outcome world::do_drop_hoisted(std::size_t h) {
  if (!hoisted_[h] || !is_careless_) return outcome::skipped;
  // One that just ends counts once, whatever it keeps for ever.
  kept_for_ever_ += all_.model.hoisted[h].held.size() + all_.model.hoisted[h].lingering.size();
  all_.model.hoisted[h].clear();
  hoisted_[h].reset();
  return outcome::done;
}

}  // namespace escrow::test
