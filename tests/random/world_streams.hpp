// SPDX-License-Identifier: Apache-2.0
// Streams and captures: begun, forked, joined, ended, abandoned.
#pragma once

#include "build_graph.hpp"
#include "world_state.hpp"

namespace escrow::test {

struct world_streams : world_state {
  /// A kernel for the stream that uses these things.
  piece_of_work& piece(nth s, std::vector<int> const& uses) {
    piece_of_work& work = all_.add_work();
    capture_state const capture = capture_at(s);
    for (int const thing : uses) {
      bool const is_slot = state_of(thing).is == thing_state::kind::slot;
      int const generation = is_slot && capture.is_active() ? state_of(thing).generation : -1;
      work.uses.push_back({thing, generation});
    }
    if (capture.is_none()) work.mark = model_.add_mark(streams_[s].device);
    return work;
  }

  /// The work is on the stream, or in its capture.
  void note_use(nth s, piece_of_work const& work) {
    if (work.mark != 0) {
      streams_[s].mark = work.mark;
      return;
    }
    capture_state const capture = capture_at(s);
    if (!capture.is_active()) return;
    for (piece_of_work::use const& each : work.uses)
      model_.capture_of(capture.id)
          .needed.push_back({.thing = each.thing, .generation = state_of(each.thing).generation});
  }

  bool enqueue(nth s, piece_of_work& work, bool is_programmatic = false) {
    piece_of_work* argument = &work;
    std::array<void*, 3> arguments{&argument, &work.rounds, nullptr};
    cudaLaunchAttribute programmatic = programmatic_attribute();
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = dim3(1);
    config.stream = streams_[s].handle;
    config.attrs = &programmatic;
    config.numAttrs = is_programmatic ? 1 : 0;
    void const* const kernel = reinterpret_cast<void const*>(work_kernel());
    if (is_blocked(s) || cudaLaunchKernelExC(&config, kernel, arguments.data()) != cudaSuccess) {
      forget_error();
      model_.set_mark(work.mark);
      return false;
    }
    note_use(s, work);
    return true;
  }

  /// Work on one stream comes after the work on another so far.
  void order(nth before, nth after) {
    if (before == after || is_blocked(before) || is_blocked(after)) return;
    static_cast<void>(cudaSetDevice(streams_[before].device));
    cudaEvent_t made = nullptr;
    if (cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess) {
      owned_event const event(made);
      if (cudaEventRecord(event, streams_[before].handle) == cudaSuccess) {
        static_cast<void>(cudaSetDevice(streams_[after].device));
        static_cast<void>(cudaStreamWaitEvent(streams_[after].handle, event, 0));
      }
    }
    static_cast<void>(cudaSetDevice(0));
    forget_error();
  }

  /// The same; false if it cannot be.
  bool try_order(nth before, nth after) {
    if (!capture_at(before).is_none() || !capture_at(after).is_none() || is_blocked(before) ||
        is_blocked(after) || is_lost())
      return false;
    order(before, after);
    return true;
  }

  outcome do_work(nth s) { return enqueue(s, piece(s, {})) ? done : failed; }

  void create_stream(nth s) {
    stream_place& place = streams_[s];
    place.mark = 0;
    // The thread's own is another on each thread: programs of several have a common one instead.
    bool const is_single = std::ranges::all_of(
        run_->operations, [](operation const& each) { return each.thread == 0; });
    if (s == legacy_stream) place.handle = cudaStreamLegacy;
    if (s == 5 && is_single) place.handle = cudaStreamPerThread;
    if (s == legacy_stream || (s == 5 && is_single)) return;
    must(cudaSetDevice(place.device));
    // One of them is blocking, as those of cudaStreamCreate() are.
    unsigned const flags = s == 2 ? cudaStreamDefault : cudaStreamNonBlocking;
    static_cast<void>(is_success(cudaStreamCreateWithFlags(&place.handle, flags)));
    must(cudaSetDevice(0));
  }

  outcome do_begin(nth s, nth mode) {
    if (s == legacy_stream || is_lost()) return skipped;
    constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                               cudaStreamCaptureModeRelaxed};
    if (!is_success(cudaStreamBeginCapture(streams_[s].handle, modes[mode]))) return failed;
    captures_.push_back({capture_at(s).id, s, thread_, mode == 2, std::nullopt});
    return done;
  }

