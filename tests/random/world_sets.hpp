// A set of graphs that share execs: graphs added, launched in turn, and the set's end.
#pragma once

#include "world_turns.hpp"

namespace escrow::test {

struct world_sets : world_turns {
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
    all_.model.members[f] = std::exchange(all_.model.graphs[g], {});
    source = {};
    exec_set_stats const now = set_->stats();
    meet(graphs_shared_an_exec, now.execs < now.members);
    meet(set_has_several_execs, now.execs > 1);
    return result;
  }

  outcome do_set_launch(nth f, nth s) {
    member_place& place = members_[f];
    contents const& kept = all_.model.members[f];
    if (is_blocked(s) || is_lost() || !is_covered(kept)) return skipped;
    int const behind = streams_[s].mark;
    auto const switches = set_->stats().switches;
    bool const is_any_in_flight = std::ranges::any_of(
        members_, [this](member_place const& each) { return is_in_flight(each); });
    make_racy_unless_held(kept.needed, kept.held);
    auto const act = [&] { set_->launch(*place.which, streams_[s].handle); };
    outcome const result = attempt_turn(kept, is_any_due_, false, turn_wait_max, act);
    if (result != done) return result;
    for (entry& each : all_.model.members[f].held) each.launched = true;
    meet(set_switched_in_flight, is_any_in_flight && set_->stats().switches != switches);
    if (!all_.model.is_done(behind) || all_.model.is_done(place.behind)) place.behind = behind;
    if (enqueue(s, piece(s, {}))) place.launched = streams_[s].mark;
    return result;
  }

  /// The model has it before the call, in which an allocation may fail.
  void note_end_of_set() {
    for (nth f = 0; f < members_.size(); ++f) {
      meet(set_gone_in_flight, is_in_flight(members_[f]));
      contents& kept = all_.model.members[f];
      append(kept.held, kept.lingering);
      entries hard = kept.held;  // must be alive
      std::erase_if(hard, [&](entry const& each) { return has(kept.lingering, each.thing); });
      all_.model.keep_for_launches(hard, members_[f].behind);
      kept.clear();
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
