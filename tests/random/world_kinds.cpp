// Nodes that fill, copy, allocate, free, record, wait, or do nothing.
#include <algorithm>

#include "attempt.hpp"
#include "node_queries.hpp"
#include "relaxed_scope.hpp"

namespace escrow::test {

namespace {

constexpr std::size_t bytes_of_an_owner = 64;
constexpr memset_config one_row{.value = 7, .element_bytes = 4, .width = 4};
constexpr memset_config rows{.value = 7, .element_bytes = 1, .width = 4, .height = 3, .pitch = 16};

}  // namespace

std::byte* world::arena() {
  static auto* const memory = [] {
    void* made = nullptr;
    must(cudaMalloc(&made, 2 * bytes_of_an_owner));
    return static_cast<std::byte*>(made);
  }();
  return memory;
}

memory_share world::memory_of(std::size_t o) const {
  return {owners_[o].share, arena() + o * bytes_of_an_owner};
}

entries world::owners_of(std::size_t one, std::size_t other) const {
  entries kept{{.thing = owners_[one].share->thing()}};
  if (other != one) kept.push_back({.thing = owners_[other].share->thing()});
  return kept;
}

// Way 3: rows.
outcome world::do_add_fill(std::size_t n, std::size_t g, std::size_t o, unsigned way) {
  graph_place& in = graphs_[g];
  if (!is_usable(g) || !in.is_built || !owners_[o].share) return outcome::skipped;
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    made = build(*in.own).add(memset_node(memory_of(o), way == 3 ? rows : one_row));
  });
  if (result != outcome::done) return result;
  note_node(n, g, made, owners_of(o, o), way == 3 ? node_kind::rows : node_kind::fill);
  return result;
}

outcome world::do_add_fill_of_lease(std::size_t n, std::size_t g, std::size_t l) {
  graph_place& in = graphs_[g];
  lease_place& from = leases_[l];
  if (!is_usable(g) || !in.is_built || !from.held || from.memory == nullptr)
    return outcome::skipped;
  piece_of_work unused;
  entries const kept = share_slot(from, unused);
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    from.held->with([&](auto& held) { made = fill_of(*in.own, held); });
  });
  if (result != outcome::done) return result;
  counts_.meet(situation::lease_of_memory_filled_by_a_node);
  note_node(n, g, made, kept, node_kind::fill);
  return result;
}

/// A lease of the pools is none of memory: it is never asked for that.
node world::fill_of(graph_builder_ref const& at, lease<device_block>& held) {
  return at.add(memset_node(held, one_row));
}
node world::fill_of(graph_builder_ref const& /*at*/, lease<token>& /*held*/) {
  return {};
}

outcome world::do_add_copy(std::size_t n, std::size_t g, std::size_t to, std::size_t from) {
  graph_place& in = graphs_[g];
  bool const is_there = owners_[to].share != nullptr && owners_[from].share != nullptr;
  if (!is_usable(g) || !in.is_built || !is_there) return outcome::skipped;
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    made = build(*in.own).add(memcpy_node(memory_of(to), memory_of(from), bytes_of_an_owner / 4));
  });
  if (result != outcome::done) return result;
  if (to != from) counts_.meet(situation::copy_kept_two_owners);
  note_node(n, g, made, owners_of(to, from), node_kind::copy);
  return result;
}

/// A node that waits for all nodes that the program knows in the graph, and does nothing.
outcome world::do_add_join(std::size_t n, std::size_t g) {
  graph_place& in = graphs_[g];
  if (!is_usable(g) || !in.is_built) return outcome::skipped;
  node made;
  outcome const result =
      attempt(false, false, [&] { made = build(*in.own).join(known_nodes_of(g)); });
  if (result == outcome::done) note_node(n, g, made, {}, node_kind::empty);
  return result;
}

std::vector<node> world::known_nodes_of(std::size_t g) const {
  std::vector<node> found;
  for (node_place const& each : nodes_)
    if (is_there(each) && each.graph == g && !each.is_in_body) found.push_back(each.handle);
  return found;
}

/// The later node waits for the earlier.
outcome world::do_add_edge(std::size_t one, std::size_t other) {
  node_place const& first = nodes_[one].id < nodes_[other].id ? nodes_[one] : nodes_[other];
  node_place const& second = nodes_[one].id < nodes_[other].id ? nodes_[other] : nodes_[one];
  if (!is_there(first) || !is_there(second) || one == other) return outcome::skipped;
  bool const is_foreign = first.graph != second.graph || first.is_in_body || second.is_in_body;
  // It may be there.
  outcome const result = attempt(is_foreign, true, [&] { second.handle.after(first.handle); });
  if (result == outcome::done) ++graphs_[first.graph].shape;
  return result;
}

outcome world::do_make_event(std::size_t v) {
  if (events_there_[v]) return outcome::skipped;
  std::shared_ptr<event const> made;
  outcome const result = attempt(false, false, [&] { made = std::make_shared<event>(); });
  if (result != outcome::done) return result;
  int const thing = all_.make_bare(reference::kind::owner);
  all_.model.state_of(thing).handles = 1;
  if (!kept_events_.emplace(made->get(), thing).second)
    all_.fail("a new event has the handle of one that is there");
  event_shares_.insert_or_assign(made->get(), made);
  events_there_[v] = std::move(made);
  return result;
}

