// Pools of slots and of scratch memory: how they begin and end, and what is left of them.
#pragma once

#include "world_kept.hpp"

namespace escrow::test {

struct world_pools : world_kept {
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
      token slot = all_.make(reference::kind::slot);
      put_into_pool(slot.thing(), p);
      all_.model.state_of(slot.thing()).is_pooled = !is_closed_[p];
      unsigned left = 0;  // that are not destroyed
      each_slot_of(p, [&](int each) { left += all_.model.state_of(each).gone ? 0 : 1; });
      if (!is_closed_[p] && left > run_->slots) all_.fail("a pool made more slots than its limit");
      return slot;
    });
    is_closed_[p] = was_closed_[p] = false;
  }

  void put_into_pool(int slot, nth pool) {
    pool_of_slot_.resize(static_cast<std::size_t>(slot) + 1, no_pool);
    pool_of_slot_.back() = pool;
    all_.slot_of(slot).home = homes_[std::min(pool, scratch_home)];
  }

  outcome do_make_pool(nth p) {
    if (is_stopped_) return skipped;
    return attempt([&] { create_pool(p); });
  }

  void each_slot_of(nth pool, auto look) {
    for (std::size_t i = 0; i < pool_of_slot_.size(); ++i)
      if (pool_of_slot_[i] == pool) look(static_cast<int>(i));
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
      pool_of_slot_[static_cast<std::size_t>(each)] = no_pool;
      reference::thing_state& slot = all_.model.state_of(each);
      slot.is_pooled = false;
      any_out = any_out || (!slot.gone && all_.slot_of(each).leased);
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
    each_slot_of(p, [&](int each) { all_.model.state_of(each).is_pooled = false; });
    std::vector<holder> left;
    outcome const result =
        attempt([&] { left = pools_[p]->close_for(std::chrono::nanoseconds(0)); });
    was_closed_[p] = true;
    note_closed(homes_[p]);
    meet(pool_closed_with_slots_in_graphs,
         std::ranges::any_of(left, [](holder const& each) { return each.capture_id != 0; }));
    return result;
  }

  /// No slot may be kept from a claim when nothing keeps it and nothing goes on.
  void expect_exhausted(nth pool) {
    sim::counts const machine = sim::alive();
    if (is_disturbed_ || is_careless_ || is_lost() || machine.pending_ops != 0 ||
        machine.pending_callbacks != 0)
      return;
    unsigned made = 0;
    bool any_may_come = false;  // on its way through the worker
    each_slot_of(pool, [&](int each) {
      reference::thing_state const& slot = all_.model.state_of(each);
      ++made;
      any_may_come =
          any_may_come || (slot.handles == 0 && !all_.model.is_held_by_graphs(each) && !slot.gone);
    });
    // All may be held. Fewer than the limit is wrong.
    if (!any_may_come && made < run_->slots)
      all_.fail("a claim found the pool exhausted with fewer slots than its limit");
  }

  /// A claimer, or a stream that outlives the pool, has what it released.
  void expect_none_kept_for(std::uint64_t home, nth s, bool by_claimer) {
    if (is_disturbed_ || is_lost() || mine_->has_met || !capture_at(s).is_none()) return;
    each_kept_by(home, s, by_claimer, [&](int slot) {
      if (!all_.slot_of(slot).racy)  // or else a graph had it
        all_.fail("a claim found nothing, and slot " + std::to_string(slot) +
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

  static std::size_t pool_of_size(std::size_t bytes) {
    return std::ranges::find_if(memory_sizes,
                                [bytes](memory_size const& each) {
                                  return scratch_pool::block_bytes(each.asked) == bytes;
                                })
        ->pool;
  }

  /// That of a block by its address, which is of the size that was asked for if it is new.
  nth pool_of_memory(void* block, nth asked) const {
    auto const known = all_.thing_of(block);
    return known ? pool_of_slot_[static_cast<std::size_t>(*known)] : asked;
  }

  /// The thing that a claimed block is.
  int thing_at(void* block, nth pool) {
    if (auto const known = all_.thing_of(block)) {
      if (pool_of_slot_[static_cast<std::size_t>(*known)] != pool)
        all_.fail("a block was handed out by the pool of another size, or by a destroyed one");
      return *known;
    }
    int const made = all_.make_of(block, reference::kind::slot, memory_freed);
    put_into_pool(made, pool);
    all_.model.state_of(made).is_pooled = true;
    return made;
  }

  /// What is to be met in captures.
  void note_memory_of(std::uint64_t capture, int block) {
    contents const& kept = all_.model.capture_of(capture);
    meet(memory_claimed_again_in_its_capture, has(kept.held, block));
    for (entry const& each : kept.held) {
      auto const at = static_cast<std::size_t>(each.thing);
      if (at >= pool_of_slot_.size() || pool_of_slot_[at] == no_pool) continue;
      meet(memory_of_two_sizes_in_a_capture,
           pool_of_slot_[at] >= memory_sizes[0].pool &&
               pool_of_slot_[at] != pool_of_slot_[static_cast<std::size_t>(block)]);
    }
  }

  outcome do_close_scratch() {
    if (!scratch_) return skipped;
    is_scratch_closed_ = true;
    for (memory_size const& size : memory_sizes)
      each_slot_of(size.pool, [&](int each) { all_.model.state_of(each).is_pooled = false; });
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
      all_.fail("an allocator has ended, and what is allocated does not count as leaked");
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
    all_.slot_of(slot).leased = false;
    all_.slot_of(slot).is_left = true;
    --all_.model.state_of(slot).handles;
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
};

}  // namespace escrow::test
