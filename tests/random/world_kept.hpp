// Which pools are there, and which released slots their claimers, and streams that outlive them,
// may keep for their own next calls.
#pragma once

#include "world_streams.hpp"

namespace escrow::test {

struct world_kept : world_streams {
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
    for (int slot = 0; slot < all_.model.size(); ++slot)
      if (all_.model.state_of(slot).is_deferred && all_.slot_of(slot).home == home)
        all_.slot_of(slot).awaited &= ~(1U << s);
  }
  void give_of(int slot, nth s) { give(all_.slot_of(slot).home, s); }

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
    for (int slot = 0; slot < all_.model.size(); ++slot) {
      reference::thing_state const& state = all_.model.state_of(slot);
      if (state.is_kept && !state.gone && all_.slot_of(slot).home == home) look(slot);
    }
  }

  /// It is released on its claimer's stream, or on one that outlives the pool. After the end of the
  /// pool it does not stay.
  void keep(int slot, nth s, bool by_claimer) {
    things::slot_state& state = all_.slot_of(slot);
    if (keepers_of(state.home, s, by_claimer) == 0 || is_over(state.home)) return;
    all_.model.state_of(slot).is_kept = true;
    state.kept_on = s;
    state.is_claimers = by_claimer;
  }

  /// Whether an event may not be recorded on the stream.
  bool is_deferring(nth s) const {
    return !capture_at(s).is_none() || is_blocked(s) || is_disturbed_;
  }

  /// It has an event now, or is deferred until one can be recorded.
  void stop_keeping(int slot) {
    all_.model.state_of(slot).is_kept = false;
    if (is_deferring(all_.slot_of(slot).kept_on)) ++deferred_releases_;
  }

  /// The slots that one alone keeps, a claimer or the stream itself.
  void each_kept_by(std::uint64_t home, nth s, bool by_claimer, auto look) {
    if (keepers_of(home, s, by_claimer) != 1) return;
    each_kept(home, [&](int slot) {
      things::slot_state const& state = all_.slot_of(slot);
      if (state.kept_on == s && state.is_claimers == by_claimer) look(slot);
    });
  }

  /// Claimers, or the pool, have ended: what they kept nobody keeps.
  void look_for_keepers(std::uint64_t home) {
    each_kept(home, [&](int slot) {
      things::slot_state const& state = all_.slot_of(slot);
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
};

}  // namespace escrow::test
