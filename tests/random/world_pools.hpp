// Pools of slots: how they begin and end; and which released slots their claimers, and streams that
// outlive them, may keep for their own next calls.
#pragma once

#include "world_streams.hpp"

namespace escrow::test {

struct world_pools : world_streams {
  static constexpr nth scratch_home = 2;  // of `homes_`

  void begin_home(nth pool) {
    homes_[pool] = ++serials_;
    given_[pool] = 0;
  }

  /// The pool is given the stream, and records what is deferred on it.
  void give(std::uint64_t home, nth s) {
    for (nth p = 0; p < homes_.size(); ++p)
      if (homes_[p] == home) given_[p] |= 1U << s;
    if (!capture_at(s).is_none() || is_blocked(s)) return;
    for (int slot = 0; slot < model_.size(); ++slot)
      if (state_of(slot).is_deferred && state_of(slot).home == home)
        state_of(slot).awaited &= ~(1U << s);
  }
  void give_of(int slot, nth s) { give(state_of(slot).home, s); }

  /// Whether a close() of that pool is over.
  bool is_over(std::uint64_t home) const {
    for (nth p = 0; p < homes_.size(); ++p)
      if (homes_[p] == home) return p == scratch_home ? is_scratch_closed_ : was_closed_[p];
    return true;
  }

  /// How many keep what is released on the stream: claimers, or the stream itself.
  std::size_t keepers_of(std::uint64_t home, nth s, bool are_claimers) const {
    if (!are_claimers) return run_->lasts && !is_over(home) ? 1 : 0;
    std::size_t count = 0;
    for (claimer_place const& each : claimers_)
      if (each.is_there() && each.home == home && each.stream == s) ++count;
    return count;
  }

  void each_kept(std::uint64_t home, auto look) {
    for (int slot = 0; slot < model_.size(); ++slot) {
      thing_state const& state = state_of(slot);
      if (state.is_kept && !state.gone && state_of(slot).home == home) look(slot);
    }
  }

  /// It is released on its claimer's stream, or on one that outlives the pool. After the end of the
  /// pool it does not stay.
  void keep(int slot, nth s, bool by_claimer) {
    thing_state& state = state_of(slot);
    if (keepers_of(state.home, s, by_claimer) == 0 || is_over(state.home)) return;
    state_of(slot).is_kept = true;
    state.kept_on = s;
    state.is_claimers = by_claimer;
  }

  /// Whether an event may not be recorded on the stream.
  bool is_deferring(nth s) const {
    return !capture_at(s).is_none() || is_blocked(s) || is_disturbed_;
  }

  /// It has an event now, or is deferred until one can be recorded.
  void stop_keeping(int slot) {
    state_of(slot).is_kept = false;
    if (is_deferring(state_of(slot).kept_on)) ++deferred_releases_;
  }

  /// The slots that one alone keeps, a claimer or the stream itself.
  void each_kept_by(std::uint64_t home, nth s, bool by_claimer, auto look) {
    if (keepers_of(home, s, by_claimer) != 1) return;
    each_kept(home, [&](int slot) {
      thing_state const& state = state_of(slot);
      if (state.kept_on == s && state.is_claimers == by_claimer) look(slot);
    });
  }

  /// Claimers, or the pool, have ended: what they kept nobody keeps.
  void look_for_keepers(std::uint64_t home) {
    each_kept(home, [&](int slot) {
      thing_state const& state = state_of(slot);
      if (keepers_of(home, state.kept_on, state.is_claimers) == 0) stop_keeping(slot);
    });
  }

  void note_closing(std::uint64_t home) {
    for (claimer_place& each : claimers_) each.is_closed = each.is_closed || each.home == home;
  }
  void note_closed(std::uint64_t home) {
    for (claimer_place& each : claimers_) each.was_closed = each.was_closed || each.home == home;
    look_for_keepers(home);
  }
  void end_home(nth pool) {
    std::uint64_t const ended = std::exchange(homes_[pool], 0);
    bool any_kept = false;
    each_kept(ended, [&](int) { any_kept = true; });
    meet(lasting_streams_left_by_their_pool, any_kept && run_->lasts);
    note_closed(ended);
    for (claimer_place const& each : claimers_)
      meet(claimer_outlived_its_pool, each.is_there() && each.home == ended && any_kept);
  }

