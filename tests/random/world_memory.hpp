// Scratch memory: blocks of four sizes, what is left of them, and how the pool ends.
#pragma once

#include "world_pools.hpp"

namespace escrow::test {

struct world_memory : world_pools {
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
      if (block.handles == 0 && !block.is_kept && !block.is_deferred && !state_of(each).is_let_go &&
          !model_.is_pending(each) && !model_.is_held_by_graphs(each))
        fail(what + ", and nothing uses block " + std::to_string(each));
    });
  }

  // Way 0: all, others: but for so much.
  outcome do_trim(nth way) {
    constexpr std::array<std::size_t, 4> kept_bytes{0, 256, 1000, 5500};
    if (scratch_ == nullptr) return skipped;
    std::size_t const keep = kept_bytes[way];
    bool const was_idle = is_machine_idle();
    std::size_t const before = scratch_->bytes();
    auto const freed_before = things::freed_here();
    std::size_t freed = 0;
    outcome const result = attempt([&] { freed = scratch_->trim(keep); });
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
};

}  // namespace escrow::test
