// SPDX-License-Identifier: Apache-2.0
// Uses of leases: on other streams, in captures that began after the claim, and after captures.
#pragma once

#include "world_leases.hpp"

namespace escrow::test {

struct world_uses : world_leases {
  /// Whether the capture goes on in which the lease was claimed.
  bool goes_on(lease_place const& place) const {
    capture_state const at = capture_at(place.stream);
    return place.capture != 0 && !place.is_over && at.is_active() && at.id == place.capture;
  }

  /// Whether that capture, or the graph that it goes into, has the slot.
  bool is_held_in(std::uint64_t capture, int slot) {
    return has(model_.capture_of(capture).held, slot) ||
           std::ranges::any_of(captures_, [&](open_capture const& each) {
             return each.id == capture && each.into && has(model_.graphs[*each.into].held, slot);
           });
  }

  /// What a capture on a stream is for a lease.
  enum class capture_kind { none, own, another, wrong };
  capture_kind kind_of_capture(lease_place const& place, nth s) {
    capture_state const at = capture_at(s);
    if (!at.is_active()) return capture_kind::none;
    // A graph that was hoisted does not have it any more.
    if (at.id == place.capture)
      return is_held_in(at.id, place.slot) ? capture_kind::own : capture_kind::another;
    return goes_on(place) ? capture_kind::wrong : capture_kind::another;
  }

  /// The graph keeps what was claimed before its capture, in no order with the lease's work.
  void note_kept(lease_place& place, nth s) {
    std::uint64_t const id = capture_at(s).id;
    meet(lease_kept_by_a_later_graph, id != place.capture);
    meet(lease_of_a_capture_kept_by_a_later_graph, place.capture != 0 && id != place.capture);
    if (id != place.capture) place.is_in_graphs = true;
    thing_state& slot = state_of(place.slot);
    slot.racy = true;
    entries& held = model_.capture_of(id).held;
    if (!has(held, place.slot))
      held.push_back({.thing = place.slot, .generation = slot.generation});
  }
  /// The call failed, perhaps afterwards.
  void doubt_kept(lease_place const& place, nth s) {
    model_.capture_of(capture_at(s).id).lingering.push_back({.thing = place.slot});
  }

  /// Whether the claiming stream may have uses that have no event, and cannot be recorded.
  bool may_lack_an_event(lease_place const& place) const {
    bool const is_recordable = capture_at(place.stream).is_none() && !is_blocked(place.stream) &&
                               streams_[place.stream].handle != cudaStreamPerThread;
    return (place.is_local || place.was_perhaps) && !is_recordable;
  }

  /// Whether work of before may still use the slot, which a capture cannot wait for; or on its
  /// claiming stream, which stands for uses without an event.
  bool may_be_too_early(lease_place const& place) {
    if (place.capture != 0) return false;
    return state_of(place.slot).may_be_ahead || may_lack_an_event(place) || place.is_local;
  }

  /// The lease is told of the stream; then work on it uses the slot.
  outcome touch(nth l, nth s, std::function<void()> const& use) {
    lease_place& place = leases_[l];
    bool const is_right = matches(place, s);
    capture_state const at = capture_at(s);
    capture_kind const capture = kind_of_capture(place, s);
    bool const is_wrong = capture == capture_kind::wrong || (at.is_none() && goes_on(place));
    bool const may_refuse = is_wrong || at.is_invalid() || is_blocked(s) ||
                            (at.is_none() && may_lack_an_event(place)) ||
                            (capture == capture_kind::another && may_be_too_early(place));
    give_of(place.slot, s, !may_refuse);
    outcome const result = attempt(may_refuse, is_blocked(s), [&] { record_on(place, s); });
    if (result == done && is_wrong)
      fail("a lease was told of a stream that is not in its capture, which goes on");
    if (capture == capture_kind::another)
      result == done ? note_kept(place, s) : doubt_kept(place, s);
    if (result != done) return result;
    if (capture == capture_kind::another) {
      static_cast<void>(enqueue(s, piece(s, {place.slot})));
      return result;
    }
    place.others.push_back({s, true, at.is_none()});
    if (is_right) use();
    return result;
  }

  outcome do_touch(nth l, nth s) {
    return touch(l, s, [&] {
      if (planted_ != planted::use_is_not_ordered) order(leases_[l].stream, s);
      use_slot_on(s, leases_[l], piece_of_work::role::look);
    });
  }

  /// The work there is in no order with the claim; with the slot's earlier users it has to be.
  outcome do_visit(nth l, nth s) {
    lease_place const& place = leases_[l];
    if (s == place.stream || place.nodes != 0) return skipped;
    return touch(l, s, [&] {
      meet(used_in_no_order_with_the_claim, !state_of(place.slot).racy);
      meet(used_in_no_order_with_the_claim_in_a_capture,
           !state_of(place.slot).racy && capture_at(s).is_active());
      use_slot_on(s, place, piece_of_work::role::visit);
    });
  }

  /// After its capture a lease is read on a stream, behind all launches so far.
  outcome do_read(nth l, nth s) {
    lease_place const& place = leases_[l];
    if (place.capture == 0 || is_any_capturing() || is_blocked(s) || is_lost()) return skipped;
    for (nth i = 0; i < streams_.size(); ++i) order(i, s);
    outcome const result = touch(l, s, [] {});
    if (result != done) return result;
    meet(output_read_after_its_capture, !state_of(place.slot).racy);
    use_slot_on(s, place, piece_of_work::role::output);
    return result;
  }

  outcome do_launch_lease(nth l, nth s) {
    lease_place& place = leases_[l];
    bool const is_right = matches(place, s);
    capture_state const at = capture_at(s);
    capture_kind const capture = kind_of_capture(place, s);
    if (!is_right && !(at.is_active() && at.id != place.capture)) return skipped;
    if (is_right) order(place.stream, s);
    give_of(place.slot, s, false);  // the lease may know it
    if (capture == capture_kind::another) state_of(place.slot).racy = true;
    piece_of_work& work = slot_piece(s, place, piece_of_work::role::look);
    launch_config chosen;
    chosen.deleter = worker_.get();
    bool const is_wrong = capture == capture_kind::wrong;
    bool const may_refuse = is_stopped_ || is_wrong || (at.is_none() && may_lack_an_event(place)) ||
                            (capture == capture_kind::another && may_be_too_early(place));
    outcome const result = attempt(may_refuse, false, [&] {
      place.held->with([&](auto& held) {
        launch(streams_[s].handle, kernel_for(held), chosen, &work, work.rounds, held);
      });
    });
    bool const is_kept = capture == capture_kind::another;
    if (is_kept) result == done ? note_kept(place, s) : doubt_kept(place, s);
    if (is_right && !is_kept) place.others.push_back({s, result == done, at.is_none()});
    if (result != done) {
      model_.set_mark(work.mark);
      return result;
    }
    if (is_wrong) fail("a graph has got a lease's slot whose own capture goes on");
    note_use(s, work);
    return result;
  }
};

}  // namespace escrow::test
