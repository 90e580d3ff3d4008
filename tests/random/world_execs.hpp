// SPDX-License-Identifier: Apache-2.0
// Execs: instantiated, updated, and destroyed in flight; whether they have what their kernels use,
// how often each has to run, and what orders their launches.
#pragma once

#include "world_graphs.hpp"

namespace escrow::test {

struct world_execs : world_graphs {
  /// Of an exec, or of a member of the set.
  bool is_in_flight(auto const& place) const {
    return place.launched != 0 && !model_.is_done(place.launched);
  }

  /// A launcher's launch is recorded, or is not: then others may be refused.
  void note_due(exec_place& place, bool is_due) {
    place.is_due = is_due;
    is_any_due_ = std::ranges::any_of(execs_, &exec_place::is_due);
  }
  /// Whether the calling thread is not that of the launcher.
  bool is_elsewhere(exec_place const& place) {
    bool const is_so = place.bound && place.thread != mine_->what->thread;
    meet(launcher_called_on_another_thread, is_so);
    return is_so;
  }

  // Ways 0 and 1: graph_exec of the `graph`, or else of its handle; 2: of the handle; 3: plain. Way
  // 0: with copies for many launches at once.
  outcome do_instantiate(nth e, nth g, nth way) {
    exec_place& place = execs_[e];
    graph_place& source = graphs_[g];
    outcome const result = attempt(may_be_refused(source), may_lack_exec(source), [&] {
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
        if (way == 0) chosen.copies = 2;
        place.own.emplace(*source.own, chosen);
      }
    });
    if (result != done) {
      meet(concurrent_branches_refused, result == refused && run_->shares);
      meet(copies_that_race_refused, result == refused && !run_->shares);
      place = {};
      return result;
    }
    place.made_of = source.serial;
    place.is_of_graph = source.own && way < 2;
    place.has_copies = place.own && place.own->copies() > 1;
    source.was_instantiated = true;
    place.shape = source.shape;
    place.nodes_then = node_ids_;
    place.of_hoisted = source.is_hoisted;
    place.is_conditional = source.is_single && !source.has_memory;
    place.has_memory = source.has_memory;
    place.has_events = source.has_events;
    bool const is_ours = source.is_built && !source.is_exposed && !source.is_parent && place.own;
    if (is_ours && !place.own->is_bare()) fail("the exec of a graph of Escrow's is not bare");
    note_use(g);
    model_.execs[e] = model_.graphs[g];
    if (!place.own) model_.execs[e].grows_with.push_back(source.serial);
    if (way == 2 || !source.own) model_.execs[e].grows_with_bodies_of.push_back(source.serial);
    if (planted_ == planted::model_forgets_execs) model_.execs[e].held.clear();
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
      try {
        if (way < 2 && source.own) return place.own->update(*source.own);
        place.own->update(handle_of(source));
      } catch (cuda_error const& error) {
        meet(update_refused_for_its_clusters,
             std::string_view(error.what()).find("in clusters") != std::string_view::npos);
        throw;
      }
    });
    if (result != done) {
      kept = before;
      return result;
    }
    meet(exec_updated_in_flight, is_in_flight(place));
    meet(exec_with_copies_updated_with_a_disabled_node, place.has_copies && !place.off.empty());
    bool const is_same = source.serial == place.made_of;
    bool const is_reshaped = source.shape != place.shape;
    meet(exec_updated_from_a_reshaped_graph, is_same && is_reshaped);
    note_use(g);
    kept = model_.graphs[g];
    if (!place.own) forget_clusters(before, kept);
    if (!place.own) kept.grows_with.push_back(source.serial);
    if (way >= 2 || !source.own) kept.grows_with_bodies_of.push_back(source.serial);
    if (place.is_end_unknown) append(kept.lingering, before.held);
    place.was_updated = true;
    place.has_other_nodes = !is_same || is_reshaped;
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

  /// An exec, or a member of the set, was launched after the mark `behind`, with work of the
  /// program's behind it if it says so.
  void note_launch(auto& place, nth s, int behind, bool with_work) {
    if (!model_.is_done(behind) || model_.is_done(place.behind)) place.behind = behind;
    if (with_work && enqueue(s, piece(s, {}))) place.launched = streams_[s].mark;
  }

  /// Whether everything that its kernels use is kept by the exec, or by what was hoisted. `alone`:
  /// by that only. What only kernels use that do not run, `off`, need not be kept for them.
  bool is_covered(contents const& exec, std::vector<disabled_node> const& off = {},
                  bool alone = false) const {
    return std::ranges::all_of(exec.needed, [&](entry const& needed) {
      auto const keeps = [&](contents const& kept) { return has_same(kept.held, needed); };
      return is_off(off, needed.node) || (!alone && keeps(exec)) ||
             std::ranges::any_of(model_.hoisted, keeps);
    });
  }

  static bool is_off(std::vector<disabled_node> const& off, int node) {
    return node != 0 && std::ranges::count(off, node, &disabled_node::id) != 0;
  }
  /// The nodes that do not run in the exec; none if that is not known.
  static std::vector<disabled_node> known_off(exec_place const& place) {
    return place.has_other_nodes ? std::vector<disabled_node>() : place.off;
  }

  /// A call that launches what `kept` says `times` times: each kernel that is not `off` has to run
  /// as often. `is_known`: which are.
  outcome count_runs(contents const& kept, std::vector<disabled_node> const& off, bool is_known,
                     int times, std::function<outcome()> const& launch) {
    std::vector<piece_of_work*> all;
    for (node_work const& each : kept.works) {
      if (!is_known) each.work->is_counted = false;
      if (!is_off(off, each.node)) all.push_back(each.work);
    }
    // Before the call: others may step the machine inside it.
    for (piece_of_work* const each : all) each->due += times;
    outcome const result = launch();
    if (result == done) return result;
    for (piece_of_work* const each : all) {
      if (result == failed) each->is_counted = false;  // some of them may run
      each->due -= times;
    }
    return result;
  }
  outcome count_runs(exec_place const& place, contents const& kept, int times,
                     std::function<outcome()> const& launch) {
    outcome const result = count_runs(kept, known_off(place),
                                      place.off.empty() || !place.has_other_nodes, times, launch);
    if (result != done || place.off.empty()) return result;
    meet(launched_with_a_disabled_node);
    meet(launched_with_a_disabled_node_after_an_update, place.was_updated);
    meet(launched_without_a_node_whose_things_are_gone, !is_covered(kept));
    return result;
  }

  bool is_another_due(exec_place const& place) const {
    return std::ranges::any_of(
        execs_, [&](exec_place const& each) { return &each != &place && each.is_due; });
  }
  /// Whether no launch of the one may begin in a turn of the other.
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
};

}  // namespace escrow::test
