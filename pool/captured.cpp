// Slots for claims in a capture, and how graphs and nodes hold slots.
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/reference_set.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

slot* slot_pool::state::take_captured(claim_request const& asked, size_class& of,
                                      capture_info const& capture, capture_frontier const& frontier,
                                      search_result& seen) {
  if (kind_of(asked) != claim_kind::in_order) {
    slot* const unused = take_unused(of, nullptr, seen);
    if (unused != nullptr) give_to_graph(*unused, capture, asked.where, true);
    return unused;
  }
  if (in_arena.may_be && ask_for_arena() != nullptr) {
    return take_in_arena(asked, of, capture, frontier, seen);
  }
  slot* found = take_existing(of, capture, frontier, asked.where, seen.pass);
  if (found != nullptr) return found;
  found = grow(of, seen, nullptr);  // on failure there may be one to wait for
  if (found == nullptr && (found = reuse.take_with_edge(of, capture, asked.stream)) != nullptr) {
    edges_added.fetch_add(1, std::memory_order_relaxed);
    return found;
  }
  if (found == nullptr && !seen.is_first) {
    found = grow_in_room(of, seen, nullptr);
    if (found == nullptr) {
      size_class* const larger = of.larger();
      return take_held(larger, bytes_max, capture, frontier, asked.where);
    }
  }
  if (found == nullptr) return nullptr;
  give_to_graph(*found, capture, asked.where);
  return found;
}

void slot_pool::state::give_to_graph(slot& taken, capture_info const& capture,
                                     source_location where, bool is_exclusive) {
  taken.is_exclusive_ = is_exclusive;
  try {
    hold_in_graph(taken, capture, true, where);
  } catch (...) {
    end_lease(taken, true);  // shared again, if it was
    throw;
  }
  taken.was_used_ = true;  // the graph may be launched again
  taken.is_reused_ = false;
}

slot* slot_pool::state::take_existing(size_class& of, capture_info const& capture,
                                      capture_frontier const& frontier, source_location where,
                                      search_pass& pass) {
  // In a group also what graphs hold of sizes up to four times as large: larger ones stay for
  // claims that need them, while there is anything else. An idle one that is larger than asked for
  // stays, too: eager claims would make it once more.
  constexpr std::size_t larger_max = 4;
  slot* found = nullptr;
  if (options.group) {
    found = take_held(&of, larger_max * of.bytes, capture, frontier, where);
  } else {
    found = reuse.take_before(of, frontier, capture.id, slots_max);
  }
  if (found != nullptr) return found;
  found = take_idle(of, pass);
  if (found != nullptr) give_to_graph(*found, capture, where);
  return found;
}

slot* slot_pool::state::take_held(size_class* from, std::size_t bytes_most,
                                  capture_info const& capture, capture_frontier const& frontier,
                                  source_location where) {
  if (!options.group) return nullptr;
  graph_registry& registry = graph_registry::global();
  for (size_class* each = from; each != nullptr && each->bytes <= bytes_most;) {
    if (slot* const own = reuse.take_before(*each, frontier, capture.id, slots_max)) return own;
    registry.forget_released(capture.id, capture.graph);  // otherwise take_idle() recycles the set
    slot* found = nullptr;
    // Where the work of a copied graph is ordered in this capture is not known.
    if (!registry.has_sealed(capture.id, capture.graph, *options.group->order())) {
      found = reuse.take_shared(*each, capture.id);
    }
    if (found != nullptr) {
      give_to_graph(*found, capture, where);
      return found;
    }
    each = each->larger();
  }
  return nullptr;
}

