// SPDX-License-Identifier: Apache-2.0
// Leases: claims, uses on several streams, and releases.
#pragma once

#include "world_pools.hpp"

namespace escrow::test {

struct world_leases : world_pools {
  void check_claimed(int slot, capture_state const& capture) {
    thing_state& state = state_of(slot);
    std::string const name = "slot " + std::to_string(slot);
    if (state.leased) return fail(name + " was handed out twice");
    if (state.gone) return fail(name + " was handed out, and is destroyed");
    bool const was_kept = std::exchange(state.is_kept, false);
    if (std::exchange(state.is_deferred, false) && state.awaited != 0 && !is_lost())
      return fail(name + " was handed out, and waits for a record on its streams");
    meet(slot_of_a_claimer_went_to_a_capture, was_kept && capture.is_active());
    // A slot released outside, or by a hoisted, may come again to a capture that resumes the graph.
    bool const is_free_in_it = !state.is_private && !state.is_left;
    if (capture.is_active() && state.capture == capture.id && is_free_in_it &&
        (!state.is_let_go || has(model_.capture_of(capture.id).held, slot)))
      return meet(slot_claimed_again_in_its_capture);
    // Work of before is waited for in the stream.
    auto const marks = std::exchange(state.marks, {});
    std::string const why = model_.why_alive(slot);
    state.marks = marks;
    // A hoisted graph has it until the work behind it is done.
    bool const is_let_go = state.is_let_go && model_.is_pending(slot);
    // What is leaked stays the group's.
    bool const is_groups = model_.is_held_by_graphs(slot) || is_let_go || state.is_leaked;
    if (run_->shares && capture.is_active() && is_groups) {
      meet(slot_shared_by_graphs, !why.empty());
      meet(slot_shared_after_let_go, is_let_go);
      if (state.is_private && (!why.empty() || model_.is_pending(slot)))
        fail(name + " was shared, and eager work may use it");
      state.is_private = state.is_left = false;  // no graph had it any more
      if (has(model_.capture_of(capture.id).held, slot))
        fail(name + " was claimed twice in a capture, in no order");
      return;
    }
    meet(eager_slot_went_to_a_capture,
         capture.is_active() && state.capture == 0 && state.value != 0);
    meet(slot_of_a_graph_claimed_again, state.capture != 0);
    if (capture.is_active() && all_.values_count && model_.is_pending(slot))
      return fail(name + " went to a capture while work uses it");
    if ((all_.values_count || !model_.is_pending(slot)) && !why.empty())
      fail(name + " was handed out, but " + why + " keeps it");
    ++state.generation;
    if (state.racy) state.open = 0;
    state.racy = state.is_private = state.is_left = state.is_let_go = false;
  }

  /// The lease has the slot, for work on the stream.
  void note_claim(lease_place& place, nth s, capture_state const& capture) {
    thing_state& slot = state_of(place.slot);
    bool const was_kept = slot.is_kept && capture.is_none();
    meet(slot_of_a_claimer_went_to_another_stream, was_kept && slot.kept_on != s);
    place.was_kept = was_kept && slot.kept_on == s;
    place.was_perhaps = place.was_kept || keepers_of(slot.home, s, true) != 0;
    check_claimed(place.slot, capture);
    slot.may_be_ahead = slot.generation > 1;
    slot.leased = true;
    slot.capture = capture.is_active() ? capture.id : 0;
    ++slot.handles;
    place.value = all_.begin_use();
    place.stream = s;
    place.capture = slot.capture;
    place.others.clear();
    place.nodes = 0;
    place.claimer = 0;
    place.is_over = place.is_in_graphs = false;
    place.is_local = run_->lasts && capture.is_none() && streams_[s].handle != cudaStreamPerThread;
    if (capture.is_active()) {
      contents& kept = model_.capture_of(capture.id);
      if (!has(kept.held, place.slot))
        kept.held.push_back({.thing = place.slot, .generation = slot.generation, .claimed = true});
      meet(claim_on_a_forked_stream, !is_origin(s));
      meet(claim_beside_a_kernel, is_beside_a_kernel(s));
    }
    use_slot_on(s, place, piece_of_work::role::fill);
  }

