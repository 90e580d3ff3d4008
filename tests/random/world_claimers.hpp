// SPDX-License-Identifier: Apache-2.0
// Scratch memory: claimed, left to graphs, and how its pool ends; and claimers: made, claimed
// through, flushed, ended before and after their streams' captures and their pools.
#pragma once

#include "world_uses.hpp"

namespace escrow::test {

struct world_claimers : world_uses {
  /// Creates it at its first use.
  void need_scratch() {
    if (scratch_) return;
    scratch_policy chosen;
    if (run_->bytes != 0) chosen.bytes_max = run_->bytes;
    if (run_->idles) chosen.idle_max = std::chrono::nanoseconds(1);
    // The model knows blocks; ranges of an arena have tests of their own.
    if (run_->shares) chosen.source = memory_source::cuda_malloc();
    scratch_ = run_->addresses ? &allocator_.emplace(options_of_pools(), chosen).pool()
                               : &own_scratch_.emplace(options_of_pools(), chosen);
  }

  outcome do_claim_scratch(nth l, nth z, nth s) {
    if (!scratch_ && is_stopped_) return skipped;
    if (!scratch_) begin_home(scratch_home);
    give(homes_[scratch_home], s);
    do_allocations_vary_ = run_->addresses;
    outcome const result = claim_block(l, z, s, is_scratch_closed_, [&](std::size_t bytes) {
      need_scratch();
      cudaStream_t const stream = streams_[s].handle;
      return allocator_ ? held_lease(held_address(*allocator_, allocator_->allocate(stream, bytes)))
                        : held_lease(scratch_->claim(stream, bytes));
    });
    do_allocations_vary_ = false;
    return result;
  }

  /// A claim of memory, as the call does it.
  outcome claim_block(nth l, nth z, nth s, bool is_closed,
                      std::function<held_lease(std::size_t)> const& call) {
    lease_place& place = leases_[l];
    capture_state const capture = capture_at(s);
    auto const [bytes, pool] = memory_sizes[z];
    bool const is_wrong =
        capture.is_invalid() || is_blocked(s) || is_closed || streams_[s].device != 0;
    std::optional<held_lease> claimed;
    std::size_t const freed_before = things::freed_here().bytes;
    outcome const result =
        attempt(is_wrong, false, [&, size = bytes] { claimed.emplace(call(size)); });
    meet(claim_freed_memory_of_another_size, things::freed_here().bytes != freed_before);
    if (result == exhausted) expect_exhausted(pool, bytes_of_pool(pool));
    if (result != done) return result;
    if (capture.is_invalid() || is_closed || (streams_[s].device != 0 && capture.is_none()))
      fail("a claim of memory succeeded that must be refused");
    held_address* const address = claimed->address();
    place.memory = address != nullptr ? address->memory() : (*claimed->block())->data();
    nth const its_pool = address != nullptr ? pool_of_memory(place.memory, pool)
                                            : pool_of_size((*claimed->block())->size());
    bool const may_be_larger = run_->shares && capture.is_active();
    if (its_pool < pool || (its_pool != pool && !may_be_larger))
      fail("a claim got a block of the wrong size");
    meet(memory_of_a_larger_size_shared, its_pool != pool);
    std::erase(graph_memory_, place.memory);  // given again since its graph was destroyed
    place.slot = thing_at(place.memory, its_pool);
    // The worker had not come to it yet.
    if (state_of(place.slot).checks == things::given_back) state_of(place.slot).is_pooled = true;
    state_of(place.slot).checks = 0;
    note_look_for_unused(place.slot);
    expect_bytes();
    if (capture.is_active()) note_memory_of(capture.id, place.slot);
    place.held.emplace(std::move(*claimed));
    note_claim(place, s, capture);
    return result;
  }

  outcome do_close_scratch() {
    if (!scratch_) return skipped;
    is_scratch_closed_ = true;
    for (memory_size const& size : memory_sizes)
      each_slot_of(size.pool, [&](int each) { state_of(each).is_pooled = false; });
    note_closing(homes_[scratch_home]);
    outcome const result =
        attempt([&] { static_cast<void>(scratch_->close_for(std::chrono::nanoseconds(0))); });
    note_closed(homes_[scratch_home]);
    return result;
  }

  /// From now on its blocks are freed when nothing uses them.
  void leave_scratch() {
    if (!scratch_) return;
    bool any_out = false;
    for (memory_size const& each : memory_sizes) any_out = unpool(each.pool) || any_out;
    meet(scratch_pool_gone_with_blocks_out, any_out);
    note_closing(homes_[scratch_home]);
    std::size_t const leaked = worker_->stats().leaked + end_addresses();
    scratch_ = nullptr;
    own_scratch_.reset();
    allocator_.reset();
    if (worker_->stats().leaked < leaked)
      fail("an allocator has ended, and what is allocated does not count as leaked");
    is_scratch_closed_ = false;
  }

