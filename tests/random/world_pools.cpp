// Pools: claims, uses on several streams, releases, and ends.
#include <algorithm>
#include <escrow/sim.hpp>

#include "attempt.hpp"

namespace escrow::test {

void world::make_pool(std::size_t p) {
  pool_options chosen;
  chosen.slots_max = run_.slots;
  chosen.capture_wait_max = {};  // stepped, no time passes meanwhile
  chosen.device = 0;
  chosen.deleter = worker_.get();
  auto made = std::make_unique<resource_pool<token>>(chosen, [this, p] {
    token slot = all_.make(reference::kind::slot);
    pool_of_slot_.resize(static_cast<std::size_t>(slot.thing()) + 1, -1);
    pool_of_slot_[static_cast<std::size_t>(slot.thing())] = static_cast<int>(p);
    all_.model.state_of(slot.thing()).is_pooled = !is_closed_[p];
    expect_within_limit(p);
    return slot;
  });
  pools_[p] = std::move(made);
  is_closed_[p] = was_closed_[p] = false;
}

/// A pool that is open has at most so many slots that are not destroyed.
void world::expect_within_limit(std::size_t p) {
  if (is_closed_[p]) return;
  std::size_t count = 0;
  for (std::size_t i = 0; i < pool_of_slot_.size(); ++i)
    if (pool_of_slot_[i] == static_cast<int>(p) && !all_.model.state_of(static_cast<int>(i)).gone)
      ++count;
  if (count > run_.slots) all_.fail("a pool made more slots than its limit");
}

outcome world::do_make_pool(std::size_t p) {
  if (pools_[p] != nullptr || is_stopped_) return outcome::skipped;
  return attempt(false, false, [&] { make_pool(p); });
}

/// From now on its slots go when nothing uses them.
void world::leave_pool(std::size_t p) {
  if (pools_[p] == nullptr) return;
  pool_stats const now = pools_[p]->stats();
  for (std::size_t i = 0; i < now.stream_waits; ++i)
    counts_.meet(situation::claim_waited_in_its_stream);
  for (std::size_t i = 0; i < now.edges_added; ++i) counts_.meet(situation::claim_added_an_edge);
  if (unpool(static_cast<int>(p))) counts_.meet(situation::pool_gone_with_slots_out);
  pools_[p].reset();
}

/// The slots of that pool are nobody's from now on; whether any is out.
bool world::unpool(int pool) {
  bool any_out = false;
  for (std::size_t i = 0; i < pool_of_slot_.size(); ++i) {
    if (pool_of_slot_[i] != pool) continue;
    pool_of_slot_[i] = -1;
    reference::thing_state& slot = all_.model.state_of(static_cast<int>(i));
    slot.is_pooled = false;
    any_out = any_out || (!slot.gone && all_.slot_of(static_cast<int>(i)).leased);
  }
  return any_out;
}

outcome world::do_destroy_pool(std::size_t p) {
  if (pools_[p] == nullptr) return outcome::skipped;
  return attempt(false, false, [&] { leave_pool(p); });
}

outcome world::do_close_pool(std::size_t p) {
  if (pools_[p] == nullptr) return outcome::skipped;
  is_closed_[p] = true;
  for (std::size_t i = 0; i < pool_of_slot_.size(); ++i) {
    if (pool_of_slot_[i] == static_cast<int>(p))
      all_.model.state_of(static_cast<int>(i)).is_pooled = false;
  }
  std::vector<holder> left;
  outcome const result =
      attempt(false, false, [&] { left = pools_[p]->close_for(std::chrono::nanoseconds(0)); });
  was_closed_[p] = true;
  if (std::ranges::any_of(left, [](holder const& each) { return each.capture_id != 0; }))
    counts_.meet(situation::pool_closed_with_slots_in_graphs);
  return result;
}

/// No slot may be kept from a claim when nothing keeps it and nothing goes on.
void world::expect_exhausted(std::size_t p, capture_state const& /*capture*/) {
  sim::counts const machine = sim::alive();
  if (is_disturbed_ || is_careless_ || lost_[0] || lost_[1] || machine.pending_ops != 0 ||
      machine.pending_callbacks != 0)
    return;
  for (std::size_t i = 0; i < pool_of_slot_.size(); ++i) {
    if (pool_of_slot_[i] != static_cast<int>(p)) continue;
    reference::thing_state const& slot = all_.model.state_of(static_cast<int>(i));
    if (slot.handles == 0 && !all_.model.is_held_by_graphs(static_cast<int>(i)) && !slot.gone)
      return;  // it may be on its way through the worker
  }
  // All are held: right. Fewer than the limit is wrong.
  auto const made = std::ranges::count(pool_of_slot_, static_cast<int>(p));
  if (made < static_cast<std::ptrdiff_t>(run_.slots))
    all_.fail("a claim found the pool exhausted with fewer slots than its limit");
}

void world::check_claimed(int slot, capture_state const& capture) {
  things::slot_state& state = all_.slot_of(slot);
  std::string const name = "slot " + std::to_string(slot);
  if (state.leased) return all_.fail(name + " was handed out twice");
  if (all_.model.state_of(slot).gone) return all_.fail(name + " was handed out, and is destroyed");
  bool const is_same = capture.is_active() && state.capture == capture.id;
  if (is_same) return counts_.meet(situation::slot_claimed_again_in_its_capture);
  if (capture.is_active() && state.capture == 0 && state.value != 0)
    counts_.meet(situation::eager_slot_went_to_a_capture);
  if (state.capture != 0) counts_.meet(situation::slot_of_a_graph_claimed_again);
  if (capture.is_active() && all_.values_count && all_.model.is_pending(slot))
    return all_.fail(name + " went to a capture while work uses it");
  if (all_.values_count || !all_.model.is_pending(slot)) {
    // Work of before is waited for in the stream.
    std::vector<int> const marks = std::exchange(all_.model.state_of(slot).marks, {});
    std::string const why = all_.model.why_alive(slot);
    all_.model.state_of(slot).marks = marks;
    if (!why.empty()) all_.fail(name + " was handed out, but " + why + " keeps it");
  }
  ++state.generation;
  if (state.racy) state.open = 0;
  state.racy = false;
}

outcome world::do_claim(std::size_t l, std::size_t p, std::size_t s, bool tries) {
  lease_place& place = leases_[l];
  if (place.held || pools_[p] == nullptr) return outcome::skipped;
  capture_state const capture = capture_at(s);
  bool const was_closed = was_closed_[p];
  bool const is_wrong = capture.is_invalid() || is_blocked(s);
  // Closed meanwhile, either is right.
  auto const may_refuse = [&] { return is_wrong || is_closed_[p] || streams_[s].device != 0; };
  outcome const result = attempt(may_refuse, false, [&] {
    if (!tries) {
      place.held.emplace(pools_[p]->claim(streams_[s].handle));
    } else if (auto got = pools_[p]->try_claim(streams_[s].handle)) {
      place.held.emplace(std::move(*got));
    } else {
      throw pool_exhausted("as claim() would have");
    }
  });
  if (result == outcome::exhausted && !mine_->has_met) expect_exhausted(p, capture);
  if (result != outcome::done) return result;
  // A fork of a capture onto another device's stream cannot be asked for its device.
  if (is_wrong || was_closed || (streams_[s].device != 0 && capture.is_none()))
    all_.fail("a claim succeeded that must be refused");
  place.held->with([&](auto& held) {
    if constexpr (requires { held->thing(); }) place.slot = held->thing();
  });
  place.memory = nullptr;
  note_claim(place, s, capture);
  return result;
}

/// The lease has the slot, for work on the stream.
void world::note_claim(lease_place& place, std::size_t s, capture_state const& capture) {
  check_claimed(place.slot, capture);
  things::slot_state& slot = all_.slot_of(place.slot);
  slot.leased = true;
  slot.capture = capture.is_active() ? capture.id : 0;
  ++all_.model.state_of(place.slot).handles;
  place.value = all_.begin_use();
  place.stream = s;
  place.capture = slot.capture;
  place.others.clear();
  place.nodes = 0;
  if (capture.is_active()) {
    contents& kept = all_.model.capture_of(capture.id);
    if (!has(kept.held, place.slot))
      kept.held.push_back({.thing = place.slot, .generation = slot.generation});
    bool const is_origin =
        std::ranges::any_of(captures_, [&](open_capture const& each) { return each.origin == s; });
    if (!is_origin) counts_.meet(situation::claim_on_a_forked_stream);
    if (is_beside_a_kernel(s)) counts_.meet(situation::claim_beside_a_kernel);
  }
  use_slot_on(s, place, piece_of_work::role::fill);
}

/// Whether work on the stream may use the slot, in order after its claim.
bool world::matches(lease_place const& held, std::size_t s) const {
  capture_state const at = capture_at(s);
  capture_state const claimed = capture_at(held.stream);
  if (is_blocked(s) || is_blocked(held.stream)) return false;
  return !at.is_invalid() && !claimed.is_invalid() && at.id == held.capture &&
         claimed.id == held.capture;
}

outcome world::do_touch(std::size_t l, std::size_t s) {
  lease_place& place = leases_[l];
  if (!place.held) return outcome::skipped;
  bool const is_right = matches(place, s);
  capture_state const at = capture_at(s);
  outcome const result =
      attempt(at.is_invalid() || is_blocked(s) || at.id != place.capture, is_blocked(s),
              [&] { place.held->record_stream(streams_[s].handle); });
  if (result != outcome::done) return result;
  place.others.push_back(s);
  if (!is_right) return result;
  if (planted_ != planted::use_is_not_ordered) order(place.stream, s);
  use_slot_on(s, place, piece_of_work::role::look);
  return result;
}

/// The slot is in nobody's hands; work may go on with it.
void world::note_release(lease_place& place, std::size_t s) {
  things::slot_state& slot = all_.slot_of(place.slot);
  slot.leased = false;
  --all_.model.state_of(place.slot).handles;
  if (place.capture != 0) {
    if (capture_at(s).id != place.capture) {
      slot.racy = true;  // its graph's launches are in no order with the lease's work
      counts_.meet(situation::lease_outlived_its_capture);
      if (capture_at(s).is_none()) all_.model.pend(place.slot, streams_[s].mark);
    }
    return;
  }
  if (capture_at(s).is_none()) all_.model.pend(place.slot, streams_[s].mark);
  for (std::size_t const other : place.others)
    if (capture_at(other).is_none()) all_.model.pend(place.slot, streams_[other].mark);
}

// Way 0 and 1: release(), with and without a stream; 2: the end of the lease.
outcome world::do_release(std::size_t l, std::size_t s, unsigned way) {
  lease_place& place = leases_[l];
  if (!place.held) return outcome::skipped;
  bool const is_right = matches(place, s) && (way != 1 || streams_[s].device == 0);
  capture_state const at = capture_at(s);
  bool const is_foreign = at.is_active() && at.id != place.capture;
  bool const is_other_captured = std::ranges::any_of(place.others, [&](std::size_t other) {
    return capture_at(other).id != place.capture || capture_at(other).id != at.id ||
           is_blocked(other);
  });
  if ((is_foreign || (way == 2 && (is_other_captured || at.is_invalid()))) && !is_careless_)
    return outcome::skipped;
  // The stream has to come after the claim's, which can be in no order with it while it captures.
  if (way == 1 && place.capture == 0 && at.is_none() &&
      (!capture_at(place.stream).is_none() || is_blocked(place.stream)))
    return outcome::skipped;
  if (is_right) {
    if (way == 1) order(place.stream, s);
    use_slot_on(s, place, piece_of_work::role::close);
  }
  for (std::size_t const other : place.others)
    if (is_beside_a_kernel(other)) counts_.meet(situation::release_beside_a_kernel);
  bool const may_refuse = is_foreign || is_other_captured || at.is_invalid() ||
                          streams_[s].device != 0 || (way != 2 && is_blocked(s));
  if (way == 2 && is_blocked(s)) counts_.meet(situation::released_on_a_blocked_legacy_stream);
  // Its slot waits until the pool is given the stream again, or is leaked with the pool.
  bool const is_deferred = (!at.is_none() && at.id != place.capture) || is_blocked(s) ||
                           is_other_captured || is_disturbed_;
  if (is_deferred) ++deferred_releases_;
  std::vector<int> const marks = all_.model.state_of(place.slot).marks;
  bool const may_fail = way == 1 && is_blocked(s);  // CUDA refuses
  bool const is_late = planted_ == planted::release_noted_late;
  if (!is_late) note_release(place, s);
  outcome const result = attempt(may_refuse, may_fail, [&] {
    if (way == 0) place.held->release();
    if (way == 1) place.held->release(streams_[s].handle);
    if (way == 2) place.held.reset();
  });
  if (is_late) note_release(place, s);
  if (place.held && *place.held) {  // the lease still has it
    all_.slot_of(place.slot).leased = true;
    ++all_.model.state_of(place.slot).handles;
    all_.model.state_of(place.slot).marks = marks;
    if (is_right && way == 1) {  // the stream was used all the same
      try {
        place.held->record_stream(streams_[s].handle);
      } catch (std::exception const&) {
        all_.slot_of(place.slot).racy = true;  // a device is lost
      }
      place.others.push_back(s);
    }
    return result;
  }
  place.held.reset();
  if (is_foreign)  // that graph has it too
    all_.model.capture_of(at.id).lingering.push_back({.thing = place.slot});
  return result;
}

outcome world::do_launch_lease(std::size_t l, std::size_t s) {
  lease_place& place = leases_[l];
  if (!place.held) return outcome::skipped;
  bool const is_right = matches(place, s);
  // In another capture than its own it has to be refused, also on a stream that it knows.
  capture_state const at = capture_at(s);
  if (!is_right && !(at.is_active() && at.id != place.capture)) return outcome::skipped;
  if (is_right) order(place.stream, s);
  piece_of_work& work = slot_piece(s, place, piece_of_work::role::look);
  launch_config chosen;
  chosen.deleter = worker_.get();
  outcome const result = attempt(is_stopped_ || !is_right, false, [&] {
    place.held->with([&](auto& held) {
      launch(streams_[s].handle, kernel_for(held), chosen, &work, work.rounds, held);
    });
  });
  if (is_right) place.others.push_back(s);  // it stays told of the stream if the launch fails
  if (result != outcome::done) {
    all_.model.set_mark(work.mark);
    return result;
  }
  if (!is_right) all_.fail("a graph has got a lease's slot, and does not hold it");
  note_use(s, work);
  return result;
}

}  // namespace escrow::test
