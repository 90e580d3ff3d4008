// Streams, the work on them, and captures.
#include <algorithm>
#include <escrow/sim.hpp>

#include "attempt.hpp"
#include "early_edges.hpp"
#include "relaxed_scope.hpp"

namespace escrow::test {

world::capture_state world::capture_at(std::size_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(streams_[stream].handle, &status, &id, nullptr, nullptr, nullptr,
                               nullptr) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
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

/// Whether work on the legacy stream would harm a capture.
bool world::is_blocked(std::size_t stream) const {
  if (streams_[stream].handle != cudaStreamLegacy) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t const answer = cudaStreamIsCapturing(cudaStreamLegacy, &status);
  static_cast<void>(cudaGetLastError());
  return answer == cudaErrorStreamCaptureImplicit;
}

/// Whether the program has made it.
bool world::is_own_stream(std::size_t stream) const {
  cudaStream_t const handle = streams_[stream].handle;
  return handle != cudaStreamLegacy && handle != cudaStreamPerThread;
}

void world::make_stream(std::size_t stream) {
  stream_place& place = streams_[stream];
  place.mark = 0;
  // The thread's own is another on each thread: programs of several have a common one instead.
  bool const is_single =
      std::ranges::all_of(run_.operations, [](operation const& each) { return each.thread == 0; });
  if (stream == 4) place.handle = cudaStreamLegacy;
  if (stream == 5 && is_single) place.handle = cudaStreamPerThread;
  if (stream == 4 || (stream == 5 && is_single)) return;
  must(cudaSetDevice(place.device));
  // One of them is blocking, as those of cudaStreamCreate() are.
  unsigned const flags = stream == 2 ? cudaStreamDefault : cudaStreamNonBlocking;
  if (cudaStreamCreateWithFlags(&place.handle, flags) != cudaSuccess)
    static_cast<void>(cudaGetLastError());
  must(cudaSetDevice(0));
  place.mark = 0;
}

piece_of_work& world::piece(std::size_t stream, std::vector<int> const& uses) {
  piece_of_work& work = all_.add_work();
  capture_state const capture = capture_at(stream);
  for (int const thing : uses) {
    bool const is_slot = all_.model.state_of(thing).is == reference::kind::slot;
    int const generation = is_slot && capture.is_active() ? all_.slot_of(thing).generation : -1;
    work.uses.push_back({thing, generation});
  }
  if (capture.is_none()) work.mark = all_.model.add_mark(streams_[stream].device);
  return work;
}

piece_of_work& world::slot_piece(std::size_t stream, lease_place const& of,
                                 piece_of_work::role what) {
  piece_of_work& work = piece(stream, {of.slot});
  work.what = what;
  work.slot = of.slot;
  work.value = of.value;
  work.memory = of.memory;
  work.is_racy = all_.slot_of(of.slot).racy;
  return work;
}

/// The work is on the stream, or in its capture.
void world::note_use(std::size_t stream, piece_of_work const& work) {
  if (work.mark != 0) {
    streams_[stream].mark = work.mark;
    return;
  }
  capture_state const capture = capture_at(stream);
  if (!capture.is_active()) return;
  for (piece_of_work::use const& each : work.uses)
    all_.model.capture_of(capture.id)
        .needed.push_back({.thing = each.thing, .generation = all_.slot_of(each.thing).generation});
}

bool world::enqueue(std::size_t stream, piece_of_work& work, bool is_programmatic) {
  if (is_blocked(stream)) {
    all_.model.set_mark(work.mark);
    return false;
  }
  piece_of_work* argument = &work;
  std::array<void*, 3> arguments{&argument, &work.rounds, nullptr};
  cudaLaunchAttribute programmatic = programmatic_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = streams_[stream].handle;
  config.attrs = &programmatic;
  config.numAttrs = is_programmatic ? 1 : 0;
  cudaError_t const status =
      cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(work_kernel()), arguments.data());
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    all_.model.set_mark(work.mark);
    return false;
  }
  note_use(stream, work);
  return true;
}