  /// Memory of a capture is its graph's alone until it is used on a stream after it.
  static bool is_graphs(lease_place const& place) {
    return place.capture != 0 &&
           std::ranges::none_of(place.others, &lease_place::other_stream::is_eager);
  }
  static bool is_leaking(lease_place const& place) {
    return place.held && place.held->is_address() && !is_graphs(place);
  }

  /// The slot is its graph's.
  void note_left(int slot) {
    state_of(slot).leased = false;
    state_of(slot).is_left = true;
    --state_of(slot).handles;
  }

  /// At the end of their allocator. What is leaked stays for ever; how many do.
  std::size_t end_addresses() {
    std::size_t leaks = 0;
    for (lease_place& each : leases_) {
      if (!each.held || !each.held->is_address()) continue;
      leaks += is_leaking(each) ? 1 : 0;
      meet(allocator_gone_with_leaks, is_leaking(each));
      meet(allocator_gone_before_its_graph, is_graphs(each));
      if (is_graphs(each)) note_left(each.slot);
      each.held.reset();
    }
    return leaks;
  }

  outcome do_destroy_scratch() {
    if (!scratch_ || (!is_careless_ && std::ranges::any_of(leases_, &is_leaking))) return skipped;
    outcome const result = attempt([&] { leave_scratch(); });
    end_home(scratch_home);
    return result;
  }

  outcome do_leave_to_graph(nth l) {
    lease_place& place = leases_[l];
    if (!place.held || place.capture == 0) return skipped;
    bool const is_right = is_graphs(place);
    bool const is_open = matches(place, place.stream);
    if (is_right) note_left(place.slot);
    outcome const result = attempt(!is_right, false, [&] {
      if (held_address* const address = place.held->address()) address->leave_to_graph();
      place.held->with([](auto& held) { held.leave_to_graph(); });
    });
    if ((result == done) != is_right && !is_lost())
      fail("memory was left to a graph that is not its alone, or was not left to its graph");
    meet(leaving_refused_after_later_use, !is_right && place.capture != 0);
    if (result != done) return result;
    // The capture may go on with it.
    if (is_open) use_slot_on(place.stream, place, piece_of_work::role::close);
    meet(is_open ? memory_left_to_its_capture : memory_left_after_its_capture);
    place.held.reset();
    return result;
  }
  claimer_place begun(nth pool, nth s) {
    give(homes_[pool], s, false);  // its claims do
    return {.own = {},
            .memory = {},
            .serial = ++serials_,
            .pool = pool,
            .home = homes_[pool],
            .stream = s,
            .is_closed = pool == scratch_home ? is_scratch_closed_ : is_closed_[pool],
            .was_closed = pool == scratch_home ? is_scratch_closed_ : was_closed_[pool]};
  }

  /// The call makes it, with the place's flags as they are by then.
  outcome make_claimer(nth j, std::function<void(claimer_place&)> const& call) {
    claimer_place& place = claimers_[j];
    nth const s = place.stream;
    capture_state const at = capture_at(s);
    bool const was_closed = place.was_closed;
    bool const is_wrong = at.is_invalid() || is_blocked(s);
    outcome const result = attempt(
        is_wrong || streams_[s].device != 0, false, [&] { call(place); }, place.is_closed);
    if (result != done) {
      place = {};
      return result;
    }
    if (is_wrong || was_closed || (streams_[s].device != 0 && at.is_none()))
      fail("a claimer was made that must be refused");
    return result;
  }

  outcome do_make_claimer(nth j, nth p, nth s) {
    claimers_[j] = begun(p, s);
    return make_claimer(
        j, [&](claimer_place& at) { at.own.emplace(pools_[p]->on(streams_[s].handle)); });
  }

  outcome do_make_scratch_claimer(nth j, nth s) {
    if (!scratch_ && is_stopped_) return skipped;
    if (!scratch_) begin_home(scratch_home);
    claimers_[j] = begun(scratch_home, s);
    return make_claimer(j, [&](claimer_place& at) {
      need_scratch();
      at.memory.emplace(scratch_->on(streams_[s].handle));
    });
  }

