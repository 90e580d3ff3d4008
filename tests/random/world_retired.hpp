// SPDX-License-Identifier: Apache-2.0
// Leases that owners have: retired with them, alone or two at a time, and ended by host functions.
#pragma once

#include "world_owners.hpp"

namespace escrow::test {

struct world_retired : world_owners {
  /// Whether this thread is inside a call that may be given a stream.
  static bool is_given_streams() {
    constexpr std::array without = {op::step, op::work, op::poll, op::settle, op::drain, op::stop};
    return mine_->is_inside && std::ranges::find(without, mine_->what->kind) == without.end();
  }

  /// A destructor on the worker, or a host function, begins to end a lease, and may ask no stream.
  void note_end_elsewhere(retired_lease const& ended, std::list<int>&& marks) {
    using enum known_uses::kind;
    lease_place const& place = ended.place();
    thing_state& slot = state_of(place.slot);
    slot.awaited = slot.deferred_on = 0;
    if (is_graphs(place)) {
      meet(worker_leaves_a_lease_to_its_graph);
      return note_left(place.slot);
    }
    slot.leased = false;
    --slot.handles;
    if (place.capture != 0) slot.racy = true;
    if (place.capture != 0 || place.is_in_graphs) slot.is_private = true;
    auto const is = ended.known.is;
    bool const is_sure = !is_disturbed_ && !is_lost();
    meet(worker_ends_a_covered_lease, is == done && is_sure);
    meet(worker_ends_a_recorded_lease, is == recorded && is_sure);
    meet(worker_defers_a_lease, is == none);
    slot.is_deferred = is == none || is == either || !is_sure;
    if (is == recorded) {
      marks.front() = ended.known.mark;
      marks.resize(1);
      return model_.pend(place.slot, std::move(marks));
    }
    if (is == either) slot.deferred_on = 1U << place.stream;
    auto const is_told = [&](lease_place::other_stream const& other) {
      return place.capture == 0 || other.is_eager;
    };
    // Also where a call failed, which may have told the lease.
    if (is == either || is == none)
      for (lease_place::other_stream const& other : place.others)
        if (is_told(other)) slot.deferred_on |= 1U << other.stream;
    if (is != none) return;
    // A call that is under way may record what was deferred, with a stream that it was given.
    bool const is_known = mine_ == nullptr || (!mine_->has_met && !is_given_streams());
    auto mark = marks.begin();
    auto const await = [&](nth s) {
      *mark++ = streams_[s].mark;
      slot.deferred_on |= 1U << s;
      if (is_known) slot.awaited |= 1U << s;
    };
    if (place.capture == 0) await(place.stream);
    for (lease_place::other_stream const& other : place.others)
      if (other.is_used && is_told(other)) await(other.stream);
    model_.pend(place.slot, std::move(marks));
  }

  std::unique_ptr<retired_lease> make_retired(nth l, token&& owner) {
    return std::make_unique<retired_lease>(
        std::move(owner), std::exchange(leases_[l], {}),
        [this](retired_lease const& ended, std::list<int>&& marks) {
          note_end_elsewhere(ended, std::move(marks));
        });
  }

  /// What is known when the owner is destroyed that is retired on `s`, with the lease in it.
  known_uses known_at_end(lease_place const& place, nth s, bool is_plain) {
    using enum known_uses::kind;
    if (place.capture != 0) return {};
    auto const is_own = [&](auto const& other) { return other.stream == place.stream; };
    auto const is_unsure = [&](auto const& other) { return !is_own(other) && !other.is_used; };
    for (auto const& other : place.others)
      if (!is_own(other) && other.is_used) return {};
    // The call failed: it may have told the lease.
    bool const may_be_told = std::ranges::any_of(place.others, is_unsure);
    if (!capture_at(s).is_active()) {
      if (s != place.stream) return {};
      return {place.is_in_graphs || may_be_told ? either : done};
    }
    if (!is_plain) return {};
    if (may_not_record_on(place.stream) || may_be_told) return {either};
    return {recorded, streams_[place.stream].mark};
  }
  /// The calling thread may not be able to.
  bool may_not_record_on(nth s) const {
    return !capture_at(s).is_none() || is_blocked(s) || !is_own_stream(s);
  }

  /// The last use of a lease that is retired on `s`: there, or on its own stream, which is in no
  /// order with `s`.
  void close_retired(lease_place const& place, nth s, bool on_s) {
    if (on_s) {
      order(place.stream, s);
      use_slot_on(s, place, piece_of_work::role::close);
    } else if (matches(place, place.stream)) {
      use_slot_on(place.stream, place, piece_of_work::role::close);
    } else if (place.capture != 0) {
      state_of(place.slot).racy = true;  // its graph does not end the use
    }
  }

  /// A graph has the lease, and so the slot. It may use it.
  void use_in_graph(int slot, nth s) {
    static_cast<void>(enqueue(s, piece(s, {slot})));
    entries& held = model_.capture_of(capture_at(s).id).held;
    if (!has(held, slot)) held.push_back({.thing = slot, .generation = state_of(slot).generation});
  }