int world::thing_of_event(std::size_t v) const {
  return kept_events_.at(events_there_[v]->get());
}

outcome world::do_drop_event(std::size_t v) {
  if (!events_there_[v]) return outcome::skipped;
  all_.model.state_of(thing_of_event(v)).handles = 0;
  events_there_[v].reset();
  return outcome::done;
}

// Even ways: it records; odd ones: it waits.
outcome world::do_add_event(std::size_t n, std::size_t g, std::size_t v, unsigned way) {
  graph_place& in = graphs_[g];
  if (!is_usable(g) || !in.is_built || !events_there_[v]) return outcome::skipped;
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    made = way % 2 == 0 ? build(*in.own).add(record_node(events_there_[v]))
                        : build(*in.own).add(wait_node(events_there_[v]));
  });
  if (result != outcome::done) return result;
  entries const kept{{.thing = thing_of_event(v)}};
  note_node(n, g, made, kept, way % 2 == 0 ? node_kind::record : node_kind::wait);
  return result;
}

/// A node that allocates, and a kernel that uses the memory.
outcome world::do_add_alloc(std::size_t a, std::size_t g, std::size_t z) {
  graph_place& in = graphs_[g];
  if (allocations_[a].made || !is_usable(g) || !in.is_built) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  in.is_single = true;
  in.has_memory = true;
  ++in.shape;
  std::optional<allocation> made;
  node user;
  outcome const result = attempt(false, false, [&] {
    allocation const node = build(*in.own).add(alloc_node(std::size_t{64} << z));
    work.memory = node.address();
    user = node.add(kernel_node(work_kernel_of_memory(), {}, &work, 1, node.address()));
    made = node;
  });
  if (work.memory != nullptr) graph_memory_.push_back(work.memory);
  if (result == outcome::done) allocations_[a] = {made, user, in.serial};
  return result;
}

/// Freed in its graph, or in another; not twice.
outcome world::do_add_free(std::size_t a, std::size_t g) {
  graph_place& in = graphs_[g];
  allocation_place& place = allocations_[a];
  if (!place.made || !is_usable(g) || !in.is_built) return outcome::skipped;
  bool const is_own = place.serial == in.serial;
  // The address may be that of another graph's memory by now.
  bool const is_known = std::ranges::any_of(
      graphs_, [&](graph_place const& each) { return each.serial == place.serial; });
  if (!is_known) return outcome::skipped;
  // Launches without the node may have left memory that nobody else may free from then on.
  if (is_own && in.was_instantiated) return outcome::skipped;
  in.is_single = true;
  in.has_memory = true;
  ++in.shape;
  // It may be freed already.
  outcome const result = attempt(false, true, [&] {
    void* const address = place.made->address();
    is_own ? place.user.add(free_node(address)) : build(*in.own).add(free_node(address));
  });
  if (result == outcome::done && !is_own) counts_.meet(situation::memory_freed_in_another_graph);
  place.made.reset();
  return result;
}

/// Memory that launches left goes to whoever frees it: here the caller, at the end.
void world::free_graph_memory() {
  relaxed_scope const relaxed;  // on a lost device a capture may be open still
  for (void* const each : graph_memory_) static_cast<void>(cudaFree(each));
  graph_memory_.clear();
  static_cast<void>(cudaGetLastError());
}

/// What can be read of a graph is read; that changes nothing.
outcome world::do_look(std::size_t g) {
  graph_place& in = graphs_[g];
  if (!is_usable(g) || !in.own || in.own->id() == ~std::uint64_t{0}) return outcome::skipped;
  return attempt(false, false, [&] {
    for (exec_place const& each : execs_)
      if (each.own && each.own->get() != nullptr) static_cast<void>(each.own->held());
    for (auto const& each : hoisted_)
      if (each) static_cast<void>(each->held());
    if (scratch_ && scratch_->bytes() % scratch_pool::bytes_min != 0)
      all_.fail("a scratch pool says that it has a part of a block");
    resource_usage const kept = in.own->held();
    bool const is_plain = in.is_built && !in.is_parent && !in.is_hoisted;
    if (is_plain && kept.owners + kept.slots != 0 && all_.model.graphs[g].held.empty() &&
        all_.model.graphs[g].lingering.empty() && !is_disturbed_)
      all_.fail("a graph says that it holds something, and nothing was given to it");
    for (node_place const& each : nodes_) {
      if (is_there(each) && each.graph == g) read_back(each);
    }
  });
}

void world::read_back(node_place const& at) {
  // What its nodes keep was taken off: it may be gone, and so may what CUDA tells of them.
  if (graphs_[at.graph].is_hoisted) return;
  if (at.is_event() && event_shares_.at(event_of(at.handle)).expired())
    all_.fail("an event node does not lead to its event");
}

}  // namespace escrow::test
