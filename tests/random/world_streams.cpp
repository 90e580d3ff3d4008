// Streams, and the work on them.
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

/// A kernel for the stream that uses these things.
piece_of_work& world::piece(nth s, std::vector<int> const& uses) {
  piece_of_work& work = all_.add_work();
  capture_state const capture = capture_at(s);
  for (int const thing : uses) {
    bool const is_slot = all_.model.state_of(thing).is == reference::kind::slot;
    int const generation = is_slot && capture.is_active() ? all_.slot_of(thing).generation : -1;
    work.uses.push_back({thing, generation});
  }
  if (capture.is_none()) work.mark = all_.model.add_mark(streams_[s].device);
  return work;
}

/// The work is on the stream, or in its capture.
void world::note_use(nth s, piece_of_work const& work) {
  if (work.mark != 0) {
    streams_[s].mark = work.mark;
    return;
  }
  capture_state const capture = capture_at(s);
  if (!capture.is_active()) return;
  for (piece_of_work::use const& each : work.uses)
    all_.model.capture_of(capture.id)
        .needed.push_back({.thing = each.thing, .generation = all_.slot_of(each.thing).generation});
}

bool world::enqueue(nth s, piece_of_work& work, bool is_programmatic) {
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
    all_.model.set_mark(work.mark);
    return false;
  }
  note_use(s, work);
  return true;
}

/// Work on one stream comes after the work on another so far.
void world::order(nth before, nth after) {
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

outcome world::do_work(nth s) {
  return enqueue(s, piece(s, {})) ? done : failed;
}

}  // namespace escrow::test