  piece_of_work& slot_piece(nth s, lease_place const& of, piece_of_work::role what) {
    piece_of_work& work = piece(s, {of.slot});
    work.what = what;
    work.slot = of.slot;
    work.value = of.value;
    work.memory = of.memory;
    work.is_racy = state_of(of.slot).racy;
    return work;
  }

  void use_slot_on(nth s, lease_place const& of, piece_of_work::role what) {
    bool const is_there = enqueue(s, slot_piece(s, of, what));
    if (is_there && what == piece_of_work::role::close) all_.will_close(of.value);
  }

  enum class claim_way { plain, tries, kept, for_host };
  outcome claim(nth l, nth p, nth s, claim_way way) {
    give(homes_[p], s);
    outcome const result = claim_by(
        l, p, s, was_closed_[p], is_closed_[p], [&]() -> auto& {
          cudaStream_t const stream = streams_[s].handle;
          if (way == claim_way::tries) return take_got(l, pools_[p]->try_claim(stream));
          std::optional<held_lease>& held = leases_[l].held;
          if (way == claim_way::kept) return held.emplace(pools_[p]->claim_kept(stream));
          if (way == claim_way::for_host) return held.emplace(pools_[p]->claim_for_host(stream));
          return held.emplace(pools_[p]->claim(stream));
        });
    if (result == exhausted && run_->lasts && way != claim_way::for_host)
      expect_none_kept_for(homes_[p], s, false);
    meet(slot_claimed_again_on_a_lasting_stream,
         result == done && run_->lasts && leases_[l].was_kept);
    return result;
  }

  /// What a try_claim() has got.
  held_lease& take_got(nth l, std::optional<lease<token>>&& got) {
    if (!got) throw pool_exhausted("as claim() would have");
    return leases_[l].held.emplace(std::move(*got));
  }

  /// A claim of that pool, as the call does it.
  outcome claim_by(nth l, nth p, nth s, bool was_closed, bool const& is_closed_by_then,
                   std::function<void()> const& call) {
    lease_place& place = leases_[l];
    capture_state const capture = capture_at(s);
    bool const is_wrong = capture.is_invalid() || is_blocked(s);
    // Closed meanwhile, either is correct.
    outcome const result =
        attempt(is_wrong || streams_[s].device != 0, false, call, is_closed_by_then);
    if (result == exhausted && !mine_->has_met) expect_exhausted(p);
    if (result != done) return result;
    // A fork of a capture onto another device's stream cannot be asked for its device.
    if (is_wrong || was_closed || (streams_[s].device != 0 && capture.is_none()))
      fail("a claim succeeded that must be refused");
    place.held->with([&](auto& held) {
      if constexpr (requires { held->thing(); }) place.slot = held->thing();
    });
    place.memory = nullptr;
    note_claim(place, s, capture);
    return result;
  }
  outcome do_claim(nth l, nth p, nth s) { return claim(l, p, s, claim_way::plain); }
  outcome do_claim_captured(nth l, nth p, nth s) {
    return leases_[l].held || pools_[p] == nullptr ? skipped : claim(l, p, s, claim_way::plain);
  }
  outcome do_try_claim(nth l, nth p, nth s) { return claim(l, p, s, claim_way::tries); }

  /// The host writes it at once, and work on the stream reads it.
  outcome do_stage(nth l, nth p, nth s) {
    if (!capture_at(s).is_none()) return skipped;
    outcome const result = claim(l, p, s, claim_way::for_host);
    if (result != done) return result;
    lease_place& place = leases_[l];
    place.is_local = false;
    meet(host_got_a_used_slot, state_of(place.slot).value != 0);
    if (all_.values_count && model_.is_pending(place.slot))
      fail("the host got slot " + std::to_string(place.slot) + ", and work uses it");
    all_.write_by_host(place.slot, place.value);
    use_slot_on(s, place, piece_of_work::role::look);
    return result;
  }

  /// Whether work on the stream may use the slot, in order after its claim.
  bool matches(lease_place const& held, nth s) const {
    capture_state const at = capture_at(s);
    capture_state const claimed = capture_at(held.stream);
    if (is_blocked(s) || is_blocked(held.stream)) return false;
    return !at.is_invalid() && !claimed.is_invalid() && at.id == held.capture &&
           claimed.id == held.capture;
  }

