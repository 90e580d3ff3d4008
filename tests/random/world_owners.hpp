// SPDX-License-Identifier: Apache-2.0
// Owners: retired, kept by launches, shared with streams; events and libraries that have shares.
#pragma once

#include "world_claimers.hpp"

namespace escrow::test {

struct world_owners : world_claimers {
  static void const* code() {
    static sim::library_image const* const image = [] {
      auto* const made = new sim::library_image;
      made->add("work", &run_work, {sizeof(piece_of_work*), sizeof(int)});
      return made;
    }();
    return image->code();
  }

  /// A call failed after it was given something: the graph may have it or not.
  void doubt_last(contents& captured) {
    captured.lingering.push_back(captured.held.back());
    captured.held.pop_back();
  }

  void survive(token&& kept) {
    if (!kept) return;
    state_of(kept.thing()).handles = 1;
    survivors_.push_back(std::make_shared<token>(std::move(kept)));
  }

  /// The thing stays for the work so far; in a capture, for the graph.
  void hand_to_stream(int thing, nth s, piece_of_work const& work) {
    capture_state const capture = capture_at(s);
    if (!capture.is_active()) return model_.pend(thing, work.mark);
    model_.capture_of(capture.id).held.push_back({.thing = thing});
    meet(owner_retired_into_a_fork, !is_origin(s));
  }

  /// It was not handed over.
  void take_from_capture(int thing, capture_state const& capture) {
    if (!capture.is_active()) return;
    entries& held = model_.capture_of(capture.id).held;
    if (has(held, thing)) held.pop_back();
  }

  outcome do_retire(nth s) {
    token owner = make_owner();
    int const thing = owner.thing();
    capture_state const capture = capture_at(s);
    piece_of_work& work = piece(s, {thing});
    static_cast<void>(enqueue(s, work));
    hand_to_stream(thing, s, work);
    if (planted_ == planted::owner_ends_early) token const early(std::move(owner));
    if (!owner) return done;
    outcome const result = attempt(is_stopped_ || is_unusable(s), false, [&] {
      worker_->retire(stream_ref(streams_[s].handle), std::move(owner));
    });
    meet(retired_to_a_stopped_deleter, is_stopped_);
    if (result == done) return result;
    take_from_capture(thing, capture);
    survive(std::move(owner));
    return result;
  }

  outcome do_retire_now() {
    token owner = make_owner();
    return attempt(is_stopped_, false, [&] { worker_->retire(std::move(owner)); });
  }

  outcome do_retire_after(nth s) {
    if (is_blocked(s) || streams_[s].device != 0) return skipped;
    retired_with_event owner{make_owner(), {}};
    int const thing = owner.owner.thing();
    piece_of_work& work = piece(s, {thing});
    cudaEvent_t made = nullptr;
    bool is_ready = cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess;
    if (is_ready) owner.event = owned_event(made);
    is_ready = is_ready && enqueue(s, work) &&
               cudaEventRecord(owner.event, streams_[s].handle) == cudaSuccess;
    forget_error();
    if (!is_ready) return failed;
    model_.pend(thing, work.mark);
    outcome const result = attempt(
        is_stopped_, false, [&] { worker_->retire_after(event_ref(made), std::move(owner)); });
    if (result != done) survive(std::move(owner.owner));
    return result;
  }

  /// Of the graph, or of a body of it, whose handle `handle` gets.
  outcome retire_with(nth g, bool on_body, std::function<cudaGraph_t()> const& handle) {
    token owner = make_owner();
    entries& held = model_.graphs[g].held;
    held.push_back({.thing = owner.thing(), .on_body = on_body});
    outcome const result =
        attempt(is_stopped_, false, [&] { worker_->retire(handle(), std::move(owner)); });
    if (result != done) held.pop_back();
    return result;
  }

  outcome do_own(nth o) {
    owners_[o].share = std::make_shared<token>(make_owner());
    state_of(owners_[o].share->thing()).handles = 1;
    return done;
  }

  outcome do_disown(nth o) {
    state_of(owners_[o].share->thing()).handles = 0;
    owners_[o].share.reset();
    return done;
  }

  /// A launch with an argument that keeps the thing for as long as the work uses it.
  outcome launch_with(int thing, nth s,
                      std::function<void(launch_config const&, piece_of_work&)> const& call) {
    capture_state const capture = capture_at(s);
    piece_of_work& work = piece(s, {thing});
    launch_config chosen;
    chosen.deleter = worker_.get();
    hand_to_stream(thing, s, work);
    outcome const result =
        attempt(is_stopped_ || is_unusable(s), false, [&] { call(chosen, work); });
    if (result == done) {
      note_use(s, work);
      return result;
    }
    model_.set_mark(work.mark);
    if (capture.is_active()) doubt_last(model_.capture_of(capture.id));
    return result;
  }

