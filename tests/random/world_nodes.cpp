// Nodes of graphs that are built by hand, and their owners.
#include "attempt.hpp"

namespace escrow::test {

namespace {

constexpr memset_config one_row{.value = 3, .element_bytes = 4, .width = 4};
constexpr memset_config rows{.value = 3, .element_bytes = 1, .width = 4, .height = 3, .pitch = 16};

/// What a host node calls; it owns what it uses, and is a thing itself.
struct called_work {
  piece_of_work* work;
  shared_token kept;
  token itself;
  void operator()() const {
    int rounds = 0;
    static_cast<void>(work->all->run(*work, rounds));
  }
};

/// A node in an exec, which is set as the node of the graph is.
struct node_in_exec {
  graph_exec& exec;
  node const& changed;
  void set(auto kind) const { escrow::set(exec, changed, std::move(kind)); }
};

}  // namespace

bool world::is_there(node_place const& place) const {
  return place.id != 0 && graphs_[place.graph].serial == place.serial &&
         !graphs_[place.graph].is_captured_into;
}

void world::note_node(std::size_t n, std::size_t g, node made, entries const& kept, node_kind is) {
  node_place& place = nodes_[n];
  graph_place& in = graphs_[g];
  place.handle = std::move(made);
  place.graph = g;
  place.serial = in.serial;
  place.id = ++node_ids_;
  place.is = is;
  place.is_in_body = false;
  in.has_calls = in.has_calls || place.is_call() || place.is_event();
  in.has_events = in.has_events || place.is_event();
  ++in.shape;
  ++in.changes;
  for (entry each : kept) {
    each.node = place.id;
    all_.model.graphs[g].held.push_back(each);
    all_.model.graphs[g].needed.push_back(each);
  }
  all_.model.grow(in.serial, kept);
}

// Way 0: a kernel at the beginning, 1: after the node in the place before, 2: one that keeps
// nothing, 3: a call of the host.
outcome world::do_add_node(std::size_t n, std::size_t g, std::size_t o, unsigned way) {
  graph_place& in = graphs_[g];
  if (!is_usable(g) || !in.is_built || (way != 2 && !owners_[o].share)) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  entries kept;
  std::optional<token> callable;
  if (way == 3) callable.emplace(all_.make(reference::kind::owner));
  if (way != 2) kept = use_owner(o, callable, work);
  node_place const& before = nodes_[(n + nodes_.size() - 1) % nodes_.size()];
  bool const is_chained = way == 1 && is_there(before) && before.graph == g;
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    if (way == 2) {
      made = build(*in.own).add(kernel_node(work_kernel(), {}, &work, work.rounds));
    } else if (way == 3) {
      made = build(*in.own).add(host_node(called_work{&work, owners_[o], std::move(*callable)}));
    } else if (is_chained) {
      made = before.handle.add(kernel_node(work_kernel_that_keeps(), {}, &work, 2, owners_[o]));
    } else {
      made = build(*in.own).add(kernel_node(work_kernel_that_keeps(), {}, &work, 2, owners_[o]));
    }
  });
  if (result != outcome::done) return result;
  note_node(n, g, made, kept, way == 3 ? node_kind::call : node_kind::kernel);
  nodes_[n].is_in_body = is_chained && before.is_in_body;
  return result;
}

/// The work uses the owner, and the callable that it is made of, if there is one.
entries world::use_owner(std::size_t o, std::optional<token> const& callable,
                         piece_of_work& work) const {
  entries kept{{.thing = owners_[o].share->thing()}};
  if (callable) kept.push_back({.thing = callable->thing()});
  for (entry const& each : kept) work.uses.push_back({each.thing});
  return kept;
}

/// The slot is the node's too; its uses are in whatever order the caller makes.
entries world::share_slot(lease_place& of, piece_of_work& work) {
  things::slot_state& slot = all_.slot_of(of.slot);
  slot.racy = true;
  work.uses.push_back({of.slot, slot.generation});
  return {{.thing = of.slot, .generation = slot.generation}};
}

outcome world::do_add_node_of_lease(std::size_t n, std::size_t g, std::size_t l) {
  graph_place& in = graphs_[g];
  lease_place& from = leases_[l];
  if (!is_usable(g) || !in.is_built || !from.held) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  entries const kept = share_slot(from, work);
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    made = from.held->with([&](auto& held) {
      return build(*in.own).add(kernel_node(kernel_for(held), {}, &work, 1, held));
    });
  });
  if (result != outcome::done) return result;
  if (++from.nodes == 2) counts_.meet(situation::lease_shared_by_two_nodes);
  note_node(n, g, made, kept, node_kind::kernel);
  return result;
}

