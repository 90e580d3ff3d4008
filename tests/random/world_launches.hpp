// SPDX-License-Identifier: Apache-2.0
// Launches: of execs, by launchers, by the program's own code in launch() of a hoisted, or between
// the two halves of that, and of the set of graphs that share execs.
#pragma once

#include "world_execs.hpp"

namespace escrow::test {

struct world_launches : world_execs {
  /// A call that begins a launch of what has `kept`. What is in its turn has to keep it from that:
  /// if the turn is the thread's own, at once and as a misuse, else after the wait.
  outcome attempt_turn(contents const& kept, bool may_refuse, bool may_fail,
                       std::chrono::nanoseconds wait_max, std::function<void()> const& action,
                       bool const& may_refuse_by_then = false) {
    bool is_in_own = false;  // perhaps of what shares nothing with it
    bool is_any_other = false;
    for (nth h = 0; h < turns_.size(); ++h) {
      if (!turns_[h]) continue;
      bool const is_own = turns_[h]->thread == mine_->what->thread;
      (is_own ? is_in_own : is_any_other) = true;
    }
    auto const begun = process_.look_at_clock();
    outcome const result = attempt(may_refuse || is_in_own, may_fail, action, may_refuse_by_then);
    if (mine_->has_met) return result;  // others may have entered and left meanwhile
    for (nth h = 0; h < turns_.size() && result == done; ++h)
      if (turns_[h] && excludes(kept, model_.hoisted[h]))
        fail("a launch began in a turn of what has the same slots");
    auto const waited = process_.look_at_clock() - begun;
    if (result == refused && is_in_own && !is_any_other && waited > std::chrono::seconds(1))
      fail("a launch waited for its own thread's turn");
    meet(refused_by_its_own_turn, result == refused && is_in_own && !may_refuse);
    if (result != exhausted) return result;
    if (!is_any_other) fail("a launch was refused for a turn of no other thread");
    if (waited < wait_max) fail("a launch did not wait for a turn as long as it has to");
    meet(refused_by_a_turn_of_another_thread);
    return result;
  }
  static constexpr std::chrono::nanoseconds turn_wait_max = std::chrono::seconds(10);

  // Ways 1 and 3: with work of its own behind it; 2 and 3: three runs at once.
  outcome do_launch(nth e, nth s, nth way) {
    return execs_[e].bound ? skipped : launch_on(e, s, way);
  }
  outcome do_launch_bound(nth e, nth way) {
    exec_place& place = execs_[e];
    if (!place.bound || !capture_at(place.stream).is_none()) return skipped;
    bool const was_due = place.is_due;
    note_due(place, true);
    outcome const result = launch_on(e, place.stream, way);
    if (result != done && result != failed) note_due(place, was_due);
    meet(launcher_left_its_launches_due, result == done);
    return result;
  }

  outcome launch_on(nth e, nth s, nth way) {
    exec_place& place = execs_[e];
    contents const& kept = model_.execs[e];
    if (is_blocked(s) || is_lost()) return skipped;
    if (planted_ != planted::model_forgets_execs && !is_covered(kept, known_off(place)))
      return skipped;
    contents const ordered = ordered_by(place, kept);
    make_racy_unless_held(kept.needed, ordered.held);
    if (place.has_memory) {  // who frees it and who uses it are the caller's to order
      if (is_any_capturing()) return skipped;
      for (std::size_t i = 0; i < streams_.size(); ++i) order(i, s);
    }
    int const behind = streams_[s].mark;
    bool const may_refuse =
        place.plain == nullptr && (is_another_due(place) || is_elsewhere(place));
    bool const& may_refuse_by_then = place.bound ? mine_->has_met : is_any_due_;
    // Memory that is there already, or is not there to be freed.
    bool const is_row = way >= 2 && !place.has_memory && place.plain == nullptr;
    std::size_t const times = is_row ? 3 : 1;
    auto const act = [&] {
      if (place.own) return place.own->launch_many(streams_[s].handle, times);
      if (place.bound) return place.bound->launch_many(times);
      escrow::check(cudaGraphLaunch(place.plain, streams_[s].handle), "cudaGraphLaunch");
    };
    outcome const result = count_runs(place, kept, static_cast<int>(times), [&] {
      return attempt_turn(ordered, may_refuse, place.has_memory, turn_wait_max, act,
                          may_refuse_by_then);
    });
    meet(launch_refused_behind_a_launcher, result == refused && place.own);
    meet(launcher_refused_in_a_turn, result == exhausted && place.bound);
    meet(launched_after_a_flush, result == done && place.own && was_flushed_);
    if (result == done || result == failed) place.is_end_unknown = result == failed;
    if (result != done) return result;
    for (entry& each : model_.execs[e].held) each.launched = true;
    for (claimer_place& each : claimers_) each.has_launch = each.has_launch || each.stream == s;
    meet(exec_with_memory_launched, place.has_memory);
    meet(row_launched, place.own && times > 1 && place.own->copies() > 1);
    meet(exec_with_events_launched, place.has_events);
    meet(conditional_exec_launched, place.is_conditional);
    meet(plain_exec_launched, place.plain != nullptr);
    meet(hoisted_graph_launched_plainly, place.plain != nullptr && place.of_hoisted);
    note_launch(place, s, behind, way % 2 == 1);
    return result;
  }