  /// A capture into a graph that is there, after these nodes of it.
  bool begin_capture_into(nth s, cudaGraph_t graph, nth g,
                          std::vector<cudaGraphNode_t> const& after) {
    if (!is_success(cudaStreamBeginCaptureToGraph(streams_[s].handle, graph, after.data(), nullptr,
                                                  after.size(), cudaStreamCaptureModeRelaxed)))
      return false;
    graphs_[g].is_captured_into = true;
    ++graphs_[g].shape;
    captures_.push_back({capture_at(s).id, s, thread_, true, g});
    return true;
  }

  outcome do_begin_into(nth s, nth g) {
    graph_place const& place = graphs_[g];
    if (s == legacy_stream || place.plain == nullptr || is_lost()) return skipped;
    // A lease that is still out is used in the order of the graph, which the caller has to see to.
    bool const is_leased = std::ranges::any_of(
        leases_, [](lease_place const& each) { return each.held && each.capture != 0; });
    std::vector<cudaGraphNode_t> after;
    if (is_leased) {
      std::size_t count = 0;
      must(cudaGraphGetNodes(place.plain, nullptr, &count));
      after.resize(count);
      must(cudaGraphGetNodes(place.plain, after.data(), &count));
    }
    if (!begin_capture_into(s, place.plain, g, after)) return failed;
    meet(graph_captured_into_again);
    return done;
  }

  outcome do_fork(nth from, nth to) {
    if (to == legacy_stream) return skipped;
    order(from, to);
    return done;
  }

  outcome do_join(nth at, nth ended) {
    if (at == ended || capture_at(ended).id != capture_at(at).id) return skipped;
    order(ended, at);
    return done;
  }

  /// Whether what comes next on the stream runs at the same time as a kernel of its capture.
  bool is_beside_a_kernel(nth s) const {
    return capture_at(s).is_active() &&
           !std::ranges::all_of(frontier_in(streams_[s].handle).edges,
                                [](auto const& each) { return is_same(each, full_edge); });
  }

  // Ways 0 to 2: the stream joins a capture behind the beginning, or the trigger, of the last
  // kernels of another stream, as behind an event of their launch; 3: it has a programmatic launch.
  outcome do_wait_early(nth at, nth of, nth way) {
    capture_state const captured = capture_at(of);
    bool const is_fork = capture_at(at).is_none();
    if (at == of || at == legacy_stream) return skipped;
    if (is_fork ? way == 3 : capture_at(at).id != captured.id) return skipped;
    if (way == 3) return enqueue(at, piece(at, {}), true) ? done : failed;
    placed_edges before = frontier_in(streams_[of].handle);
    bool const are_kernels = std::ranges::all_of(before.nodes, [](cudaGraphNode_t each) {
      cudaGraphNodeType type{};
      must(cudaGraphNodeGetType(each, &type));
      return type == cudaGraphNodeTypeKernel;
    });
    if (before.nodes.empty() || !are_kernels) return skipped;
    if (is_fork) order(of, at);
    if (capture_at(at).id != captured.id) return failed;  // there is no event left
    std::vector<cudaGraphEdgeData> const edges(before.nodes.size(), early_edges.at(way));
    must(cudaStreamUpdateCaptureDependencies(
        streams_[at].handle, before.nodes.data(), edges.data(), before.nodes.size(),
        is_fork ? cudaStreamSetCaptureDependencies : cudaStreamAddCaptureDependencies));
    return done;
  }

  /// Plain copies of the graph that was captured into may keep what it got.
  void grow_with(open_capture const& ended, contents const& captured) {
    std::uint64_t const serial = graphs_[*ended.into].serial;
    contents const got = captured;  // it may be one that grows
    model_.grow(serial, got.held);
    model_.grow(serial, got.lingering);
  }

  /// The graph is the program's again, unless CUDA has destroyed it.
  void forget_capture_into(nth g, bool is_there) {
    graphs_[g].is_captured_into = false;
    if (is_there) return;
    graphs_[g].plain = nullptr;
    model_.graphs[g].clear();
  }