  void record_on(lease_place& place, nth s) {
    stream_ref const stream(streams_[s].handle);
    if (held_address* const address = place.held->address()) address->record_stream(stream);
    place.held->with([stream](auto& held) { held.record_stream(stream); });
  }

  /// The slot is in no lease; work may go on with it.
  void note_release(lease_place& place, nth s) {
    thing_state& slot = state_of(place.slot);
    slot.leased = false;
    --slot.handles;
    note_local_release(place, s);
    bool const is_same_capture = capture_at(s).id == place.capture;
    if (place.capture != 0 && is_same_capture) return;
    // After its capture a lease is its graph's, but for the streams that it was told of since.
    bool const is_told = place.capture == 0 || s != place.stream;
    if (is_told && capture_at(s).is_none()) model_.pend(place.slot, streams_[s].mark);
    for (lease_place::other_stream const& other : place.others)
      if (other.is_used && (place.capture == 0 || other.is_eager) &&
          capture_at(other.stream).is_none())
        model_.pend(place.slot, streams_[other.stream].mark);
    if (place.is_in_graphs) slot.is_private = true;
    if (place.capture == 0) return;
    slot.racy = true;  // its graph's launches are in no order with the lease's work
    slot.is_private = true;
    meet(lease_outlived_its_capture);
    meet(lease_ended_in_another_capture, capture_at(s).is_active());
  }

  /// Released on its claimer's stream, the slot may stay there without an event.
  void note_local_release(lease_place const& place, nth s) {
    if (!place.is_local) return;
    meet(lease_of_a_claimer_released_in_a_capture,
         place.claimer != 0 && capture_at(place.stream).is_active());
    bool const is_local =
        s == place.stream && std::ranges::all_of(place.others, [s](auto const& e) {
          return e.stream == s;  // a launch, which the lease does not note
        });
    if (is_local && capture_at(s).is_none() && !is_blocked(s))
      keep(place.slot, s, place.claimer != 0);
  }

  /// Whether a release may not record on a stream that the lease was told of.
  bool is_any_other_captured(lease_place const& place, std::uint64_t id, bool is_left) const {
    return std::ranges::any_of(place.others, [&](auto const& other) {
      std::uint64_t const its = capture_at(other.stream).id;
      if (is_left) return other.is_eager && (its != 0 || is_blocked(other.stream));
      return its != place.capture || its != id || is_blocked(other.stream);
    });
  }

