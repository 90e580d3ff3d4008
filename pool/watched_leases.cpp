// SPDX-License-Identifier: Apache-2.0
// What is noted of each lease if pool_options::track_leases is set, or if the simulated runtime
// asks.
#include <chrono>
#include <mutex>

#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

namespace {

// Null: no memory of its own.
void const* memory_of(slot const& its) noexcept {
  if (its.place_ != nullptr) return its.pool_.arena_of().address_of(*its.place_);
  return its.booked_.begin();
}

void tell_simulator(slot const& its, environment::lease_event what, cudaStream_t stream) noexcept {
  void const* const memory = memory_of(its);
  if (memory == nullptr || !environment::asks_guards()) return;
  std::size_t const used = its.booked_.used.load(std::memory_order_relaxed);
  bool const is_given = what == environment::lease_event::given;
  environment::simulated_lease(what, memory, is_given && used != 0 ? used : its.resource_->bytes,
                               stream);
}

}  // namespace

void slot_pool::keep_contents() noexcept {
  state_->keeps_contents = environment::asks_guards();
}

void slot_pool::state::note_claim(slot& taken, claim_request const& asked, stream_use const& on,
                                  std::uint64_t capture_id) noexcept {
  if (options.track_leases) taken.note_ = {asked.where, std::chrono::steady_clock::now()};
  using enum environment::lease_event;
  tell_simulator(taken, capture_id == 0 ? claimed : told, on.handle);
}

void slot_pool::state::note_kept(slot const& taken, std::uint64_t capture_id) noexcept {
  if (!taken.was_used_ || capture_id != 0) return;
  taken.booked_.for_each_block([](made_blocks::block const& each) {
    using enum environment::lease_event;
    environment::simulated_lease(kept, each.begin, each.bytes, nullptr);
  });
}

void slot_pool::state::list_lease(slot& leased) noexcept {
  if (!options.track_leases) return;
  std::lock_guard const lock(leases_mutex);
  leases.add(leased);
}

void slot_pool::state::unlist_lease(slot& ended) noexcept {
  if (!ended.may_be_in_graphs_) tell_simulator(ended, environment::lease_event::ended, nullptr);
  if (!options.track_leases) return;
  std::lock_guard const lock(leases_mutex);
  leases.remove(ended);
}

void slot_pool::state::note_use(slot const& used, environment::lease_event what) const noexcept {
  if (is_watched) tell_simulator(used, what, nullptr);
}

}  // namespace escrow::inline v0_2
