// SPDX-License-Identifier: Apache-2.0
// Nodes that are added by hand, and what they keep.
#pragma once

#include "world_launches.hpp"

namespace escrow::test {

struct world_nodes : world_launches {
  static constexpr std::size_t bytes_of_an_owner = 64;
  static constexpr memset_config one_row{.value = 7, .element_bytes = 4, .width = 4};
  static constexpr memset_config rows{
      .value = 7, .element_bytes = 1, .width = 4, .height = 3, .pitch = 16};

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

  static std::byte* arena() {
    static auto* const memory = [] {
      void* made = nullptr;
      must(cudaMalloc(&made, 2 * bytes_of_an_owner));
      return static_cast<std::byte*>(made);
    }();
    return memory;
  }

  memory_share memory_of(nth o) const { return {owners_[o], arena() + o * bytes_of_an_owner}; }

  /// What a node of that kind does with the owner, or with nothing (`keeps`); a copy, with a
  /// second.
  node_content with_owner(node_kind is, nth o, bool keeps, piece_of_work& work, int rounds,
                          std::optional<std::size_t> second = {}) {
    if (is == node_kind::record || is == node_kind::wait)
      return {is, {{.thing = thing_of_event(o)}}, [this, is, o](node_target& to) {
                is == node_kind::record ? to.put(record_node(events_[o]))
                                        : to.put(wait_node(events_[o]));
              }};
    std::shared_ptr<token> callable;
    if (is == node_kind::call) callable = std::make_shared<token>(make_owner());
    entries kept;
    if (keeps) kept.push_back({.thing = owners_[o].share->thing()});
    if (callable) kept.push_back({.thing = callable->thing()});
    for (entry const& each : kept) work.uses.push_back({each.thing});
    std::size_t const from = second.value_or(o);
    if (from != o) kept.push_back({.thing = owners_[from].share->thing()});
    bool const is_run = is == node_kind::call || is == node_kind::kernel;
    return {is, kept,
            [=, this, &work](node_target& to) {
              switch (is) {
                case node_kind::call:
                  return to.put(host_node(called_work{&work, owners_[o], std::move(*callable)}));
                case node_kind::fill:
                  return keeps ? to.put(memset_node(memory_of(o), one_row))
                               : to.put(memset_node(arena(), one_row));
                case node_kind::rows:
                  return to.put(memset_node(memory_of(o), rows));
                case node_kind::copy:
                  return to.put(memcpy_node(memory_of(o), memory_of(from), bytes_of_an_owner / 4));
                default:
                  return keeps ? to.put(kernel_node(work_kernel_that_keeps(), to.shape, &work,
                                                    rounds, owners_[o]))
                               : to.put(kernel_node(work_kernel(), to.shape, &work, rounds));
              }
            },
            is_run ? &work : nullptr};
  }

  /// A kernel that uses the slot, or a fill of its memory; in whatever order the caller makes.
  node_content with_lease(node_kind is, nth l, piece_of_work& work) {
    lease_place& from = leases_[l];
    thing_state& slot = state_of(from.slot);
    slot.racy = from.is_in_graphs = true;
    work.uses.push_back({from.slot, slot.generation});
    return {is,
            {{.thing = from.slot, .generation = slot.generation}},
            [=, &from, &work](auto& to) {
              from.held->with([&](auto& held) {
                if constexpr (requires { held->data(); }) {
                  if (is == node_kind::fill) return to.put(memset_node(held, one_row));
                }
                to.put(kernel_node(kernel_for(held), to.shape, &work, 1, held));
              });
            },
            is == node_kind::kernel ? &work : nullptr};
  }

  /// A kernel of the library.
  node_content with_code(nth y, piece_of_work& work) {
    library_place const& from = libraries_[y];
    work.uses.push_back({from.thing});
    return {
        node_kind::kernel,
        {{.thing = from.thing}},
        [&](node_target& to) { to.put(kernel_node(*from.found, to.shape, &work, work.rounds)); },
        &work};
  }

  outcome note_share(nth l, outcome result) {
    if (result == done) meet(lease_shared_by_two_nodes, ++leases_[l].nodes == 2);
    return result;
  }

  /// What the node does from now on, in a graph or in an exec. Bodies run it as often as they do.
  static void note_work(contents& in, node_place const& at, piece_of_work* work) {
    auto const before = std::ranges::find(in.works, at.id, &node_work::node);
    if (work != nullptr) work->is_counted = true;
    // A kind without attributes leaves them as they are.
    if (work != nullptr && work->clusters == 0 && before != in.works.end())
      work->clusters = before->work->clusters;
    in.run(at.id, work);
  }

  void note_node(nth n, nth g, node made, entries const& kept, node_kind is,
                 piece_of_work* work = nullptr) {
    graph_place& in = graphs_[g];
    nodes_[n] = {std::move(made), g, in.serial, ++node_ids_, is, false};
    in.has_calls = in.has_calls || nodes_[n].is_call() || nodes_[n].is_event();
    in.has_events = in.has_events || nodes_[n].is_event();
    ++in.shape;
    ++in.changes;
    note_work(model_.graphs[g], nodes_[n], work);
    model_.graphs[g].give(nodes_[n].id, kept);
    model_.grow(in.serial, kept);
  }

  void note_in_body(node_place& at, int conditional) {
    at.is_in_body = true;
    at.conditional = conditional;
    inside_[at.id] = conditional;
  }

  /// What becomes of a content that CUDA refuses.
  outcome refused_by_cuda(outcome result) {
    if (result == done) fail("a node got what CUDA refuses");
    return result == failed ? refused : result;
  }