  // Ways 0 and 1: release(), without and with a stream; 2: the end of the lease. An address is
  // always freed on a stream; way 2: without an exception.
  outcome release(nth l, nth s, unsigned way) {
    lease_place& place = leases_[l];
    bool const is_right = matches(place, s) && (way != 1 || streams_[s].device == 0);
    capture_state const at = capture_at(s);
    // A lease of a capture that is over is left to its graph, whatever its stream does.
    bool const is_left =
        place.capture != 0 && at.id != place.capture && way != 1 && !place.held->is_address();
    bool const is_foreign = at.is_active() && at.id != place.capture && !is_left;
    bool const is_other_captured = is_any_other_captured(place, at.id, is_left);
    bool const is_unsure = is_other_captured || (at.is_invalid() && !is_left);
    if ((is_foreign || (way == 2 && is_unsure)) && !is_careless_) return skipped;
    // The stream has to come after the claim's, which can be in no order with it while it captures.
    if (way == 1 && place.capture == 0 && at.is_none() &&
        (!capture_at(place.stream).is_none() || is_blocked(place.stream)))
      return skipped;
    if (is_right) {
      if (way == 1) order(place.stream, s);
      use_slot_on(s, place, piece_of_work::role::close);
    }
    for (auto const& other : place.others)
      meet(release_beside_a_kernel, is_beside_a_kernel(other.stream));
    bool const may_refuse = is_foreign || is_other_captured || at.is_invalid() ||
                            streams_[s].device != 0 || (way != 2 && is_blocked(s));
    meet(released_on_a_blocked_legacy_stream, way == 2 && is_blocked(s));
    // A later capture of its graph does not order what was enqueued after its own.
    bool const is_later_capture =
        place.capture != 0 && at.is_active() &&
        std::ranges::any_of(place.others, [](auto const& other) { return other.is_eager; });
    // Its slot waits until the pool is given the stream again, or is leaked with the pool.
    bool const is_deferred = (!at.is_none() && at.id != place.capture && !is_left) ||
                             is_later_capture || is_blocked(s) || is_other_captured ||
                             is_disturbed_;
    if (is_deferred) ++deferred_releases_;
    give_of(place.slot, s, !may_refuse && !is_left);
    auto const marks = state_of(place.slot).marks;
    held_address* const address = place.held->address();
    bool const may_fail = (way == 1 || address != nullptr) && is_blocked(s);  // CUDA refuses
    bool const is_late = planted_ == planted::release_noted_late;
    if (!is_late) note_release(place, s);
    stream_ref const stream(streams_[s].handle);
    outcome const result = attempt(may_refuse, may_fail, [&] {
      if (address != nullptr)
        return way == 2 ? address->release_or_report(stream) : address->release(stream);
      if (way == 2) return place.held.reset();
      place.held->with([&](auto& held) { way == 0 ? held.release() : held.release(stream); });
    });
    if (address != nullptr) note_freed(place, s, way, may_refuse || may_fail);
    if (!is_deferred && is_disturbed_) ++deferred_releases_;  // a record in it failed
    bool const has_met = mine_ == nullptr || mine_->has_met;
    // A share of a node, also of one that was refused, may be on its way to the worker.
    thing_state& slot = state_of(place.slot);
    bool const had_share = slot.racy;
    bool const is_plain = place.capture == 0 && at.is_none() && !is_deferred && !is_disturbed_ &&
                          !had_share && !slot.is_kept && !model_.is_held_by_graphs(place.slot);
    if (is_plain && result == done && !has_met) slot.checks = 1;
    if (is_late) note_release(place, s);
    if (!place.held || !place.held->is_held()) {
      place.held.reset();
      if (is_foreign)  // that graph has it too
        model_.capture_of(at.id).lingering.push_back({.thing = place.slot});
      return result;
    }
    // The lease still has it.
    slot.leased = true;
    slot.is_private = slot.is_kept = false;
    ++slot.handles;
    slot.marks = marks;
    if (is_right && way == 1) note_use_all_the_same(place, s);
    return result;
  }

  /// A lease was not released on the stream, and is used there.
  void note_use_all_the_same(lease_place& place, nth s) {
    give_of(place.slot, s);
    try {
      record_on(place, s);
    } catch (std::exception const&) {
      state_of(place.slot).racy = true;  // a device is lost
    }
    place.others.push_back({s, true, capture_at(s).is_none()});
  }

  void note_freed(lease_place& place, nth s, unsigned way, bool may_fail) {
    held_address& address = *place.held->address();
    if (way == 2 && !address.is_freed(streams_[s].handle)) {
      meet(address_not_freed_when_told);
      if (!may_fail && !is_disturbed_ && !is_lost())
        fail("memory that deallocate_or_report() was given is allocated for no reason");
    }
    if (address) return;
    std::uint64_t const in = capture_at(s).id;
    meet(address_freed_on_another_stream, s != place.stream);
    meet(address_freed_after_its_capture, place.capture != 0 && in != place.capture);
    meet(address_freed_in_another_capture, in != 0 && in != place.capture);
  }

  outcome do_release(nth l) { return release(l, leases_[l].stream, 0); }
  outcome do_release_on(nth l, nth s) { return release(l, s, 1); }
  outcome do_drop_lease(nth l) { return release(l, leases_[l].stream, 2); }

  outcome claim_and_release_on(nth s) {
    auto const free = std::ranges::find_if(leases_, [](lease_place const& e) { return !e.held; });
    if (free == leases_.end() || pools_[0] == nullptr) return skipped;
    auto const l = static_cast<std::size_t>(free - leases_.begin());
    outcome const result = do_claim(l, 0, s);
    return result == done ? release(l, s, 0) : result;
  }
};

}  // namespace escrow::test
