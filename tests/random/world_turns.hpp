// Launches by the program's own code, between enter() and leave() of a hoisted; and the set of
// graphs that share execs.
#pragma once

#include "world_execs.hpp"

namespace escrow::test {

struct world_turns : world_execs {
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
    turns_[h] = {s, s, mine_->what->thread};
    meet(entered_behind_another_stream, sim::calls(wait) != waits_before);
    return result;
  }

  // Odd ways: with work of its own behind it.
  outcome do_launch_in_turn(nth h, nth e, nth s, nth way) {
    exec_place& place = execs_[e];
    contents& kept = model_.execs[e];
    if (place.bound || place.has_memory) return skipped;
    bool const is_ours = place.own.has_value();  // but it does not know of this launch
    if (!is_covered(kept, is_ours) || !try_order(turns_[h]->stream, s)) return skipped;
    turns_[h]->stream = s;
    make_racy_unless_held(kept.needed, model_.hoisted[h].held);
    int const behind = streams_[s].mark;
    cudaGraphExec_t const native = is_ours ? place.own->get() : place.plain;
    outcome const result = attempt(
        [&] { escrow::check(cudaGraphLaunch(native, streams_[s].handle), "cudaGraphLaunch"); });
    if (!is_ours) place.is_end_unknown = result != done;
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

  // On another stream than the last launch, if that comes after it.
  outcome do_leave(nth h, nth s) {
    if (!hoisted_[h]) return skipped;
    bool const is_entered = turns_[h].has_value();
    if (is_entered && !try_order(turns_[h]->stream, s)) s = turns_[h]->stream;
    if (is_blocked(s)) return skipped;
    bool const is_wrong = !is_entered || !capture_at(s).is_none();
    auto const leave = [&] { hoisted_[h]->leave(streams_[s].handle); };
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
    bool const has_one = std::ranges::any_of(execs_, [&](exec_place const& each) {
      return each.is_there() && each.made_of == source.serial;
    });
    std::optional<exec_set::member> added;
    outcome const result = attempt(may_be_refused(source), source.is_single && has_one, [&] {
      if (!set_) set_.emplace();
      added = set_->add(std::move(*source.own));
    });
    meet(concurrent_branches_refused, result == refused);
    if (result != done) return result;
    members_[f] = {.which = added};
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
    outcome const result = attempt_turn(kept, is_any_due_, false, turn_wait_max, act);
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