void world::use_slot_on(std::size_t stream, lease_place const& of, piece_of_work::role what) {
  bool const is_there = enqueue(stream, slot_piece(stream, of, what));
  if (is_there && what == piece_of_work::role::close) all_.will_close(of.value);
}

void world::order(std::size_t before, std::size_t after) {
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
  static_cast<void>(cudaGetLastError());
}

outcome world::do_work(std::size_t s) {
  return enqueue(s, piece(s, {})) ? outcome::done : outcome::failed;
}

outcome world::do_begin(std::size_t s, unsigned mode) {
  if (s == 4 || !capture_at(s).is_none() || lost_[0] || lost_[1]) return outcome::skipped;
  constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                             cudaStreamCaptureModeRelaxed};
  if (cudaStreamBeginCapture(streams_[s].handle, modes[mode]) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return outcome::failed;
  }
  captures_.push_back({capture_at(s).id, s, thread_, mode == 2, std::nullopt});
  return outcome::done;
}

outcome world::do_begin_into(std::size_t s, std::size_t g) {
  graph_place& place = graphs_[g];
  if (s == 4) return outcome::skipped;
  if (!capture_at(s).is_none() || place.plain == nullptr || !is_usable(g) || lost_[0] || lost_[1])
    return outcome::skipped;
  // A lease that is still out is used in the order of the graph: that is the caller's to see to.
  bool const is_leased = std::ranges::any_of(
      leases_, [](lease_place const& each) { return each.held && each.capture != 0; });
  std::vector<cudaGraphNode_t> after;
  if (is_leased) {
    std::size_t count = 0;
    must(cudaGraphGetNodes(place.plain, nullptr, &count));
    after.resize(count);
    must(cudaGraphGetNodes(place.plain, after.data(), &count));
  }
  if (cudaStreamBeginCaptureToGraph(streams_[s].handle, place.plain, after.data(), nullptr,
                                    after.size(), cudaStreamCaptureModeRelaxed) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return outcome::failed;
  }
  place.is_captured_into = true;
  ++place.shape;
  captures_.push_back({capture_at(s).id, s, thread_, true, g});
  counts_.meet(situation::graph_captured_into_again);
  return outcome::done;
}

outcome world::do_fork(std::size_t from, std::size_t to) {
  if (to == 4 || !capture_at(from).is_active() || !capture_at(to).is_none())
    return outcome::skipped;
  order(from, to);
  return outcome::done;
}

outcome world::do_join(std::size_t at, std::size_t ended) {
  capture_state const one = capture_at(at);
  if (at == ended || !one.is_active() || capture_at(ended).id != one.id) return outcome::skipped;
  order(ended, at);
  return outcome::done;
}

// Plain copies of the graph that was captured into may keep what it got.
void world::grow_with(open_capture const& ended, contents const& captured) {
  std::uint64_t const serial = graphs_[*ended.into].serial;
  entries const held = captured.held;  // the list may be one that grows
  entries const lingering = captured.lingering;
  all_.model.grow(serial, held);
  all_.model.grow(serial, lingering);
}

void world::take_captured(open_capture const& ended, cudaGraph_t native, std::size_t g, bool own) {
  contents const captured = all_.model.capture_of(ended.id);
  all_.model.forget_capture(ended.id);
  std::size_t const at = ended.into.value_or(g);
  if (ended.into) grow_with(ended, captured);
  contents& kept = all_.model.graphs[at];
  if (!ended.into) kept.clear();
  append(kept.held, captured.held);
  append(kept.lingering, captured.lingering);
  append(kept.needed, captured.needed);
  graph_place& place = graphs_[at];
  place.is_captured_into = false;
  if (ended.into) return;
  place = {};
  place.serial = ++serials_;
  place.is_exposed = true;
  if (own) {
    place.own.emplace(native, ended.id);
  } else {
    place.plain = native;
  }
}