  outcome do_bind(nth e, nth s) {
    exec_place& place = execs_[e];
    if (!place.own || is_blocked(s)) return skipped;
    outcome const result =
        attempt([&] { place.bound.emplace(std::move(*place.own), streams_[s].handle); });
    if (result != done) return result;
    place.own.reset();
    place.stream = s;
    place.thread = mine_->what->thread;
    return result;
  }

  outcome do_flush(nth e) {
    exec_place& place = execs_[e];
    if (!place.bound) return skipped;
    outcome const result = attempt(may_not_record(place), false, [&] { place.bound->flush(); });
    if (result != done) return result;
    was_flushed_ = was_flushed_ || place.is_due;
    for (nth h = 0; h < turns_.size(); ++h)
      meet(launcher_flushed_in_a_turn,
           place.is_due && turns_[h] && excludes(model_.execs[e], model_.hoisted[h]));
    note_due(place, false);
    return result;
  }

  outcome do_unbind(nth e) {
    exec_place& place = execs_[e];
    if (!place.bound) return skipped;
    outcome const result =
        attempt(may_not_record(place), false, [&] { place.own.emplace(place.bound->release()); });
    if (result != done) return result;
    place.bound.reset();
    note_due(place, false);
    return result;
  }

  bool may_not_record(exec_place const& place) {
    return is_elsewhere(place) || (place.is_due && !capture_at(place.stream).is_none());
  }

  outcome do_upload(nth e, nth s) {
    exec_place& place = execs_[e];
    if (!place.own || is_blocked(s) || is_lost()) return skipped;
    return attempt([&] { place.own->upload(streams_[s].handle); });
  }

  // Way 0: after the stream's work, 1: after an event, 2 and 3: now, when the machine is idle; in
  // each case after all launches.
  outcome do_let_go(nth h, nth s, nth way) {
    if (is_any_capturing() || is_lost()) return skipped;
    for (std::size_t i = 0; i < streams_.size(); ++i) order(i, s);
    piece_of_work& work = piece(s, {});
    if (way >= 2) sim::run_until_idle();
    if (way < 2 && !enqueue(s, work)) return failed;
    contents const kept = std::exchange(model_.hoisted[h], {});
    for (entry const& each : kept.held) model_.pend(each.thing, work.mark);
    if (way >= 2) model_.set_mark(work.mark);
    owned_event recorded;  // destroyed at once
    if (way == 1) {
      must(cudaSetDevice(streams_[s].device));
      recorded = make_event();
      must(cudaEventRecord(recorded, streams_[s].handle));
      must(cudaSetDevice(0));
    }
    bool const is_entered = turns_[h].has_value();
    is_any_let_go_ = true;
    outcome const result = attempt(is_entered, false, [&] {
      if (way == 0) return hoisted_[h]->release_after(stream_ref(streams_[s].handle));
      if (way == 1) return hoisted_[h]->release_after(event_ref(recorded));
      hoisted_[h]->release();
    });
    if (result == done) {
      if (is_entered) fail("a hoisted was released in its turn");
      for (entry const& each : kept.held) state_of(each.thing).is_let_go = true;
      hoisted_[h].reset();
    } else {
      model_.hoisted[h] = kept;
    }
    return result;
  }

