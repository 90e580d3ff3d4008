// Scratch memory: blocks of several sizes, which tell nobody when they are freed.
#include <algorithm>

#include "attempt.hpp"

namespace escrow::test {

namespace {

struct memory_size {
  std::size_t asked;
  int pool;  // its number in pool_of_slot_: those of the other pools come before
};
// Two of one size, and others.
constexpr std::array memory_sizes{memory_size{100, 2}, memory_size{256, 2}, memory_size{700, 3},
                                  memory_size{5000, 4}};

}  // namespace

/// The thing that a claimed block is.
int world::thing_at(void* block, std::size_t size) {
  if (auto const found = blocks_.find(block); found != blocks_.end()) {
    if (pool_of_slot_[static_cast<std::size_t>(found->second)] != memory_sizes[size].pool)
      all_.fail("a block was handed out by the pool of another size, or by one that is gone");
    return found->second;
  }
  int const made = all_.make_bare(reference::kind::slot);
  blocks_.emplace(block, made);
  pool_of_slot_.resize(static_cast<std::size_t>(made) + 1, -1);
  pool_of_slot_[static_cast<std::size_t>(made)] = memory_sizes[size].pool;
  all_.model.state_of(made).is_pooled = true;
  return made;
}

outcome world::do_claim_scratch(std::size_t l, std::size_t z, std::size_t s) {
  lease_place& place = leases_[l];
  if (place.held || (!scratch_ && is_stopped_)) return outcome::skipped;
  capture_state const capture = capture_at(s);
  std::size_t const bytes = memory_sizes[z].asked;
  bool const is_wrong =
      capture.is_invalid() || is_blocked(s) || is_scratch_closed_ || streams_[s].device != 0;
  std::optional<lease<device_block>> claimed;
  outcome const result = attempt(is_wrong, false, [&] {
    if (!scratch_) {
      pool_options chosen;
      chosen.capture_wait_max = {};  // stepped, no time passes meanwhile
      chosen.slots_max = run_.slots;
      chosen.device = 0;
      chosen.deleter = worker_.get();
      scratch_.emplace(chosen);
    }
    claimed.emplace(scratch_->claim(streams_[s].handle, bytes));
  });
  if (result == outcome::exhausted)
    expect_exhausted(static_cast<std::size_t>(memory_sizes[z].pool), capture);
  if (result != outcome::done) return result;
  if (capture.is_invalid() || is_scratch_closed_ || (streams_[s].device != 0 && capture.is_none()))
    all_.fail("a claim of memory succeeded that must be refused");
  device_block const& block = **claimed;
  if (block.size() < bytes || block.size() >= 2 * std::max(bytes, scratch_pool::bytes_min))
    all_.fail("a claim got a block of the wrong size");
  place.memory = block.data();
  place.slot = thing_at(place.memory, z);
  if (capture.is_active()) note_memory_of(capture.id, place.slot);
  place.held.emplace(std::move(*claimed));
  note_claim(place, s, capture);
  return result;
}

/// What is to be met in captures.
void world::note_memory_of(std::uint64_t capture, int block) {
  auto const pool_of = [this](int thing) { return pool_of_slot_[static_cast<std::size_t>(thing)]; };
  contents const& kept = all_.model.capture_of(capture);
  if (has(kept.held, block)) counts_.meet(situation::memory_claimed_again_in_its_capture);
  for (entry const& each : kept.held) {
    bool const is_memory = static_cast<std::size_t>(each.thing) < pool_of_slot_.size() &&
                           pool_of(each.thing) >= memory_sizes[0].pool;
    if (is_memory && pool_of(each.thing) != pool_of(block))
      counts_.meet(situation::memory_of_two_sizes_in_a_capture);
  }
}

outcome world::do_close_scratch() {
  if (!scratch_) return outcome::skipped;
  is_scratch_closed_ = true;
  for (auto const& [block, thing] : blocks_) all_.model.state_of(thing).is_pooled = false;
  return attempt(false, false,
                 [&] { static_cast<void>(scratch_->close_for(std::chrono::nanoseconds(0))); });
}

/// From now on its blocks go when nothing uses them.
void world::leave_scratch() {
  if (!scratch_) return;
  bool any_out = false;
  for (memory_size const& each : memory_sizes) any_out = unpool(each.pool) || any_out;
  if (any_out) counts_.meet(situation::scratch_pool_gone_with_blocks_out);
  scratch_.reset();
  is_scratch_closed_ = false;
}

outcome world::do_destroy_scratch() {
  if (!scratch_) return outcome::skipped;
  return attempt(false, false, [&] { leave_scratch(); });
}

/// Those of `kept` that are not there any more are gone. Looking may let other operations go on,
/// which look, too.
template <class Kept, class IsThere>
void world::notice_ends_of(Kept& kept, IsThere is_there, situation met) {
  std::vector<typename Kept::key_type> all;
  all.reserve(kept.size());
  for (auto const& each : kept) all.push_back(each.first);
  for (auto const& each : all) {
    if (is_there(each)) continue;
    auto const found = kept.find(each);
    if (found == kept.end()) continue;
    all_.gone(found->second);
    counts_.meet(met);
    kept.erase(found);
  }
}

/// What has no destructor of the test's is looked at after each operation. The worker is the
/// program's own, so nothing is destroyed in between, unless operations run together: then it is
/// noticed when the first of them ends. None of these makes such things.
void world::notice_ends() {
  notice_ends_of(
      kept_code_, [this](void const* code) { return !code_shares_[code].expired(); },
      situation::code_unloaded);
  notice_ends_of(
      kept_events_, [this](cudaEvent_t event) { return !event_shares_[event].expired(); },
      situation::kept_event_gone);
  notice_ends_of(
      blocks_,
      [](void* block) {
        cudaPointerAttributes seen{};
        if (cudaPointerGetAttributes(&seen, block) == cudaSuccess)
          return seen.type == cudaMemoryTypeDevice;
        static_cast<void>(cudaGetLastError());  // a lost device
        return true;
      },
      situation::memory_freed);
}

}  // namespace escrow::test