  pool_options options_of_pools() const {
    pool_options chosen;
    chosen.slots_max = run_->slots;
    chosen.capture_wait_max = {};  // stepped, no time passes meanwhile
    chosen.device = 0;
    chosen.deleter = worker_.get();
    if (run_->shares) chosen.group = group_;
    chosen.streams_outlive_pool = run_->lasts;
    chosen.unrecorded_max = run_->unrecorded;
    chosen.check_streams = run_->seed % 4 == 1;
    return chosen;
  }

  void create_pool(nth p) {
    begin_home(p);
    pools_[p] = std::make_unique<resource_pool<token>>(options_of_pools(), [this, p] {
      token slot = all_.make(thing_state::kind::slot);
      put_into_pool(slot.thing(), p);
      state_of(slot.thing()).is_pooled = !is_closed_[p];
      unsigned left = 0;  // that are not destroyed
      each_slot_of(p, [&](int each) { left += state_of(each).gone ? 0 : 1; });
      if (!is_closed_[p] && left > run_->slots) fail("a pool made more slots than its limit");
      return slot;
    });
    is_closed_[p] = was_closed_[p] = false;
  }

  void put_into_pool(int slot, nth pool) {
    state_of(slot).pool = pool;
    state_of(slot).home = homes_[std::min(pool, scratch_home)];
  }

  outcome do_make_pool(nth p) {
    if (is_stopped_) return skipped;
    return attempt([&] { create_pool(p); });
  }

  void each_slot_of(nth pool, auto look) {
    for (int each = 0; each < model_.size(); ++each)
      if (state_of(each).pool == pool) look(each);
  }

  /// From now on its slots are destroyed when nothing uses them.
  void leave_pool(nth p) {
    pool_stats const now = pools_[p]->stats();
    for (std::size_t i = 0; i < now.stream_waits; ++i) meet(claim_waited_in_its_stream);
    for (std::size_t i = 0; i < now.edges_added; ++i) meet(claim_added_an_edge);
    meet(pool_gone_with_slots_out, unpool(p));
    note_closing(homes_[p]);
    pools_[p].reset();
  }

  /// The slots of that pool belong to none from now on; whether any is out.
  bool unpool(nth pool) {
    bool any_out = false;
    each_slot_of(pool, [&](int each) {
      state_of(each).pool = thing_state::no_pool;
      thing_state& slot = state_of(each);
      slot.is_pooled = false;
      any_out = any_out || (!slot.gone && state_of(each).leased);
    });
    return any_out;
  }

  outcome do_destroy_pool(nth p) {
    outcome const result = attempt([&] { leave_pool(p); });
    end_home(p);
    return result;
  }

  outcome do_close_pool(nth p) {
    is_closed_[p] = true;
    note_closing(homes_[p]);
    each_slot_of(p, [&](int each) { state_of(each).is_pooled = false; });
    std::vector<holder> left;
    outcome const result =
        attempt([&] { left = pools_[p]->close_for(std::chrono::nanoseconds(0)); });
    was_closed_[p] = true;
    note_closed(homes_[p]);
    meet(pool_closed_with_slots_in_graphs,
         std::ranges::any_of(left, [](holder const& each) { return each.capture_id != 0; }));
    return result;
  }

  static bool is_machine_idle() {
    sim::counts const machine = sim::alive();
    return machine.pending_ops == 0 && machine.pending_callbacks == 0;
  }

  /// A claimer, or a stream that outlives the pool, has what it released.
  void expect_none_kept_for(std::uint64_t home, nth s, bool by_claimer) {
    if (is_disturbed_ || is_lost() || mine_->has_met || !capture_at(s).is_none()) return;
    each_kept_by(home, s, by_claimer, [&](int slot) {
      if (!state_of(slot).racy)  // or else a graph had it
        fail("a claim found nothing, and slot " + std::to_string(slot) +
             " was released on its stream");
    });
  }
};

}  // namespace escrow::test
