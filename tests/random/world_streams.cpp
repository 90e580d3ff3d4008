// Streams and captures: begun, forked, joined, ended, abandoned.
#include <algorithm>

#include "early_edges.hpp"
#include "world.hpp"

namespace escrow::test {

world::capture_state world::capture_at(nth s) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(streams_[s].handle, &status, &id, nullptr, nullptr, nullptr,
                               nullptr) != cudaSuccess) {
    forget_error();
    return {};
  }
  if (status == cudaStreamCaptureStatusActive) return {capture_state::kind::active, id};
  if (status == cudaStreamCaptureStatusNone) return {};
  return {capture_state::kind::invalid, ~std::uint64_t{0}};
}

bool world::is_any_capturing() const {
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (!capture_at(i).is_none()) return true;
  return false;
}

/// Whether a capture began on the stream.
bool world::is_origin(nth s) const {
  return std::ranges::find(captures_, s, &open_capture::origin) != captures_.end();
}

/// Whether work on the legacy stream would harm a capture.
bool world::is_blocked(nth s) const {
  if (streams_[s].handle != cudaStreamLegacy) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t const answer = cudaStreamIsCapturing(cudaStreamLegacy, &status);
  forget_error();
  return answer == cudaErrorStreamCaptureImplicit;
}

/// Whether the program has created it.
bool world::is_own_stream(nth s) const {
  cudaStream_t const handle = streams_[s].handle;
  return handle != cudaStreamLegacy && handle != cudaStreamPerThread;
}

void world::create_stream(nth s) {
  stream_place& place = streams_[s];
  place.mark = 0;
  // The thread's own is another on each thread: programs of several have a common one instead.
  bool const is_single =
      std::ranges::all_of(run_.operations, [](operation const& each) { return each.thread == 0; });
  if (s == legacy_stream) place.handle = cudaStreamLegacy;
  if (s == 5 && is_single) place.handle = cudaStreamPerThread;
  if (s == legacy_stream || (s == 5 && is_single)) return;
  must(cudaSetDevice(place.device));
  // One of them is blocking, as those of cudaStreamCreate() are.
  unsigned const flags = s == 2 ? cudaStreamDefault : cudaStreamNonBlocking;
  if (cudaStreamCreateWithFlags(&place.handle, flags) != cudaSuccess) forget_error();
  must(cudaSetDevice(0));
}

outcome world::do_begin(nth s, nth mode) {
  if (s == legacy_stream || !capture_at(s).is_none() || is_lost()) return skipped;
  constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                             cudaStreamCaptureModeRelaxed};
  if (cudaStreamBeginCapture(streams_[s].handle, modes[mode]) != cudaSuccess) {
    forget_error();
    return failed;
  }
  captures_.push_back({capture_at(s).id, s, thread_, mode == 2, std::nullopt});
  return done;
}

/// A capture into a graph that is there, after these nodes of it.
bool world::begin_capture_into(nth s, cudaGraph_t graph, nth g,
                               std::vector<cudaGraphNode_t> const& after) {
  if (cudaStreamBeginCaptureToGraph(streams_[s].handle, graph, after.data(), nullptr, after.size(),
                                    cudaStreamCaptureModeRelaxed) != cudaSuccess) {
    forget_error();
    return false;
  }
  graphs_[g].is_captured_into = true;
  ++graphs_[g].shape;
  captures_.push_back({capture_at(s).id, s, thread_, true, g});
  return true;
}

