// SPDX-License-Identifier: Apache-2.0
// Pools of slots and of memory: how they begin and end; which released slots their claimers, and
// streams that outlive them, may keep for their own next calls; and which blocks may be left.
#pragma once

#include "world_streams.hpp"

namespace escrow::test {

struct world_pools : world_streams {
  static constexpr nth scratch_home = 2;  // of `homes_`

  void begin_home(nth pool) {
    homes_[pool] = ++serials_;
    given_[pool] = 0;
  }

  /// The pool is given the stream, and records what is deferred on it. `is_sure`: else a call may
  /// be refused before it does so, or not ask.
  void give(std::uint64_t home, nth s, bool is_sure = true) {
    for (nth p = 0; p < homes_.size(); ++p)
      if (homes_[p] == home) given_[p] |= 1U << s;
    if (!capture_at(s).is_none() || is_blocked(s)) return;
    for (int slot = 0; slot < model_.size(); ++slot)
      if (state_of(slot).is_deferred && state_of(slot).home == home) {
        state_of(slot).awaited &= ~(1U << s);
        if (is_sure) state_of(slot).deferred_on &= ~(1U << s);
      }
  }
  void give_of(int slot, nth s, bool is_sure = true) { give(state_of(slot).home, s, is_sure); }

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
      if (state.is_kept && !state.gone && state.home == home) look(slot);
    }
  }

  /// Streams that outlive the pool keep also what claimers release.
  bool is_kept_by_claimer(nth s, bool by_claimer) const {
    return by_claimer && (!run_->lasts || streams_[s].handle == cudaStreamPerThread);
  }

  /// It is released on its claimer's stream, or on one that outlives the pool. After the end of the
  /// pool it does not stay.
  void keep(int slot, nth s, bool by_claimer) {
    thing_state& state = state_of(slot);
    by_claimer = is_kept_by_claimer(s, by_claimer);
    if (keepers_of(state.home, s, by_claimer) == 0 || is_over(state.home)) return;
    state.is_kept = true;
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
    by_claimer = is_kept_by_claimer(s, by_claimer);
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
      each_slot_of(p, [&](int each) {
        thing_state const& state = state_of(each);
        // A deferred one is lost with its stream, whose handle another may have.
        bool const may_be_lost = state.may_be_lost() || (state.is_deferred && any_stream_gone_);
        left += state.gone || may_be_lost ? 0 : 1;
      });
      // What a release, or a fault, has deferred may be lost, too.
      bool const may_be_less =
          (is_careless_ || is_disturbed_ || deferred_releases_ != 0) && any_stream_gone_;
      if (!is_closed_[p] && left > run_->slots && !may_be_less)
        fail("a pool made more slots than its limit");
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
    meet(claim_waited_in_its_stream, now.stream_waits);
    meet(claim_added_an_edge, now.edges_added);
    meet(pool_gone_with_slots_out, unpool(p));
    note_closing(homes_[p]);
    pools_[p].reset();
  }

  /// The slots of that pool belong to none from now on; whether any is out.
  bool unpool(nth pool) {
    bool any_out = false;
    each_slot_of(pool, [&](int each) {
      thing_state& slot = state_of(each);
      slot.pool = thing_state::no_pool;
      slot.is_pooled = false;
      any_out = any_out || (!slot.gone && slot.leased);
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

  struct memory_size {
    std::size_t asked;
    std::size_t pool;  // its number: those of the other pools come before
  };
  // Two of one size, and others.
  static constexpr std::array memory_sizes{memory_size{100, 2}, memory_size{256, 2},
                                           memory_size{700, 3}, memory_size{5000, 4}};

  static std::size_t bytes_of_pool(nth pool) {
    return scratch_pool::block_bytes(
        std::ranges::find(memory_sizes, pool, &memory_size::pool)->asked);
  }
  static std::size_t pool_of_size(std::size_t bytes) {
    return std::ranges::find_if(memory_sizes,
                                [bytes](memory_size const& each) {
                                  return scratch_pool::block_bytes(each.asked) == bytes;
                                })
        ->pool;
  }

  /// No slot may be kept from a claim when nothing keeps it and nothing goes on. `bytes`: of
  /// memory.
  void expect_exhausted(nth pool, std::size_t bytes = 0) {
    if (is_disturbed_ || is_careless_ || is_lost() || !is_machine_idle()) return;
    unsigned made = 0;
    bool any_may_come = false;  // on its way through the worker
    auto const count = [&](int each) {
      thing_state const& slot = state_of(each);
      made += slot.gone ? 0 : 1;
      any_may_come =
          any_may_come || (slot.handles == 0 && !model_.is_held_by_graphs(each) && !slot.gone);
    };
    each_slot_of(pool, count);
    if (made >= run_->slots) return;  // all may be held
    if (bytes != 0 && run_->bytes != 0) {
      meet(claim_found_no_room_below_the_limit);
      if (bytes <= run_->bytes) expect_none_idle("a claim found no room");
      if (model_bytes() + bytes > run_->bytes) return;
      each_block([&](int each) { count(each); });
    }
    if (!any_may_come) fail("a claim found the pool exhausted with fewer slots than its limit");
  }

  /// Calls `look` with the blocks of the scratch pool that are not freed.
  void each_block(auto look) {
    for (int each = 0; each < model_.size(); ++each)
      if (state_of(each).bytes != 0 && state_of(each).home == homes_[scratch_home] &&
          !state_of(each).gone)
        look(each);
  }
  std::size_t model_bytes() {
    std::size_t sum = 0;
    each_block([&](int each) { sum += state_of(each).bytes; });
    return sum;
  }

  /// Whether the model does not know all that is there: what was leaked, or made in vain.
  bool may_have_lost_memory() const {
    return is_disturbed_ || is_careless_ || is_lost() || any_stream_gone_ ||
           deferred_releases_ != 0 || worker_->stats().leaked != 0;
  }
  void expect_bytes() {
    if (scratch_ == nullptr || may_have_lost_memory() || mine_->has_met) return;
    if (scratch_->bytes() != model_bytes())
      fail("a scratch pool says " + std::to_string(scratch_->bytes()) + " bytes, and has " +
           std::to_string(model_bytes()));
    if (run_->bytes != 0 && scratch_->bytes() > run_->bytes)
      fail("a scratch pool has more memory than its limit");
  }

  /// No block is there that nothing uses, with nothing to be waited for.
  void expect_none_idle(std::string const& what) {
    if (may_have_lost_memory() || run_->idles || is_scratch_closed_) return;
    each_block([&](int each) {
      thing_state const& block = state_of(each);
      if (block.handles == 0 && !block.is_kept && !block.is_deferred && !block.is_let_go &&
          !model_.is_pending(each) && !model_.is_held_by_graphs(each))
        fail(what + ", and nothing uses block " + std::to_string(each));
    });
  }

  /// What can be read of pools, the group and the deleter, by any thread at any time.
  outcome do_read_stats(nth p, nth way) {
    if (way < 2 && pools_[p] == nullptr) return skipped;
    // In the order of addresses a text of lines grows as it may.
    do_allocations_vary_ = way == 3;
    outcome const result = attempt([&] {
      if (way == 0) static_cast<void>(pools_[p]->stats());
      if (way == 1) static_cast<void>(pools_[p]->describe());
      if (way == 2) static_cast<void>(to_json(group_.stats()));
      if (way == 3) static_cast<void>(worker_->describe());
    });
    do_allocations_vary_ = false;
    return result;
  }

  // Way 0: all, others: but for so much.
  outcome do_trim(nth way) {
    constexpr std::array<std::size_t, 4> kept_bytes{0, 256, 1000, 5500};
    if (scratch_ == nullptr) return skipped;
    std::size_t const keep = kept_bytes[way];
    bool const was_idle = is_machine_idle();
    // Beside it, the worker's look for unused blocks misses the one that this asks about.
    bool const may_hide_one = baton::is_in_group();
    std::size_t const before = scratch_->bytes();
    auto const freed_before = things::freed_here();
    std::size_t freed = 0;
    outcome const result = attempt([&] { freed = scratch_->trim(keep); });
    each_block([&](int each) {
      if (may_hide_one && state_of(each).checks == things::given_back)
        state_of(each).is_pooled = true;
    });
    if (result != done || is_lost()) return result;
    meet(memory_trimmed, freed != 0);
    bool const is_all_known = !is_disturbed_;  // or else a block may have been made in vain
    if (is_all_known && things::freed_here().bytes - freed_before.bytes != freed)
      fail("a trim says that it has freed " + std::to_string(freed) + " bytes, and has not");
    if (mine_->has_met) return result;
    std::size_t const after = scratch_->bytes();
    if (after + freed != before) fail("a trim did not count what it has freed");
    if (is_all_known && freed != 0 && after + things::freed_here().last <= keep)
      fail("a trim has freed more than it was told to");
    meet(trim_left_what_is_in_use, after > keep);
    meet(trim_kept_what_it_was_told, freed != 0 && after != 0 && after <= keep);
    if (after > keep && was_idle) expect_none_idle("a trim has freed too little");
    expect_bytes();
    return result;
  }

  /// A claim of memory looks whether blocks are not used: those that were released before the look
  /// before it are the worker's from now on.
  void note_look_for_unused(int claimed) {
    if (!run_->idles || is_disturbed_) return;
    each_block([&](int each) {
      unsigned& checks = state_of(each).checks;
      if (each == claimed || checks == 0 || checks == things::given_back) return;
      if (++checks == things::given_back) state_of(each).is_pooled = false;
    });
  }

  /// That of a block by its address, which is of the size that was asked for if it is new.
  nth pool_of_memory(void* block, nth asked) {
    auto const known = all_.thing_of(block);
    return known ? state_of(*known).pool : asked;
  }

  /// The thing that a claimed block is.
  int thing_at(void* block, nth pool) {
    if (auto const known = all_.thing_of(block)) {
      if (state_of(*known).pool != pool)
        fail("a block was handed out by the pool of another size, or by a destroyed one");
      return *known;
    }
    int const made = all_.make_of(block, thing_state::kind::slot, memory_freed);
    put_into_pool(made, pool);
    state_of(made).bytes = bytes_of_pool(pool);
    state_of(made).is_pooled = true;
    return made;
  }

  /// What is to be met in captures.
  void note_memory_of(std::uint64_t capture, int block) {
    contents const& kept = model_.capture_of(capture);
    meet(memory_claimed_again_in_its_capture, has(kept.held, block));
    for (entry const& each : kept.held) {
      nth const pool = state_of(each.thing).pool;
      meet(memory_of_two_sizes_in_a_capture, pool != thing_state::no_pool &&
                                                 pool >= memory_sizes[0].pool &&
                                                 pool != state_of(block).pool);
    }
  }
};

}  // namespace escrow::test