  /// Leases end with an owner that is retired on `s`, with the last use there if it may be, or else
  /// on their own. `is_plain`: as a pointer to the lease.
  outcome retire_leases(std::vector<nth> const& places, nth s, bool is_last_on_s, bool is_plain,
                        bool is_used_after) {
    bool const may_refuse = is_stopped_ || is_unusable(s);
    capture_state const capture = capture_at(s);
    auto owned = std::make_unique<request>();
    owned->is_plain = is_plain;
    std::vector<int> slots;
    std::vector<bool> were_last_on_s;
    std::vector<int> things;
    bool is_wrong = false;
    bool is_too_early = false;
    for (nth const l : places) {
      lease_place& place = leases_[l];
      is_too_early = is_too_early || (is_plain && capture.is_active() && may_be_too_early(place));
      were_last_on_s.push_back(is_last_on_s && matches(place, s));
      slots.push_back(place.slot);
      is_wrong = is_wrong || (is_plain && kind_of_capture(place, s) == capture_kind::wrong);
      if (!may_refuse) close_retired(place, s, were_last_on_s.back());
    }
    for (nth const l : places) {
      token owner = make_owner();
      things.push_back(owner.thing());
      piece_of_work& work = piece(s, {owner.thing()});
      static_cast<void>(enqueue(s, work));
      hand_to_stream(owner.thing(), s, work);
      lease_place& place = leases_[l];
      thing_state& slot = state_of(place.slot);
      known_uses const known = known_at_end(place, s, is_plain);
      if (known.is != known_uses::kind::done) slot.awaited = 1U << place.stream;
      for (auto const& other : place.others) slot.awaited |= 1U << other.stream;
      owned->leases.push_back(make_retired(l, std::move(owner)));
      owned->leases.back()->known = known;
    }
    request& retired = *owned;
    outcome const result = attempt(may_refuse || is_wrong || is_too_early, false, [&] {
      worker_->retire(stream_ref(streams_[s].handle), std::move(owned));
    });
    if (result == done) {
      if (is_wrong) fail("a graph has got a lease whose own capture goes on");
      for (int const slot : slots)
        if (capture.is_active()) use_in_graph(slot, s);
      meet(two_leases_of_a_request, places.size() == 2 && capture.is_none());
      if (is_used_after && capture.is_none() && !mine_->has_met) use_after(retired, s);
      return result;
    }
    if (capture.is_active() && is_plain)
      model_.capture_of(capture.id).lingering.push_back({.thing = slots.front()});
    for (auto thing = things.rbegin(); thing != things.rend(); ++thing)
      take_from_capture(*thing, capture);
    if (owned == nullptr) return result;  // the worker has them, or they are leaked
    for (std::size_t i = 0; i < places.size(); ++i) {
      auto [kept, its] = owned->leases[i]->take_back();
      survive(std::move(kept));
      lease_place& place = leases_[places[i]];
      place = std::move(its);
      if (capture.is_active() && is_plain) place.is_in_graphs = true;
      state_of(slots[i]).awaited = 0;
      if (were_last_on_s[i]) note_use_all_the_same(place, s);
    }
    return result;
  }

  /// Work that the owner does not cover: its lease is accessed after the call that retired it.
  void use_after(request& retired, nth s) {
    retired_lease& last = *retired.leases.back();
    lease_place const& place = last.place();
    if (place.stream != s || place.held->is_address() || place.capture != 0) return;
    last.held().with([](auto& held) { static_cast<void>(held.get()); });
    state_of(place.slot).racy = true;
    if (!enqueue(s, piece(s, {place.slot}))) return;
    if (last.known.is == known_uses::kind::done) last.known = {};
    meet(lease_accessed_after_its_retirement);
    state_of(place.slot).awaited |= 1U << s;
  }

  // Ways 0 and 1: the last use is on that stream, if it may be; 2 and 3: on the lease's own. Odd
  // ways: as a pointer to the lease.
  outcome do_retire_lease(nth l, nth s, nth way) {
    return retire_leases({l}, s, way < 2, way % 2 == 1, false);
  }

  // What a request owns. Way 3: the second is accessed afterwards.
  outcome do_retire_both(nth l, nth other, nth s, nth way) {
    if (l == other) return skipped;
    return retire_leases({l, other}, s, way < 2, false, way == 3);
  }

  static void end_one(void* one) { static_cast<std::unique_ptr<retired_lease>*>(one)->reset(); }

  /// A host function on `s` ends it.
  outcome do_end_in_host_function(nth l, nth s) {
    lease_place& place = leases_[l];
    if (!capture_at(s).is_none() || is_blocked(s) || is_lost()) return skipped;
    int const slot = place.slot;
    close_retired(place, s, matches(place, s));
    token owner = make_owner();
    piece_of_work& work = piece(s, {owner.thing()});
    if (!enqueue(s, work)) return failed;
    model_.pend(owner.thing(), work.mark);
    state_of(slot).awaited = 1U << place.stream;
    for (auto const& each : place.others) state_of(slot).awaited |= 1U << each.stream;
    auto& ended = ended_by_host_functions_.emplace_back(make_retired(l, std::move(owner)));
    meet(lease_ended_by_a_host_function);
    must(cudaLaunchHostFunc(streams_[s].handle, &end_one, &ended));
    return done;
  }
};

}  // namespace escrow::test