void slot_pool::state::note_in_group(slot& taken, claim_request const& asked,
                                     capture_info const& capture, capture_frontier const& frontier,
                                     lease_log::room spare) {
  covered_place covered;
  if (arena_place const* const its = taken.place_) {
    covered = {.begin = its->begin, .end = its->end};
  } else {
    if (taken.is_exclusive_) return;
    if (taken.group_number_ == 0) {
      // Relaxed: numbers only need to be unique.
      static std::atomic<std::uint64_t> last{0};
      taken.group_number_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    covered.slot = taken.group_number_;
  }
  try {
    taken.in_group_ =
        graph_registry::global().note_lease(capture.id, capture.graph, of_leases, asked.where,
                                            covered, frontier.all(), std::move(spare));
  } catch (...) {
    end_unused(taken, capture, frontier);
    throw;
  }
}

// A claim took it, and gets nothing: later claims of its capture may get it.
void slot_pool::state::end_unused(slot& taken, capture_info const& capture,
                                  capture_frontier const& frontier) noexcept {
  try {
    if (!reuse.end_lease_in(taken, capture, frontier.all(), true)) return;
    taken.may_be_in_graphs_ = false;
    go_home(taken);
  } catch (...) {  // its graph keeps it
    end_lease(taken, true);
  }
}

std::size_t graph_hold::bytes() const noexcept {
  return held_.place_ == nullptr ? held_.resource_->bytes : 0;
}

slot_reference::range_end graph_hold::range() const noexcept {
  if (held_.place_ == nullptr) return {};
  // Relaxed: a number.
  return {&held_.pool_.arena_of(), held_.place_->reach.load(std::memory_order_relaxed)};
}

void graph_hold::enter(reference_set const& set) noexcept {
  if (!is_claim_) return;
  held_.claimed_with_ = &set;
  held_.captures_ended_ = set.captures_ended();
  held_.is_capture_over_ = false;
}

graph_hold& slot_pool::state::make_hold(slot& taken, std::uint64_t id, bool is_claim,
                                        source_location where) {
  graph_hold* hold = &taken.first_hold_;
  std::unique_ptr<graph_hold> extra;  // if a graph holds it already
  if (taken.may_be_in_graphs_ && reuse.is_held(taken)) {
    extra = std::make_unique<graph_hold>(core, options.device, taken);
    hold = extra.get();
  }
  reuse.add(taken, id, is_claim, where);
  core.count_in_graphs(+1);
  hold->capture_id_ = id;
  hold->is_claim_ = is_claim;
  static_cast<void>(extra.release());  // drop_hold() deletes it
  return *hold;
}

void slot_pool::state::hold_in_graph(slot& taken, capture_info const& capture, bool is_claim,
                                     source_location where) {
  graph_hold& hold = make_hold(taken, capture.id, is_claim, where);
  bool is_taken = false;
  try {
    escrow::hold_in_graph(hold, true, capture.graph, capture.id, true,
                          is_claim && options.group ? options.group->order() : nullptr, is_taken,
                          options.held_until_closed ? kept.get() : nullptr);
  } catch (...) {
    if (!is_taken) {  // else it is reclaimed with its set
      core.count_in_graphs(-1);
      static_cast<void>(reuse.remove(taken, capture.id, is_claim));  // it is leased
      if (&hold != &taken.first_hold_) delete &hold;
    }
    throw;
  }
}

slot_share slot_pool::share_with_node(claimed_slot const& lease) {
  slot& used = require_slot("lease::share_with_node", lease);
  state::refuse_of_scope("lease::share_with_node", lease);
  // Relaxed: ids only need to be unique.
  static std::atomic<std::uint64_t> next{capture_reuse::first_share_id};
  std::uint64_t const id = next.fetch_add(1, std::memory_order_relaxed);
  return slot_share(used.pool_.state_->make_hold(used, id, false, {}));
}

void graph_hold::drop_hold(reclaimable& thing) noexcept {
  auto& hold = static_cast<graph_hold&>(thing);
  slot& held = hold.held_;
  slot_pool::state& in = *held.pool_.state_;
  std::uint64_t const capture_id = hold.capture_id_;
  bool const is_claim = hold.is_claim_;
  in.core.count_in_graphs(-1);
  if (&hold != &held.first_hold_) delete &hold;
  if (!in.reuse.remove(held, capture_id, is_claim)) return;
  held.released_at_ = in.stamp();
  held.may_be_in_graphs_ = false;
  held.key_ = free_lists::own_list_of(held);  // it comes after later releases of its stream
  in.go_home(held);
}

}  // namespace escrow::inline v0_1
