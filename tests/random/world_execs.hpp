// Work on streams: kernels; and execs, instantiated, launched, updated, and destroyed in flight.
#pragma once

#include "world_graphs.hpp"

namespace escrow::test {

struct world_execs : world_graphs {
  /// Of an exec, or of a member of the set.
  bool is_in_flight(auto const& place) const {
    return place.launched != 0 && !model_.is_done(place.launched);
  }

  /// An exec, or a member of the set, was launched after the mark `behind`, with work of the
  /// program's behind it if it says so.
  void note_launch(auto& place, nth s, int behind, bool with_work) {
    if (!model_.is_done(behind) || model_.is_done(place.behind)) place.behind = behind;
    if (with_work && enqueue(s, piece(s, {}))) place.launched = streams_[s].mark;
  }

  // Ways 0 and 1: graph_exec of the `graph`, or else of its handle; 2: of the handle; 3: plain.
  outcome do_instantiate(nth e, nth g, nth way) {
    exec_place& place = execs_[e];
    graph_place& source = graphs_[g];
    bool const has_one = std::ranges::any_of(execs_, [&](exec_place const& each) {
      return each.is_there() && each.made_of == source.serial;
    });
    outcome const result = attempt(may_be_refused(source), source.is_single && has_one, [&] {
      if (way == 3) {
        cudaGraph_t const native = handle_of(source);
        relaxed_capture_scope const relaxed;
        graph_lifetime_lock const turn;
        escrow::check(cudaGraphInstantiate(&place.plain, native, 0), "cudaGraphInstantiate");
      } else if (way == 2 || !source.own) {
        place.own.emplace(handle_of(source));
      } else {
        instantiate_options chosen;
        if (source.has_memory && way == 1) chosen.flags = cudaGraphInstantiateFlagAutoFreeOnLaunch;
        place.own.emplace(*source.own, chosen);
      }
    });
    if (result != done) {
      meet(concurrent_branches_refused, result == refused);
      place = {};
      return result;
    }
    place.made_of = source.serial;
    source.was_instantiated = true;
    place.shape = source.shape;
    place.nodes_then = node_ids_;
    place.of_hoisted = source.is_hoisted;
    place.is_conditional = source.is_single && !source.has_memory;
    place.has_memory = source.has_memory;
    place.has_events = source.has_events;
    bool const is_ours = source.is_built && !source.is_exposed && !source.is_parent && place.own;
    if (is_ours && !place.own->is_bare()) fail("the exec of a graph of Escrow's is not bare");
    model_.execs[e] = model_.graphs[g];
    if (!place.own) model_.execs[e].grows_with.push_back(source.serial);
    if (way == 2 || !source.own) model_.execs[e].grows_with_bodies_of.push_back(source.serial);
    if (planted_ == planted::model_forgets_execs) model_.execs[e].held.clear();
    return result;
  }

  /// Whether everything that its kernels use is kept by the exec, or by what was hoisted. `alone`:
  /// by that only.
  bool is_covered(contents const& exec, bool alone = false) const {
    return std::ranges::all_of(exec.needed, [&](entry const& needed) {
      auto const keeps = [&](contents const& kept) { return has_same(kept.held, needed); };
      return (!alone && keeps(exec)) || std::ranges::any_of(model_.hoisted, keeps);
    });
  }

  /// A launcher's launch is recorded, or is not: then others may be refused.
  void note_due(exec_place& place, bool is_due) {
    place.is_due = is_due;
    is_any_due_ = std::ranges::any_of(execs_, &exec_place::is_due);
  }
  bool is_another_due(exec_place const& place) const {
    return std::ranges::any_of(
        execs_, [&](exec_place const& each) { return &each != &place && each.is_due; });
  }
  /// Whether the calling thread is not that of the launcher.
  bool is_elsewhere(exec_place const& place) {
    bool const is_so = place.bound && place.thread != mine_->what->thread;
    meet(launcher_called_on_another_thread, is_so);
    return is_so;
  }

  /// Whether no launch of the one may begin between enter() and leave() of the other.
  bool excludes(contents const& one, contents const& other) const {
    auto const is_ordered = [](entry const& each) { return each.claimed && each.known; };
    return std::ranges::any_of(one.held, [&](entry const& each) {
      return is_ordered(each) && std::ranges::any_of(other.held, [&](entry const& its) {
               bool const is_same = its.thing == each.thing && its.generation == each.generation;
               return is_ordered(its) && (is_same || run_->shares);
             });
    });
  }

  /// What launches of the exec are ordered by: plain calls know nothing of it, and an exec of a
  /// handle not what is on bodies.
  static contents ordered_by(exec_place const& place, contents const& kept) {
    contents known = place.plain == nullptr ? kept : contents{};
    if (!kept.grows_with_bodies_of.empty())
      std::erase_if(known.held, [](entry const& each) { return each.on_body; });
    return known;
  }

