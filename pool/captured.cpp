// SPDX-License-Identifier: Apache-2.0
// Slots for claims in a capture, and how graphs and nodes hold slots.
#include <atomic>
#include <memory>
#include <utility>

#include "claim_search.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

slot* slot_pool::claim_search::take_captured() {
  if (!is_in_order()) {
    slot* const unused = take_unused();
    if (unused != nullptr) give_to_graph(*unused, !is_in_order());  // its block may have told
    return unused;
  }
  if (in.in_arena.may_be && in.ask_for_arena() != nullptr) {
    return take_in_arena();
  }
  if (in.is_reused_late && of.slots.existing() < reused_late(of.bytes)) [[unlikely]] {
    if (slot* const made = make_slot()) {
      give_to_graph(*made);
      return made;
    }
  }
  slot* found = take_existing();
  if (found != nullptr) return found;
  found = grow();  // on failure there may be one to wait for
  if (found == nullptr && (found = in.reuse.take_with_edge(of, capture, asked.stream)) != nullptr) {
    in.edges_added.fetch_add(1, std::memory_order_relaxed);
    return found;
  }
  if (found == nullptr && !seen.is_first) {
    found = grow_in_room();
    if (found == nullptr) {
      size_class* const larger = of.larger();
      return take_held(larger, in.sizes.bytes_max);
    }
  }
  if (found == nullptr) return nullptr;
  give_to_graph(*found);
  return found;
}

void slot_pool::claim_search::give_to_graph(slot& taken, bool is_exclusive) {
  taken.is_exclusive_ = is_exclusive;
  try {
    in.hold_in_graph(taken, capture, true, asked.where);
  } catch (...) {
    in.end_lease(taken, true);  // shared again, if it was
    throw;
  }
  taken.was_used_ = true;  // the graph may be launched again
  taken.is_reused_ = false;
  taken.last_in_group_.reset();
}

slot* slot_pool::claim_search::take_existing() {
  // In a group also what graphs hold of sizes up to four times as large: larger ones stay for
  // claims that need them, while there is anything else. Idle larger ones are left for
  // eager claims, which would make them again.
  constexpr std::size_t larger_max = 4;
  slot* found = nullptr;
  if (in.options.group) {
    found = take_held(&of, larger_max * of.bytes);
  } else {
    found = in.reuse.take_before(of, frontier, capture.id, in.slots_max);
  }
  if (found != nullptr) return found;
  found = in.take_idle(of, seen.pass, seen.is_first);
  if (found != nullptr) give_to_graph(*found);
  return found;
}

slot* slot_pool::claim_search::take_held(size_class* from, std::size_t bytes_most) {
  if (!in.options.group) return nullptr;
  graph_registry& registry = graph_registry::global();
  for (size_class* each = from; each != nullptr && each->bytes <= bytes_most;) {
    if (slot* const own = in.reuse.take_before(*each, frontier, capture.id, in.slots_max))
      return own;
    registry.forget_released(capture.id, capture.graph);  // otherwise take_idle() recycles the set
    slot* found = nullptr;
    // Where the work of a copied graph is ordered in this capture is not known.
    if (!registry.has_sealed(capture.id, capture.graph, *in.options.group->order())) {
      found = in.reuse.take_shared(*each, capture.id);
    }
    if (found != nullptr) {
      give_to_graph(*found);
      return found;
    }
    each = each->larger();
  }
  return nullptr;
}

void slot_pool::claim_search::note_in_group(slot& taken, lease_log::room& spare) {
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
  group_lease* const last = taken.last_in_group_.get();
  if (taken.is_reused_ && last != nullptr && last->go_on(asked.where, covered, frontier.all())) {
    taken.in_group_ = std::move(taken.last_in_group_);
    return;
  }
  taken.last_in_group_.reset();
  try {
    taken.in_group_ = graph_registry::global().note_lease(
        capture.id, capture.graph, in.of_leases, asked.where, covered, frontier.all(), spare);
  } catch (...) {
    end_unused(taken);
    throw;
  }
}

// A claim took it, and gets nothing: later claims of its capture may get it.
void slot_pool::claim_search::end_unused(slot& taken) noexcept {
  try {
    if (!in.reuse.end_lease_in(taken, capture, frontier.all(), true)) return;
    taken.may_be_in_graphs_ = false;
    in.go_home(taken);
  } catch (...) {  // its graph keeps it
    in.end_lease(taken, true);
  }
}

std::size_t graph_hold::bytes() const noexcept {
  return held_.place_ == nullptr ? held_.resource_->bytes : 0;
}

bool graph_hold::may_own() const noexcept {
  return held_.place_ == nullptr && held_.resource_->bytes == 0;
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

// For arena_place::held_outside: see there.
void slot_pool::state::count_outside(slot& held, bool is_claim, int change) noexcept {
  if (is_claim || held.place_ == nullptr) return;
  held.place_->held_outside.fetch_add(change, std::memory_order_relaxed);
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
  count_outside(taken, is_claim, +1);
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
    escrow::hold_in_graph(hold, is_claim ? member_use::exclusive : member_use::written,
                          capture.graph, capture.id, true,
                          is_claim && options.group ? options.group->order() : nullptr, is_taken,
                          options.held_until_closed ? kept.get() : nullptr);
  } catch (...) {
    if (!is_taken) {  // else it is reclaimed with its set
      core.count_in_graphs(-1);
      count_outside(taken, is_claim, -1);
      static_cast<void>(reuse.remove(taken, capture.id, is_claim));  // it is leased
      if (&hold != &taken.first_hold_) delete &hold;
    }
    throw;
  }
}

void graph_hold::drop_hold(reclaimable& thing) noexcept {
  auto& hold = static_cast<graph_hold&>(thing);
  slot& held = hold.held_;
  slot_pool::state& in = *held.pool_.state_;
  std::uint64_t const capture_id = hold.capture_id_;
  bool const is_claim = hold.is_claim_;
  in.core.count_in_graphs(-1);
  in.count_outside(held, is_claim, -1);
  if (&hold != &held.first_hold_) delete &hold;
  if (in.reuse.remove(held, capture_id, is_claim)) held.leave_graphs();
}

void slot::leave_graphs() noexcept {
  slot_pool::state& in = *pool_.state_;
  last_in_group_.reset();
  released_at_ = in.stamp();
  may_be_in_graphs_ = false;
  key_ = free_lists::own_list_of(*this);  // it comes after later releases of its stream
  in.go_home(*this);
}

}  // namespace escrow::inline v0_2