  /// The graph of a capture, at place g if it is a new one; `own`: as a `graph`.
  void take_captured(open_capture const& ended, cudaGraph_t native, nth g, bool own) {
    contents captured = model_.capture_of(ended.id);
    model_.forget_capture(ended.id);
    captured.grows_with.clear();
    if (ended.into) {
      grow_with(ended, captured);
      model_.graphs[*ended.into].append(captured);
      graphs_[*ended.into].is_captured_into = false;
      return;
    }
    model_.graphs[g] = captured;
    graph_place& place = graphs_[g] = {};
    place.serial = ++serials_;
    place.is_exposed = true;
    if (own) {
      place.own.emplace(native, ended.id);
    } else {
      place.plain = native;
    }
  }

  outcome do_end(nth s, nth g, nth way) {
    auto const found = std::ranges::find(captures_, s, &open_capture::origin);
    if (found == captures_.end()) return skipped;
    open_capture const ended = *found;
    if (!ended.into && graphs_[g].is_there()) return skipped;
    if (way % 2 == 0) {
      for (std::size_t i = 0; i < streams_.size(); ++i)
        if (capture_at(i).is_active() && capture_at(i).id == ended.id) order(i, s);
    }
    meet(capture_ended_by_another_thread, ended.thread != thread_ && !ended.is_relaxed);
    cudaGraph_t native = nullptr;
    if (way == 0 && !ended.into) {
      try {
        native = end_capture(streams_[s].handle).detach();
      } catch (cuda_error const&) {
      }
    } else {
      graph_lifetime_lock const turn;
      static_cast<void>(cudaStreamEndCapture(streams_[s].handle, &native));
    }
    forgive_captures();
    if (native == nullptr) {
      sweep_captures();
      return failed;
    }
    captures_.erase(found);
    // The graph has the beginning of a use without its end, as long as it is not reopened.
    for (lease_place const& each : leases_)
      if (each.held && each.capture == ended.id) state_of(each.slot).racy = true;
    take_captured(ended, native, g, way < 2);
    return done;
  }

  outcome do_invalidate(nth s) {
    static_cast<void>(cudaStreamQuery(streams_[s].handle));
    forgive_captures();
    return done;
  }

  outcome do_destroy_stream(nth s) {
    if (!is_own_stream(s) || must_outlive_others(s) || sweeps_ != 0) return skipped;
    for (lease_place const& each : leases_) {
      bool const is_other =
          std::ranges::count(each.others, s, &lease_place::other_stream::stream) != 0;
      if (each.held && ((each.stream == s && !each.is_over) || is_other)) return skipped;
    }
    for (exec_place const& each : execs_)
      if (each.bound && each.stream == s) return skipped;
    for (auto const& each : turns_)
      if (each && each->stream == s) return skipped;
    if (is_awaited(s) && !is_careless_) return skipped;
    if ((!capture_at(s).is_none() && !is_origin(s)) || is_lost()) return skipped;
    relaxed_capture_scope const relaxed;
    {
      graph_lifetime_lock const turn;
      // First nobody has the handle: other threads may go on meanwhile.
      static_cast<void>(cudaStreamDestroy(std::exchange(streams_[s].handle, nullptr)));
    }
    any_stream_gone_ = true;
    for (int thing = 0; thing < model_.size(); ++thing) {
      for (unsigned* const each : {&state_of(thing).awaited, &state_of(thing).deferred_on})
        if ((*each >> s & 1U) != 0) *each |= thing_state::never;
    }
    sweep_captures();
    create_stream(s);
    forgive_captures();
    return done;
  }

  /// Forgets the captures that are over without a graph.
  void sweep_captures() {
    if (is_lost()) model_.doubt_captures();
    for (std::size_t i = 0; i < captures_.size();) {
      open_capture const each = captures_[i];
      bool const is_destroyed = streams_[each.origin].handle == nullptr;
      ++sweeps_;
      capture_state const now = is_destroyed ? capture_state{} : capture_at(each.origin);
      --sweeps_;
      // In that call another thread may have gone on.
      if (i >= captures_.size() || captures_[i].id != each.id) {
        i = 0;
        continue;
      }
      contents& kept = model_.capture_of(each.id);
      if (!now.is_active()) append(kept.lingering, std::exchange(kept.held, {}));
      if (!now.is_none()) {
        ++i;
        continue;
      }
      meet(capture_abandoned_with_things, !kept.lingering.empty());
      if (each.into) grow_with(each, kept);
      model_.forget_capture(each.id);
      captures_.erase(captures_.begin() + static_cast<std::ptrdiff_t>(i));
      if (each.into) forget_capture_into(*each.into, false);  // though it was the caller's
    }
  }
};

}  // namespace escrow::test