  /// A call that begins a launch of what has `kept`. What is between enter() and leave() has to
  /// keep it from that: at once if it is the thread's own, else after the wait.
  outcome attempt_turn(contents const& kept, bool may_refuse, bool may_fail,
                       std::chrono::nanoseconds wait_max, std::function<void()> const& action,
                       bool const& may_refuse_by_then = false) {
    auto const begun = process_.look_at_clock();
    outcome const result = attempt(may_refuse, may_fail, action, may_refuse_by_then);
    if (mine_->has_met) return result;  // others may have entered and left meanwhile
    bool is_any_own = false;
    bool is_any_other = false;
    for (nth h = 0; h < turns_.size(); ++h) {
      if (!turns_[h]) continue;
      bool const is_own = turns_[h]->thread == mine_->what->thread;
      (is_own ? is_any_own : is_any_other) = true;
      if (result == done && excludes(kept, model_.hoisted[h]))
        fail("a launch began between enter() and leave() of what has the same slots");
    }
    if (result != exhausted) return result;
    bool const says_own = busy_.find(": this thread is") != std::string::npos;
    if (says_own ? !is_any_own : !is_any_other)
      fail("a launch was refused for a thread that is not between enter() and leave()");
    auto const waited = process_.look_at_clock() - begun;
    if (says_own ? waited > std::chrono::seconds(1) && !is_any_other : waited < wait_max)
      fail("a launch did not wait for leave() as long as it has to");
    meet(says_own ? refused_by_its_own_turn : refused_by_a_turn_of_another_thread);
    return result;
  }
  static constexpr std::chrono::nanoseconds turn_wait_max = std::chrono::seconds(10);

  // Ways 1 and 3: with work of its own behind it.
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
    if (planted_ != planted::model_forgets_execs && !is_covered(kept)) return skipped;
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
    auto const act = [&] {
      if (place.own) return place.own->launch(streams_[s].handle);
      if (place.bound) return place.bound->launch();
      escrow::check(cudaGraphLaunch(place.plain, streams_[s].handle), "cudaGraphLaunch");
    };
    outcome const result =
        attempt_turn(ordered, may_refuse, place.has_memory, turn_wait_max, act, may_refuse_by_then);
    meet(launch_refused_behind_a_launcher, result == refused && place.own);
    meet(launcher_refused_in_a_turn, result == exhausted && place.bound);
    meet(launched_after_a_flush, result == done && place.own && was_flushed_);
    if (result == done || result == failed) place.is_end_unknown = result == failed;
    if (result != done) return result;
    for (entry& each : model_.execs[e].held) each.launched = true;
    for (claimer_place& each : claimers_) each.has_launch = each.has_launch || each.stream == s;
    meet(exec_with_memory_launched, place.has_memory);
    meet(exec_with_events_launched, place.has_events);
    meet(conditional_exec_launched, place.is_conditional);
    meet(plain_exec_launched, place.plain != nullptr);
    meet(hoisted_graph_launched_plainly, place.plain != nullptr && place.of_hoisted);
    note_launch(place, s, behind, way % 2 == 1);
    return result;
  }

  // Ways 0 and 1: from the `graph`; 2 and 3: from its handle.
  outcome do_update(nth e, nth g, nth way) {
    exec_place& place = execs_[e];
    graph_place& source = graphs_[g];
    if (place.bound) return skipped;
    // What it had may go from the beginning of the call, but for launches in flight.
    contents& kept = model_.execs[e];
    contents const before = kept;
    model_.keep_for_launches(before.held, place.behind);
    append(kept.lingering, std::exchange(kept.held, {}));
    // Only a graph of the same form will do.
    outcome const result = attempt(true, true, [&] {
      if (!place.own) {
        cudaGraph_t const native = handle_of(source);
        relaxed_capture_scope const relaxed;
        cudaGraphExecUpdateResultInfo info{};
        graph_lifetime_lock const turn;
        return escrow::check(cudaGraphExecUpdate(place.plain, native, &info),
                             "cudaGraphExecUpdate");
      }
      if (way < 2 && source.own) return place.own->update(*source.own);
      place.own->update(handle_of(source));
    });
    if (result != done) {
      kept = before;
      return result;
    }
    meet(exec_updated_in_flight, is_in_flight(place));
    bool const is_same = source.serial == place.made_of;
    meet(exec_updated_from_a_reshaped_graph, is_same && source.shape != place.shape);
    kept = model_.graphs[g];
    if (!place.own) kept.grows_with.push_back(source.serial);
    if (way >= 2 || !source.own) kept.grows_with_bodies_of.push_back(source.serial);
    if (place.is_end_unknown) append(kept.lingering, before.held);
    place.was_updated = true;
    if (is_same) place.nodes_then = node_ids_;
    place.of_hoisted = source.is_hoisted;
    place.has_memory = place.has_memory || source.has_memory;
    place.has_events = place.has_events || source.has_events;
    return result;
  }

  void drop_exec(nth e) {
    exec_place& place = execs_[e];
    meet(exec_gone_in_flight, is_in_flight(place));
    meet(launcher_gone_in_flight, is_in_flight(place) && place.bound);
    meet(conditional_exec_gone_in_flight, is_in_flight(place) && place.is_conditional);
    model_.end_exec(model_.execs[e], place.behind);
    if (place.plain != nullptr) {
      relaxed_capture_scope const relaxed;
      graph_lifetime_lock const turn;
      static_cast<void>(cudaGraphExecDestroy(place.plain));
    }
    place = {};
    note_due(place, false);
  }

  outcome do_destroy_exec(nth e) {
    exec_place const& place = execs_[e];
    // It would leak what it holds.
    bool const is_leak = is_elsewhere(place) || !capture_at(place.stream).is_none();
    if (place.is_due && is_leak) return skipped;
    return attempt([&] { drop_exec(e); });
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
};

}  // namespace escrow::test