/// What the graph has for the node may go from the beginning of a call that sets it; returns that.
entries world::begin_set(node_place const& at) {
  contents& in = all_.model.graphs[at.graph];
  entries old = take_node(in.held, at.id);
  append(in.lingering, old);
  return old;
}

/// The end of the call. If it failed, the graph has it as before.
void world::end_set(node_place const& at, entries const& old, bool is_done) {
  contents& in = all_.model.graphs[at.graph];
  in.lingering.resize(in.lingering.size() - old.size());
  if (!is_done) append(in.held, old);
}

void world::note_set(node_place const& at, entries const& kept) {
  contents& in = all_.model.graphs[at.graph];
  static_cast<void>(take_node(in.held, at.id));
  static_cast<void>(take_node(in.needed, at.id));
  for (entry each : kept) {
    each.node = at.id;
    in.held.push_back(each);
    in.needed.push_back(each);
  }
  all_.model.grow(at.serial, kept);
  ++graphs_[at.graph].changes;
  for (exec_place const& each : execs_) {
    if (each.is_there() && each.made_of == at.serial)
      counts_.meet(situation::node_changed_with_an_exec_there);
  }
}

bool world::can_be_set(node_place const& at, std::size_t o, bool keeps) const {
  if (at.is_event()) return events_there_[o] != nullptr;
  return !keeps || owners_[o].share != nullptr;
}

/// What the node keeps of what set_with() gives it.
entries world::kept_by(node_place const& at, std::size_t o, std::optional<token> const& callable,
                       piece_of_work& work) const {
  if (at.is_event()) return {{.thing = thing_of_event(o)}};
  return use_owner(o, callable, work);
}

template <class Setter>
void world::set_with(Setter const& to, node_place const& at, std::size_t o, bool keeps,
                     piece_of_work& work, std::optional<token>& callable) {
  switch (at.is) {
    case node_kind::call:
      return to.set(host_node(called_work{&work, owners_[o], std::move(*callable)}));
    case node_kind::fill:
      if (!keeps) return to.set(memset_node(arena(), one_row));
      return to.set(memset_node(memory_of(o), one_row));
    case node_kind::rows:
      return to.set(memset_node(memory_of(o), rows));
    case node_kind::copy:
      return to.set(memcpy_node(memory_of(o), memory_of(o), 16));
    case node_kind::record:
      return to.set(record_node(events_there_[o]));
    case node_kind::wait:
      return to.set(wait_node(events_there_[o]));
    case node_kind::kernel:
    case node_kind::empty:  // is refused
      if (!keeps) return to.set(kernel_node(work_kernel(), {}, &work, 0));
      return to.set(kernel_node(work_kernel_that_keeps(), {}, &work, 1, owners_[o]));
  }
}

outcome world::do_set_node(std::size_t n, std::size_t o, unsigned way) {
  node_place& at = nodes_[n];
  bool const can_be_bare = at.is == node_kind::kernel || at.is == node_kind::fill;
  bool const keeps = way != 2 || !can_be_bare;
  if (!is_there(at) || !can_be_set(at, o, keeps)) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  entries kept;
  std::optional<token> callable;
  if (at.is_call()) callable.emplace(all_.make(reference::kind::owner));
  if (keeps) kept = kept_by(at, o, callable, work);
  bool const is_wrong = at.is == node_kind::empty;
  entries const old = begin_set(at);
  outcome const result =
      attempt(is_stopped_, is_wrong, [&] { set_with(at.handle, at, o, keeps, work, callable); });
  end_set(at, old, result == outcome::done);
  if (result == outcome::done && is_wrong)
    all_.fail("a node that does nothing was set to a launch");
  if (result == outcome::done) note_set(at, kept);
  return result;
}

template <class Setter>
void world::set_with_lease(Setter const& to, node_place const& at, lease_place& from,
                           piece_of_work& work) {
  from.held->with([&](auto& held) {
    if constexpr (requires { held->data(); }) {
      if (at.is == node_kind::fill) return to.set(memset_node(held, one_row));
    }
    to.set(kernel_node(kernel_for(held), {}, &work, 1, held));
  });
}

/// A fill takes memory alone.
bool world::can_take(node_place const& at, lease_place const& from) {
  if (!from.held) return false;
  return at.is == node_kind::kernel || (at.is == node_kind::fill && from.memory != nullptr);
}

