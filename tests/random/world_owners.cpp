// Owners: retired, kept by launches, and shared with streams.
#include <algorithm>

#include "attempt.hpp"

namespace escrow::test {

/// A call failed after it was given something: the graph may have it or not.
void world::doubt_last(contents& captured) {
  captured.lingering.push_back(captured.held.back());
  captured.held.pop_back();
}

void world::survive(token&& kept) {
  if (!kept) return;
  all_.model.state_of(kept.thing()).handles = 1;
  survivors_.push_back(std::move(kept));
}

/// The thing stays for the work so far; in a capture, for the graph.
void world::hand_to_stream(int thing, std::size_t s, piece_of_work const& work) {
  capture_state const capture = capture_at(s);
  if (capture.is_active()) {
    all_.model.capture_of(capture.id).held.push_back({.thing = thing});
    bool const is_fork =
        std::ranges::none_of(captures_, [&](open_capture const& each) { return each.origin == s; });
    if (is_fork) counts_.meet(situation::owner_retired_into_a_fork);
  } else {
    all_.model.pend(thing, work.mark);
  }
}

outcome world::do_retire(std::size_t s) {
  token owner = all_.make(reference::kind::owner);
  int const thing = owner.thing();
  capture_state const capture = capture_at(s);
  piece_of_work& work = piece(s, {thing});
  static_cast<void>(enqueue(s, work));
  hand_to_stream(thing, s, work);
  if (planted_ == planted::owner_ends_early) token const early(std::move(owner));
  if (!owner) return outcome::done;
  outcome const result = attempt(capture.is_invalid() || is_stopped_ || is_blocked(s), false, [&] {
    worker_->retire(stream_ref(streams_[s].handle), std::move(owner));
  });
  if (is_stopped_) counts_.meet(situation::retired_to_a_stopped_deleter);
  if (result == outcome::done) return result;
  if (capture.is_active()) {
    entries& held = all_.model.capture_of(capture.id).held;
    if (has(held, thing)) held.pop_back();
  }
  survive(std::move(owner));
  return result;
}

outcome world::do_retire_now() {
  token owner = all_.make(reference::kind::owner);
  return attempt(is_stopped_, false, [&] { worker_->retire(std::move(owner)); });
}

outcome world::do_retire_after(std::size_t s) {
  if (!capture_at(s).is_none() || is_blocked(s) || streams_[s].device != 0) return outcome::skipped;
  retired_with_event owner{all_.make(reference::kind::owner), {}};
  int const thing = owner.owner.thing();
  piece_of_work& work = piece(s, {thing});
  cudaEvent_t made = nullptr;
  bool is_ready = cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess;
  if (is_ready) owner.event = owned_event(made);
  is_ready = is_ready && enqueue(s, work) &&
             cudaEventRecord(owner.event, streams_[s].handle) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  if (!is_ready) return outcome::failed;
  all_.model.pend(thing, work.mark);
  outcome const result = attempt(is_stopped_, false,
                                 [&] { worker_->retire_after(event_ref(made), std::move(owner)); });
  if (result != outcome::done) survive(std::move(owner.owner));
  return result;
}

outcome world::do_retire_graph(std::size_t g) {
  if (!is_usable(g)) return outcome::skipped;
  token owner = all_.make(reference::kind::owner);
  entries& held = all_.model.graphs[g].held;
  held.push_back({.thing = owner.thing()});
  outcome const result = attempt(is_stopped_, false,
                                 [&] { worker_->retire(handle_of(graphs_[g]), std::move(owner)); });
  if (result != outcome::done) held.pop_back();
  return result;
}

outcome world::do_own(std::size_t o) {
  if (owners_[o].share) return outcome::skipped;
  owners_[o].share = std::make_shared<token>(all_.make(reference::kind::owner));
  all_.model.state_of(owners_[o].share->thing()).handles = 1;
  return outcome::done;
}

outcome world::do_disown(std::size_t o) {
  if (!owners_[o].share) return outcome::skipped;
  all_.model.state_of(owners_[o].share->thing()).handles = 0;
  owners_[o].share.reset();
  return outcome::done;
}

// Way 3: the owner is moved in; else it is shared.
outcome world::do_keep(std::size_t s, std::size_t o, unsigned way) {
  bool const is_moved = way == 3;
  if (!is_moved && !owners_[o].share) return outcome::skipped;
  std::unique_ptr<token> moved;
  if (is_moved) moved = std::make_unique<token>(all_.make(reference::kind::owner));
  int const thing = is_moved ? moved->thing() : owners_[o].share->thing();
  capture_state const capture = capture_at(s);
  piece_of_work& work = piece(s, {thing});
  launch_config chosen;
  chosen.deleter = worker_.get();
  hand_to_stream(thing, s, work);
  outcome const result = attempt(capture.is_invalid() || is_stopped_ || is_blocked(s), false, [&] {
    if (is_moved) {
      launch(streams_[s].handle, work_kernel_that_keeps(), chosen, &work, work.rounds,
             std::move(moved));
    } else {
      launch(streams_[s].handle, work_kernel_that_keeps(), chosen, &work, work.rounds, owners_[o]);
    }
  });
  if (result == outcome::done) {
    note_use(s, work);
    return result;
  }
  all_.model.set_mark(work.mark);
  if (capture.is_active()) doubt_last(all_.model.capture_of(capture.id));
  return result;
}

outcome world::do_share(std::size_t x) {
  if (shared_[x] != nullptr) return outcome::skipped;
  token made = all_.make(reference::kind::owner);
  int const thing = made.thing();
  outcome const result = attempt(is_stopped_, false, [&] {
    shared_[x] = make_stream_shared_by<token>(*worker_, std::move(made));
  });
  if (shared_[x] != nullptr) all_.model.state_of(thing).handles = 1;
  return result;
}

outcome world::do_use_shared(std::size_t x, std::size_t s) {
  if (shared_[x] == nullptr) return outcome::skipped;
  // The object is kept for ever then: the stream may have work that uses it.
  if (is_blocked(s) && !is_careless_) return outcome::skipped;
  std::shared_ptr<token> const own = shared_[x];  // another thread may end its share meanwhile
  int const thing = own->thing();
  ++all_.model.state_of(thing).handles;
  capture_state const capture = capture_at(s);
  piece_of_work& work = piece(s, {thing});
  bool const is_used = enqueue(s, work);
  hand_to_stream(thing, s, work);
  outcome const result = attempt(capture.is_invalid() || is_blocked(s), false,
                                 [&] { record_stream(own, streams_[s].handle); });
  if (result != outcome::done && capture.is_active()) doubt_last(all_.model.capture_of(capture.id));
  if (result != outcome::done && is_used) {
    surviving_shares_.push_back(own);  // the work uses it all the same
    return result;
  }
  --all_.model.state_of(thing).handles;
  return result;
}

outcome world::do_unshare(std::size_t x) {
  if (shared_[x] == nullptr) return outcome::skipped;
  int const thing = shared_[x]->thing();
  int const left = --all_.model.state_of(thing).handles;
  if (left == 0 && all_.model.is_pending(thing))
    counts_.meet(situation::shares_gone_while_work_goes_on);
  for (running& each : running_)
    if (&each != mine_ && each.what != nullptr && each.what->kind == op::use_shared &&
        each.what->arguments[0] == x)
      each.is_shared = false;
  shared_[x].reset();
  return outcome::done;
}

}  // namespace escrow::test