  /// A node at the graph's beginning, or after another.
  outcome add_to_graph(nth n, nth g, node_content const& what, node_place const* after = nullptr) {
    node_target to;
    to.shape.attributes = what.attributes;
    bool const is_in_body = after != nullptr && after->is_in_body;
    outcome const result = attempt(is_stopped_, what.is_wrong, [&] {
      graph_builder_ref const at =
          after != nullptr ? graph_builder_ref(after->handle) : build(*graphs_[g].own);
      to.at = &at;
      what.put(to);
    });
    if (what.is_wrong) return refused_by_cuda(result);
    if (result != done) return result;
    note_node(n, g, to.made, what.kept, what.is, is_in_body ? nullptr : what.work);
    if (is_in_body) note_in_body(nodes_[n], after->conditional);
    return result;
  }

  // Way 0: a kernel first, 1: after the node in the place before, 2: keeps nothing; 3: a host call.
  outcome do_add_node(nth n, nth g, nth o, nth way) {
    if (!is_built(g) || (way != 2 && !owners_[o].share)) return skipped;
    piece_of_work& work = all_.add_work();
    node_place const before = nodes_[(n + nodes_.size() - 1) % nodes_.size()];
    bool const is_chained = way == 1 && is_there(before) && before.graph == g;
    node_content const what = with_owner(way == 3 ? node_kind::call : node_kind::kernel, o,
                                         way != 2, work, way == 2 ? work.rounds : 2);
    return add_to_graph(n, g, what, is_chained ? &before : nullptr);
  }

  outcome do_add_node_of_lease(nth n, nth g, nth l) {
    return note_share(l, add_to_graph(n, g, with_lease(node_kind::kernel, l, all_.add_work())));
  }

  outcome do_add_node_of_code(nth n, nth g, nth y) {
    outcome const result = add_to_graph(n, g, with_code(y, all_.add_work()));
    meet(code_kept_by_a_node, result == done);
    meet(foreign_code_kept_by_a_node, result == done && libraries_[y].is_foreign);
    return result;
  }

  // Way 3: rows.
  outcome do_add_fill(nth n, nth g, nth o, nth way) {
    piece_of_work none;
    return add_to_graph(n, g,
                        with_owner(way == 3 ? node_kind::rows : node_kind::fill, o, true, none, 0));
  }

  outcome do_add_fill_of_lease(nth n, nth g, nth l) {
    if (leases_[l].memory == nullptr) return skipped;
    piece_of_work none;
    outcome const result = add_to_graph(n, g, with_lease(node_kind::fill, l, none));
    meet(lease_of_memory_filled_by_a_node, result == done);
    return result;
  }

  outcome do_add_copy(nth n, nth g, nth to, nth from) {
    piece_of_work none;
    outcome const result = add_to_graph(n, g, with_owner(node_kind::copy, to, true, none, 0, from));
    meet(copy_kept_two_owners, result == done && to != from);
    return result;
  }

  // Even ways: it records; odd ones: it waits.
  outcome do_add_event(nth n, nth g, nth v, nth way) {
    piece_of_work none;
    return add_to_graph(
        n, g, with_owner(way % 2 == 0 ? node_kind::record : node_kind::wait, v, true, none, 0));
  }

  /// A node that waits for all nodes that the program knows in the graph, and does nothing.
  outcome do_add_join(nth n, nth g) {
    node made;
    outcome const result = attempt([&] {
      std::vector<node> known;
      for (node_place const& each : nodes_)
        if (is_there(each) && each.graph == g && !each.is_in_body) known.push_back(each.handle);
      made = build(*graphs_[g].own).join(known);
    });
    if (result == done) note_node(n, g, made, {}, node_kind::empty);
    return result;
  }

  /// A node that allocates, and a kernel that uses the memory. The larger sizes are for both
  /// devices.
  outcome do_add_alloc(nth a, nth g, nth z) {
    graph_place& in = graphs_[g];
    piece_of_work& work = all_.add_work();
    in.is_single = in.has_memory = true;
    ++in.shape;
    std::optional<allocation> made;
    node user;
    outcome const result = attempt([&] {
      alloc_config const where{.device = 0, .peers = {1}};
      allocation const node =
          build(*in.own).add(alloc_node(std::size_t{64} << z, z >= 2 ? where : alloc_config{}));
      work.memory = node.address();
      user = node.add(kernel_node(work_kernel_of_memory(), {}, &work, 1, node.address()));
      made = node;
    });
    if (work.memory != nullptr) graph_memory_.push_back(work.memory);
    if (result == done) allocations_[a] = {made, user, in.serial};
    return result;
  }

  /// Freed in its graph, or in another; not twice.
  outcome do_add_free(nth a, nth g) {
    graph_place& in = graphs_[g];
    allocation_place& place = allocations_[a];
    bool const is_own = place.serial == in.serial;
    // The address may be that of another graph's memory by now.
    if (std::ranges::count(graphs_, place.serial, &graph_place::serial) == 0) return skipped;
    // Launches without the node may have left memory that nothing else may free from then on.
    if (is_own && in.was_instantiated) return skipped;
    in.is_single = in.has_memory = true;
    ++in.shape;
    // It may be freed already.
    outcome const result = attempt(false, true, [&] {
      auto const freed = free_node(place.made->address());
      is_own ? place.user.add(freed) : build(*in.own).add(freed);
    });
    meet(memory_freed_in_another_graph, result == done && !is_own);
    place.made.reset();
    return result;
  }

  /// Memory that launches left belongs to whatever frees it: here the test, at the end.
  void free_graph_memory() {
    relaxed_capture_scope const relaxed;  // on a lost device a capture may be open still
    for (void* const each : graph_memory_) static_cast<void>(cudaFree(each));
    graph_memory_.clear();
    forget_error();
  }
};

}  // namespace escrow::test