outcome world::do_end(std::size_t s, std::size_t g, unsigned way) {
  auto const found =
      std::ranges::find_if(captures_, [&](open_capture const& each) { return each.origin == s; });
  if (found == captures_.end()) return outcome::skipped;
  open_capture const ended = *found;
  if (!ended.into && graphs_[g].is_there()) return outcome::skipped;
  if (way % 2 == 0) {
    for (std::size_t i = 0; i < streams_.size(); ++i)
      if (capture_at(i).is_active() && capture_at(i).id == ended.id) order(i, s);
  }
  if (ended.thread != thread_ && !ended.is_relaxed)
    counts_.meet(situation::capture_ended_by_another_thread);
  cudaGraph_t native = nullptr;
  {
    graph_lifetime_lock const turn;
    static_cast<void>(cudaStreamEndCapture(streams_[s].handle, &native));
  }
  static_cast<void>(cudaGetLastError());
  invalidated_ = sim::captures_invalidated();  // an end may be wrong, and is the program's
  if (native == nullptr) {
    sweep_captures();
    return outcome::failed;
  }
  captures_.erase(found);
  // The graph has the beginning of a use whose end it does not have, or not before it is reopened.
  for (lease_place const& each : leases_)
    if (each.held && each.capture == ended.id) all_.slot_of(each.slot).racy = true;
  take_captured(ended, native, g, way < 2);
  return outcome::done;
}

outcome world::do_invalidate(std::size_t s) {
  if (!capture_at(s).is_active()) return outcome::skipped;
  static_cast<void>(cudaStreamQuery(streams_[s].handle));
  static_cast<void>(cudaGetLastError());
  invalidated_ = sim::captures_invalidated();
  return outcome::done;
}

outcome world::do_destroy_stream(std::size_t s) {
  if (!is_own_stream(s)) return outcome::skipped;
  for (lease_place const& each : leases_) {
    if (!each.held) continue;
    if (each.stream == s || std::ranges::count(each.others, s) != 0) return outcome::skipped;
  }
  bool const is_origin =
      std::ranges::any_of(captures_, [&](open_capture const& each) { return each.origin == s; });
  if ((!capture_at(s).is_none() && !is_origin) || lost_[0] || lost_[1]) return outcome::skipped;
  {
    relaxed_scope const relaxed;
    {
      graph_lifetime_lock const turn;
      static_cast<void>(cudaStreamDestroy(streams_[s].handle));
    }
    streams_[s].handle = nullptr;
    sweep_captures();
    make_stream(s);
  }
  static_cast<void>(cudaGetLastError());
  invalidated_ = sim::captures_invalidated();
  return outcome::done;
}

/// Forgets the captures that are over without a graph.
void world::sweep_captures() {
  if (lost_[0] || lost_[1]) all_.model.doubt_captures();
  for (std::size_t i = 0; i < captures_.size();) {
    open_capture const each = captures_[i];
    bool const is_gone = streams_[each.origin].handle == nullptr;
    capture_state const now = is_gone ? capture_state{} : capture_at(each.origin);
    contents& kept = all_.model.capture_of(each.id);
    if (now.is_active()) {
      ++i;
      continue;
    }
    append(kept.lingering, kept.held);
    kept.held.clear();
    if (now.is_invalid()) {
      ++i;
      continue;
    }
    if (!kept.lingering.empty()) counts_.meet(situation::capture_abandoned_with_things);
    if (each.into) grow_with(each, kept);
    all_.model.forget_capture(each.id);
    captures_.erase(captures_.begin() + static_cast<std::ptrdiff_t>(i));
    if (each.into) {  // the graph is gone, though it was the caller's
      graphs_[*each.into].plain = nullptr;
      graphs_[*each.into].is_captured_into = false;
      all_.model.graphs[*each.into].clear();
    }
  }
}

}  // namespace escrow::test