  outcome do_drop_hoisted(nth h) {
    if (!is_careless_) return skipped;
    // One that is destroyed without a release counts once, whatever it leaks.
    contents const leaked = std::exchange(model_.hoisted[h], {});
    leaked_by_hoisted_ += leaked.held.size() + leaked.lingering.size();
    for (entry const& each : leaked.held) state_of(each.thing).is_leaked = true;
    meet(hoisted_gone_in_its_turn, turns_[h].has_value());
    if (turns_[h]) {
      // Where nothing can be recorded, the others refuse to launch from now on.
      if (!capture_at(turns_[h]->stream).is_none()) is_disturbed_ = true;
      turns_[h].reset();
    }
    hoisted_[h].reset();
    return done;
  }

  /// Whether the stream has launches that a launcher has not recorded, and the hoisted has to come
  /// after them.
  bool is_behind_a_launcher(nth h, nth s) const {
    for (nth e = 0; e < execs_.size(); ++e)
      if (execs_[e].is_due && execs_[e].stream == s && excludes(model_.execs[e], model_.hoisted[h]))
        return true;
    return false;
  }

  // Ways 0 and 1: it may wait for others; 2 and 3: it may not.
  outcome do_enter(nth h, nth s, nth way) {
    if (is_blocked(s) || is_lost()) return skipped;
    bool const is_wrong = turns_[h] || !capture_at(s).is_none();
    std::chrono::nanoseconds const wait_max = way < 2 ? turn_wait_max : std::chrono::nanoseconds(0);
    // A group's statistics would say so only if its order comes first by its address.
    constexpr std::string_view wait = "cudaStreamWaitEvent";
    std::uint64_t const waits_before = sim::calls(wait);
    bool const is_behind = is_behind_a_launcher(h, s);
    auto const act = [&] {
      way == 0 ? hoisted_[h]->enter(streams_[s].handle)
               : hoisted_[h]->enter(streams_[s].handle, wait_max);
    };
    outcome const result =
        attempt_turn(model_.hoisted[h], is_wrong || is_any_due_, false, wait_max, act, is_any_due_);
    meet(enter_refused_behind_a_launcher, result == refused && !is_wrong);
    meet(entered_behind_a_launcher_on_its_stream, result == done && is_behind);
    if (result != done) return result;
    if (is_wrong) fail("enter() succeeded that must be refused");
    turns_[h] = {s, mine_->what->thread};
    meet(entered_behind_another_stream, sim::calls(wait) != waits_before);
    return result;
  }

  // Odd ways: with work of its own behind it.
  outcome do_launch_in_turn(nth h, nth e, nth way) {
    nth const s = turns_[h]->stream;
    if (!may_launch_in_turn(e, s) || !capture_at(s).is_none()) return skipped;
    return launch_in_turn(h, e, s, way,
                          [&](std::function<void()> const& launch) { return attempt(launch); });
  }

  // As enter(), a launch in that turn, and leave(). Ways 0 and 1: it may wait for others.
  outcome do_launch_hoisted(nth h, nth e, nth s, nth way) {
    if (!may_launch_in_turn(e, s)) return skipped;
    bool const is_wrong = turns_[h] || !capture_at(s).is_none();
    std::chrono::nanoseconds const wait_max = way < 2 ? turn_wait_max : std::chrono::nanoseconds(0);
    auto const in_one_call = [&](std::function<void()> const& launch) {
      auto const act = [&] { hoisted_[h]->launch(streams_[s].handle, launch, wait_max); };
      return attempt_turn(model_.hoisted[h], is_wrong || is_any_due_, false, wait_max, act,
                          is_any_due_);
    };
    outcome const result = launch_in_turn(h, e, s, way, in_one_call);
    if (result == done && is_wrong) fail("launch() succeeded that must be refused");
    meet(hoisted_launched_in_one_call, result == done);
    return result;
  }

  bool may_launch_in_turn(nth e, nth s) const {
    exec_place const& place = execs_[e];
    if (place.bound || place.has_memory || is_blocked(s) || is_lost()) return false;
    return is_covered(model_.execs[e], known_off(place), place.own.has_value());
  }

