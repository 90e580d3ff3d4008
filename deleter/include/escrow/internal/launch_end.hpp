// SPDX-License-Identifier: Apache-2.0
// The end of the last launch of what holds resources.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/internal/ready_event.hpp"

namespace escrow::inline v0_2 {

// What is known of the end of a launch, and what each call then does. A launch on the same stream
// goes on in each state: the stream orders it, whoever launches.
//                       none      recorded     late         due           unknown
//   on another stream   goes on   waits in     records it,  usage_error   cuda_error
//                                 its stream   then waits
//     of the same exec  goes on   goes on: CUDA orders launches of one exec
//   update, set         goes on   goes on      goes on      -             cuda_error
//   flush               -         -            -            records it    -
//   park                goes on   waits        records it   usage_error   usage_error
//   release, end        at once   after        records it   records it    leaks, or refuses: see
//                                 `ready`                                 hoisted
// Each launch makes its own end `recorded`, or `none` if CUDA cannot record it and the host has
// waited for it, or else `unknown`; with sharing_options::streams_outlive_group `late`. A
// stream_launcher makes it `due`, and it stays so until it is recorded or waited for.
enum class end_state : std::uint8_t {
  none,      // nothing runs: there was no launch, it is over, or its device is lost
  recorded,  // the event is behind it
  late,      // launches since are not recorded: any thread may do it, on the stream `on`
  due,       // launches since are not recorded: see stream_launcher
  unknown    // neither a record nor a wait succeeded
};

// What: the end of the last launch of an exec or hoisted part: an event that is recorded after each
//   launch, or after several.
// Thread safety: written by the thread that launches, under the launch orders of what it holds;
//   other threads read it under one of these. record_late() and known(): any thread.
// Lifetime: shared by the exec or hoisted part, the launch orders whose last launch it is, and the
//   deferred releases that wait for it.
// Errors: the constructor (capture-safe) throws cuda_error, std::bad_alloc.
struct launch_end {
  explicit launch_end(int of_device) : ready(event_cache::take(of_device)), device(of_device) {}
  launch_end(launch_end&&) = delete;
  ~launch_end() { event_cache::put(device, std::move(ready)); }

  // Whether the state is late no more: the event is recorded now, or else what that failed with is
  // noted, as by record_end(). False: its stream captures. No other thread may begin or end a
  // capture of it meanwhile: CUDA's driver crashes then.
  [[nodiscard]] bool record_late() noexcept;
  // Acquire, release: who reads `recorded` uses `ready`.
  [[nodiscard]] end_state known() const noexcept { return state_.load(std::memory_order_acquire); }
  void become(end_state state) noexcept { state_.store(state, std::memory_order_release); }

  event ready;
  int device;                            // the event's
  cudaError_t failure = cudaSuccess;     // why it is unknown
  std::uint64_t stream = 0;              // the last launch's stream id; 0: it was not asked for
  cudaStream_t on = nullptr;             // that stream, if it outlives the group; else null
  std::atomic<bool> is_reported{false};  // a failed query was reported once

 private:
  std::atomic<end_state> state_{end_state::none};
  // Guards `ready`, `device` and `failure` while the state is late. Held across the calls of one
  // record: who waits for it needs that record.
  std::mutex late_;
};

// Records the end of the work on the stream, where `whom` may have launched it, or waits for it if
// that fails: see end_state. Returns why it is not known if both fail, or the error of a lost
// device, where nothing runs any more.
cudaError_t record_end(launch_end& end, stream_ref stream,
                       recorded_by whom = recorded_by::any) noexcept;

}  // namespace escrow::inline v0_2