  // Way 3: the owner is moved in; else it is shared.
  outcome do_keep(nth s, nth o, nth way) {
    cudaStream_t const stream = streams_[s].handle;
    if (way == 3) {
      auto moved = std::make_unique<token>(make_owner());
      return launch_with(moved->thing(), s, [&](launch_config const& chosen, piece_of_work& work) {
        launch(stream, work_kernel_that_keeps(), chosen, &work, work.rounds, std::move(moved));
      });
    }
    if (!owners_[o].share) return skipped;
    return launch_with(owners_[o].share->thing(), s, [&](auto const& chosen, piece_of_work& work) {
      launch(stream, work_kernel_that_keeps(), chosen, &work, work.rounds, owners_[o]);
    });
  }

  outcome do_share(nth x) {
    token made = make_owner();
    int const thing = made.thing();
    outcome const result = attempt(is_stopped_, false, [&] {
      shared_[x] = make_stream_shared_by<token>(*worker_, std::move(made));
    });
    if (shared_[x] != nullptr) state_of(thing).handles = 1;
    return result;
  }

  outcome do_use_shared(nth x, nth s) {
    // The object is leaked then: the stream may have work that uses it.
    if (is_blocked(s) && !is_careless_) return skipped;
    std::shared_ptr<token> const own = shared_[x];  // another thread may drop its share meanwhile
    int const thing = own->thing();
    ++state_of(thing).handles;
    capture_state const capture = capture_at(s);
    piece_of_work& work = piece(s, {thing});
    bool const is_used = enqueue(s, work);
    hand_to_stream(thing, s, work);
    outcome const result =
        attempt(is_unusable(s), false, [&] { record_stream(own, streams_[s].handle); });
    if (result != done && capture.is_active()) doubt_last(model_.capture_of(capture.id));
    if (result != done && is_used) {
      survivors_.push_back(own);  // the work uses it all the same
      return result;
    }
    --state_of(thing).handles;
    return result;
  }

  outcome do_unshare(nth x) {
    int const thing = shared_[x]->thing();
    int const left = --state_of(thing).handles;
    meet(shares_gone_while_work_goes_on, left == 0 && model_.is_pending(thing));
    for (running& each : running_)
      if (&each != mine_ && each.what != nullptr && each.what->kind == op::use_shared &&
          each.what->arguments[0] == x)
        each.is_shared = false;
    shared_[x].reset();
    return done;
  }

  outcome do_make_event(nth v) {
    outcome const result = attempt([&] { events_[v] = std::make_shared<event>(); });
    if (result != done) return result;
    int const thing = all_.make_of(events_[v]->get(), thing_state::kind::owner, kept_event_gone);
    state_of(thing).handles = 1;
    return result;
  }

  int thing_of_event(nth v) const { return all_.thing_of(events_[v]->get()).value(); }

  outcome do_drop_event(nth v) {
    state_of(thing_of_event(v)).handles = 0;
    events_[v].reset();
    return done;
  }

  outcome do_load_library(nth y) {
    library_place& place = libraries_[y];
    cudaLibrary_t handle = nullptr;
    outcome const result = attempt(is_stopped_, false, [&] {
      library const loaded = library::load(code(), *worker_);
      place.found.emplace(loaded.find("work"));
      handle = loaded.get();
    });
    if (result != done) return result;
    place.thing = all_.make_of(handle, thing_state::kind::owner, code_unloaded);
    state_of(place.thing).handles = 1;
    return result;
  }

  /// Code that plain calls load, and its owner, which unloads it.
  outcome do_load_foreign(nth y) {
    library_place& place = libraries_[y];
    cudaLibrary_t handle = nullptr;
    auto const unload = [](cudaLibrary_t loaded) {
      relaxed_capture_scope const relaxed;
      for (int tries = 3; tries != 0 && cudaLibraryUnload(loaded) != cudaSuccess; --tries)
        forget_error();
    };
    outcome const result = attempt([&] {
      relaxed_capture_scope const relaxed;
      cudaLibrary_t made = nullptr;
      escrow::check(cudaLibraryLoadData(&made, code(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                    "cudaLibraryLoadData");
      std::shared_ptr<std::remove_pointer_t<cudaLibrary_t>> owner(made, unload);
      cudaKernel_t found = nullptr;
      escrow::check(cudaLibraryGetKernel(&found, made, "work"), "cudaLibraryGetKernel");
      place.found.emplace(found, std::move(owner));
      handle = made;
    });
    if (result != done) return result;
    place.thing = all_.make_of(handle, thing_state::kind::owner, foreign_code_unloaded);
    place.is_foreign = true;
    state_of(place.thing).handles = 1;
    return result;
  }

  outcome do_unload_library(nth y) {
    library_place& place = libraries_[y];
    meet(foreign_code_dropped_while_it_runs, place.is_foreign && model_.is_pending(place.thing));
    place.is_foreign = false;
    state_of(place.thing).handles = 0;
    meet(code_dropped_while_it_runs, model_.is_pending(place.thing));
    place.found.reset();
    return done;
  }

  outcome do_launch_code(nth s, nth y) {
    library_place const& place = libraries_[y];
    return launch_with(place.thing, s, [&](launch_config const& chosen, piece_of_work& work) {
      launch(streams_[s].handle, *place.found, chosen, &work, work.rounds);
    });
  }
};

}  // namespace escrow::test