outcome world::do_set_node_of_lease(std::size_t n, std::size_t l) {
  node_place& at = nodes_[n];
  lease_place& from = leases_[l];
  if (!is_there(at) || !can_take(at, from)) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  entries const kept = share_slot(from, work);
  entries const old = begin_set(at);
  outcome const result =
      attempt(is_stopped_, false, [&] { set_with_lease(at.handle, at, from, work); });
  end_set(at, old, result == outcome::done);
  if (result != outcome::done) return result;
  if (++from.nodes == 2) counts_.meet(situation::lease_shared_by_two_nodes);
  note_set(at, kept);
  return result;
}

outcome world::do_destroy_node(std::size_t n) {
  node_place& at = nodes_[n];
  if (!is_there(at)) return outcome::skipped;
  node const gone = at.handle;
  entries& held = all_.model.graphs[at.graph].held;
  entries const before = held;
  static_cast<void>(take_node(held, at.id));
  // One of a graph with memory nodes stays.
  bool const may_stay = graphs_[at.graph].has_memory;
  outcome const result = attempt(false, may_stay, [&] { gone.destroy(); });
  if (result != outcome::done) {
    held = before;
    if (may_stay) counts_.meet(situation::node_stays_beside_memory_nodes);
    return result;
  }
  note_set(at, {});
  ++graphs_[at.graph].shape;
  at.id = 0;
  return result;
}

/// An exec has the nodes that its graph had, and perhaps what updates made of them: a later node
/// may have the handle of one that was destroyed.
bool world::may_set(exec_place const& place, node_place const& at) const {
  return place.own && is_there(at) && at.id <= place.nodes_then;
}

/// What set() gave an exec for a node. What the exec has of its graph stays.
bool world::is_replaced(node_place const& at, entry const& each) {
  return each.node == at.id && each.by_exec;
}

/// That may go from the beginning of the call, but for launches in flight; returns it.
entries world::begin_exec_set(std::size_t e, node_place const& at) {
  exec_place const& place = execs_[e];
  contents& in = all_.model.execs[e];
  entries old;
  for (entry const& each : in.held)
    if (is_replaced(at, each)) old.push_back(each);
  std::erase_if(in.held, [&](entry const& each) { return is_replaced(at, each); });
  all_.model.keep_for_launches(old, place.behind);
  append(in.lingering, old);
  return old;
}

/// The exec has the new owners, and what set() gave it for the node before goes after the launches
/// in flight. If the call failed, all is as before.
void world::end_exec_set(std::size_t e, node_place const& at, entries const& old,
                         entries const& kept, bool is_done) {
  exec_place const& place = execs_[e];
  contents& in = all_.model.execs[e];
  in.lingering.resize(in.lingering.size() - old.size());
  if (!is_done) return append(in.held, old);
  if (is_in_flight(place)) counts_.meet(situation::exec_set_in_flight);
  if (place.was_updated) counts_.meet(situation::exec_set_after_an_update);
  std::erase_if(in.needed, [&](entry const& each) { return is_replaced(at, each); });
  if (place.is_end_unknown) append(in.lingering, old);
  for (entry each : kept) {
    each.node = at.id;
    each.by_exec = true;
    in.held.push_back(each);
    in.needed.push_back(each);
  }
}

outcome world::do_exec_set(std::size_t e, std::size_t n, std::size_t o) {
  exec_place& place = execs_[e];
  node_place const& at = nodes_[n];
  if (!may_set(place, at) || !can_be_set(at, o, true)) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  std::optional<token> callable;
  if (at.is_call()) callable.emplace(all_.make(reference::kind::owner));
  entries const kept = kept_by(at, o, callable, work);
  entries const old = begin_exec_set(e, at);
  // The exec may be another graph's, or be older than the node.
  outcome const result = attempt(true, true, [&] {
    set_with(node_in_exec{*place.own, at.handle}, at, o, true, work, callable);
  });
  end_exec_set(e, at, old, kept, result == outcome::done);
  if (result == outcome::done && at.is != node_kind::kernel)
    counts_.meet(situation::exec_set_of_another_kind);
  return result;
}

outcome world::do_exec_set_of_lease(std::size_t e, std::size_t n, std::size_t l) {
  exec_place& place = execs_[e];
  node_place const& at = nodes_[n];
  lease_place& from = leases_[l];
  if (!may_set(place, at) || !can_take(at, from)) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  entries const kept = share_slot(from, work);
  entries const old = begin_exec_set(e, at);
  outcome const result = attempt(true, true, [&] {
    set_with_lease(node_in_exec{*place.own, at.handle}, at, from, work);
  });
  end_exec_set(e, at, old, kept, result == outcome::done);
  return result;
}

}  // namespace escrow::test