  // Ways 0 to 2: claim(); 3: try_claim().
  outcome do_claim_on(nth l, nth j, nth z, nth way) {
    claimer_place& from = claimers_[j];
    nth const s = from.stream;
    give(from.home, s);
    outcome const result =
        from.memory
            ? claim_block(l, z, s, from.was_closed,
                          [&](std::size_t bytes) { return held_lease(from.memory->claim(bytes)); })
            : claim_by(
                  l, from.pool, s, from.was_closed, from.is_closed, [&]() -> auto& {
                    if (way != 3) return leases_[l].held.emplace(from.own->claim());
                    return take_got(l, from.own->try_claim());
                  });
    if (result == exhausted && !from.memory) expect_none_kept_for(from.home, s, true);
    if (result != done) return result;
    lease_place& place = leases_[l];
    place.claimer = from.serial;
    place.is_local = place.capture == 0;
    meet(claimer_claimed_in_a_capture, place.capture != 0);
    meet(from.memory ? memory_claimed_again_by_its_claimer : slot_claimed_again_by_its_claimer,
         place.was_kept);
    meet(graph_launched_between_claims, std::exchange(from.has_launch, false) && place.was_kept);
    return result;
  }

  // Way 3: into the graph, if it can be.
  outcome do_begin_on(nth j, nth g, nth mode, nth way) {
    claimer_place const& place = claimers_[j];
    if (!place.is_there() || !capture_at(place.stream).is_none()) return skipped;
    bool const is_into = way == 3 && is_usable(g);
    return is_into ? do_begin_into(place.stream, g) : do_begin(place.stream, mode);
  }

  outcome do_flush_claims(nth j) {
    claimer_place& place = claimers_[j];
    nth const s = place.stream;
    bool const is_wrong = !capture_at(s).is_none() || is_blocked(s);
    give(place.home, s);
    outcome const result = attempt_unless(
        is_wrong, "a flush", [&] { place.own ? place.own->flush() : place.memory->flush(); });
    if (result != done) return result;
    // Or else a release may have come after it. A stream that outlives the pool may also keep
    // memory of sizes that the claimer never had.
    if (!mine_->has_met && !(place.memory && run_->lasts))
      each_kept_by(place.home, s, true, [this](int slot) { stop_keeping(slot); });
    return result;
  }

  outcome do_end_claimer(nth j) {
    claimer_place& place = claimers_[j];
    meet(claimer_ended_in_a_capture, capture_at(place.stream).is_active());
    for (lease_place const& each : leases_)
      meet(lease_outlived_its_claimer, each.held && each.claimer == place.serial);
    outcome const result = attempt([&] {
      place.own.reset();
      place.memory.reset();
    });
    std::uint64_t const home = place.home;
    nth const s = place.stream;
    place = {};
    look_for_keepers(home);
    // Which of them another of the same stream has is not known.
    each_kept(home, [&](int slot) {
      thing_state const& state = state_of(slot);
      if (state.is_claimers && state.kept_on == s && is_deferring(s)) ++deferred_releases_;
    });
    return result;
  }

  /// Gives the pool all streams.
  void give_all(auto claim) {
    for (stream_place const& each : streams_) {
      try {
        static_cast<void>(claim(each.handle));
      } catch (usage_error const&) {  // of another device; it was given all the same
      } catch (pool_exhausted const&) {
      } catch (std::exception const& error) {
        fail(std::string("a claim at the end threw for no reason: ") + error.what());
      }
    }
  }

  void expect_no_slot_lost(nth p) {
    if (pools_[p] == nullptr || was_closed_[p]) return;
    give_all([&](cudaStream_t stream) { return pools_[p]->claim(stream); });
    sim::run_until_idle();
    static_cast<void>(worker_->poll());
    pool_stats const now = pools_[p]->stats();
    bool const are_kept = now.unrecorded > (run_->lasts ? run_->slots / 2 : 0);
    if (now.leased != 0 || now.in_graphs != 0 || now.deferred != 0 || are_kept)
      fail("everything has ended, and a pool has lost a slot: " + pools_[p]->describe());
    if (!pools_[p]->close_for(std::chrono::seconds(1)).empty())
      fail("everything has ended, and a pool waits for a slot: " + pools_[p]->describe());
    is_closed_[p] = was_closed_[p] = true;
  }
  void expect_no_memory_lost() {
    if (!scratch_ || is_scratch_closed_) return;
    for (memory_size const& size : memory_sizes)
      give_all([&](cudaStream_t stream) { return scratch_->claim(stream, size.asked); });
    if (!scratch_->close_for(std::chrono::seconds(1)).empty())
      fail("everything has ended, and blocks are lost: " + scratch_->describe());
    is_scratch_closed_ = true;
  }
};

}  // namespace escrow::test