outcome world::do_begin_into(nth s, nth g) {
  graph_place const& place = graphs_[g];
  if (s == legacy_stream || !capture_at(s).is_none() || place.plain == nullptr || !is_usable(g) ||
      is_lost())
    return skipped;
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

outcome world::do_fork(nth from, nth to) {
  if (to == legacy_stream || !capture_at(from).is_active() || !capture_at(to).is_none())
    return skipped;
  order(from, to);
  return done;
}

outcome world::do_join(nth at, nth ended) {
  capture_state const one = capture_at(at);
  if (at == ended || !one.is_active() || capture_at(ended).id != one.id) return skipped;
  order(ended, at);
  return done;
}

/// Whether what comes next on the stream runs at the same time as a kernel of its capture.
bool world::is_beside_a_kernel(nth s) const {
  return capture_at(s).is_active() &&
         !std::ranges::all_of(frontier_in(streams_[s].handle).edges,
                              [](auto const& each) { return is_same(each, full_edge); });
}

// Ways 0 to 2: the stream waits for the beginning, or the trigger, of the last kernels of another,
// as behind an event that they were launched with, and joins their capture; 3: it has a
// programmatic launch.
outcome world::do_wait_early(nth at, nth of, nth way) {
  capture_state const captured = capture_at(of);
  bool const is_fork = capture_at(at).is_none();
  if (at == of || at == legacy_stream || !captured.is_active()) return skipped;
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
void world::grow_with(open_capture const& ended, contents const& captured) {
  std::uint64_t const serial = graphs_[*ended.into].serial;
  contents const got = captured;  // it may be one that grows
  all_.model.grow(serial, got.held);
  all_.model.grow(serial, got.lingering);
}

/// The graph is the program's again, unless CUDA has destroyed it.
void world::forget_capture_into(nth g, bool is_there) {
  graphs_[g].is_captured_into = false;
  if (is_there) return;
  graphs_[g].plain = nullptr;
  all_.model.graphs[g].clear();
}

/// The graph of a capture, at place g if it is a new one; `own`: as a `graph`.
void world::take_captured(open_capture const& ended, cudaGraph_t native, nth g, bool own) {
  contents captured = all_.model.capture_of(ended.id);
  all_.model.forget_capture(ended.id);
  captured.grows_with.clear();
  if (ended.into) {
    grow_with(ended, captured);
    all_.model.graphs[*ended.into].append(captured);
    graphs_[*ended.into].is_captured_into = false;
    return;
  }
  all_.model.graphs[g] = captured;
  graph_place& place = graphs_[g] = {};
  place.serial = ++serials_;
  place.is_exposed = true;
  if (own) {
    place.own.emplace(native, ended.id);
  } else {
    place.plain = native;
  }
}

outcome world::do_end(nth s, nth g, nth way) {
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
  {
    graph_lifetime_lock const turn;
    static_cast<void>(cudaStreamEndCapture(streams_[s].handle, &native));
  }
  forget_error();
  invalidated_ = sim::captures_invalidated();  // an end may be wrong, and is the program's
  if (native == nullptr) {
    sweep_captures();
    return failed;
  }
  captures_.erase(found);
  // The graph has the beginning of a use whose end it does not have, or not before it is reopened.
  for (lease_place const& each : leases_)
    if (each.held && each.capture == ended.id) all_.slot_of(each.slot).racy = true;
  take_captured(ended, native, g, way < 2);
  return done;
}

outcome world::do_invalidate(nth s) {
  if (!capture_at(s).is_active()) return skipped;
  static_cast<void>(cudaStreamQuery(streams_[s].handle));
  forget_error();
  invalidated_ = sim::captures_invalidated();
  return done;
}

outcome world::do_destroy_stream(nth s) {
  if (!is_own_stream(s)) return skipped;
  for (lease_place const& each : leases_) {
    bool const is_other =
        std::ranges::count(each.others, s, &lease_place::other_stream::stream) != 0;
    if (each.held && (each.stream == s || is_other)) return skipped;
  }
  if ((!capture_at(s).is_none() && !is_origin(s)) || is_lost()) return skipped;
  relaxed_capture_scope const relaxed;
  {
    graph_lifetime_lock const turn;
    static_cast<void>(cudaStreamDestroy(streams_[s].handle));
  }
  streams_[s].handle = nullptr;
  sweep_captures();
  create_stream(s);
  forget_error();
  invalidated_ = sim::captures_invalidated();
  return done;
}

/// Forgets the captures that are over without a graph.
void world::sweep_captures() {
  if (is_lost()) all_.model.doubt_captures();
  for (std::size_t i = 0; i < captures_.size();) {
    open_capture const each = captures_[i];
    bool const is_destroyed = streams_[each.origin].handle == nullptr;
    capture_state const now = is_destroyed ? capture_state{} : capture_at(each.origin);
    contents& kept = all_.model.capture_of(each.id);
    if (!now.is_active()) append(kept.lingering, std::exchange(kept.held, {}));
    if (!now.is_none()) {
      ++i;
      continue;
    }
    meet(capture_abandoned_with_things, !kept.lingering.empty());
    if (each.into) grow_with(each, kept);
    all_.model.forget_capture(each.id);
    captures_.erase(captures_.begin() + static_cast<std::ptrdiff_t>(i));
    if (each.into) forget_capture_into(*each.into, false);  // though it was the caller's
  }
}

}  // namespace escrow::test