  using call_attempt = std::function<outcome(std::function<void()> const& launch)>;
  outcome launch_in_turn(nth h, nth e, nth s, nth way, call_attempt const& attempt_it) {
    exec_place& place = execs_[e];
    contents& kept = model_.execs[e];
    bool const is_ours = place.own.has_value();  // but it does not know of this launch
    make_racy_unless_held(kept.needed, model_.hoisted[h].held);
    int const behind = streams_[s].mark;
    cudaGraphExec_t const native = is_ours ? place.own->get() : place.plain;
    auto const act = [&] {
      escrow::check(cudaGraphLaunch(native, streams_[s].handle), "cudaGraphLaunch");
    };
    outcome const result = count_runs(place, kept, 1, [&] { return attempt_it(act); });
    if (!is_ours && (result == done || result == failed)) place.is_end_unknown = result == failed;
    if (result != done) return result;
    meet(launched_in_turn);
    meet(exec_of_escrow_launched_in_turn, is_ours);
    meet(conditional_exec_launched, place.is_conditional);
    if (!is_ours) {
      for (entry& each : kept.held) each.launched = true;
    }
    note_launch(place, s, is_ours ? place.behind : behind, way % 2 == 1);
    return result;
  }

  outcome do_leave(nth h) {
    if (!hoisted_[h]) return skipped;
    bool const is_entered = turns_[h].has_value();
    if (is_entered && is_blocked(turns_[h]->stream)) return skipped;
    bool const is_wrong = !is_entered || !capture_at(turns_[h]->stream).is_none();
    auto const leave = [&] { hoisted_[h]->leave(); };
    outcome const result = attempt_unless(is_wrong, "leave()", leave);
    if (result == done) turns_[h].reset();
    if (result != failed || !is_entered) return result;
    // It failed before it ended the turn, or afterwards.
    std::string again;
    try {
      leave();
    } catch (std::exception const& error) {
      again = error.what();
    }
    if (again.empty() || again.find("enter() was not called") != std::string::npos)
      turns_[h].reset();
    return result;
  }

  outcome do_set_add(nth f, nth g) {
    graph_place& source = graphs_[g];
    // Bodies would still lead to the graph; and see exec_with_memory_launched.
    if (!source.own || source.has_memory || has_bodies(source.serial)) return skipped;
    std::optional<exec_set::member> added;
    outcome const result = attempt(may_be_refused(source), may_lack_exec(source), [&] {
      if (!set_) set_.emplace();
      added = set_->add(std::move(*source.own));
    });
    meet(concurrent_branches_refused, result == refused);
    if (result != done) return result;
    members_[f] = {.which = added};
    note_use(g);
    model_.members[f] = std::exchange(model_.graphs[g], {});
    source = {};
    exec_set_stats const now = set_->stats();
    meet(graphs_shared_an_exec, now.execs < now.members);
    meet(set_has_several_execs, now.execs > 1);
    return result;
  }

  outcome do_set_launch(nth f, nth s) {
    member_place& place = members_[f];
    contents const& kept = model_.members[f];
    if (is_blocked(s) || is_lost() || !is_covered(kept)) return skipped;
    int const behind = streams_[s].mark;
    auto const switches = set_->stats().switches;
    bool const is_any_in_flight = std::ranges::any_of(
        members_, [this](member_place const& each) { return is_in_flight(each); });
    make_racy_unless_held(kept.needed, kept.held);
    auto const act = [&] { set_->launch(*place.which, streams_[s].handle); };
    outcome const result = count_runs(kept, {}, true, 1, [&] {
      return attempt_turn(kept, is_any_due_, false, turn_wait_max, act);
    });
    if (result != done) return result;
    for (entry& each : model_.members[f].held) each.launched = true;
    meet(set_switched_in_flight, is_any_in_flight && set_->stats().switches != switches);
    note_launch(place, s, behind, true);
    return result;
  }

  /// The model has it before the call, in which an allocation may fail.
  void note_end_of_set() {
    for (nth f = 0; f < members_.size(); ++f) {
      meet(set_gone_in_flight, is_in_flight(members_[f]));
      model_.end_exec(model_.members[f], members_[f].behind);
      members_[f] = {};
    }
  }

  void drop_set() {
    note_end_of_set();
    set_.reset();
  }

  outcome do_drop_set() {
    if (!set_) return skipped;
    note_end_of_set();
    return attempt([&] { set_.reset(); });
  }
};

}  // namespace escrow::test
