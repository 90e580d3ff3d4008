// SPDX-License-Identifier: Apache-2.0
// What is held until the end of a last launch, and the turns of launches that share some of it.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

// Throws usage_error if `stream`, which is `what` in the text, is capturing, and as
// usable_capture_of(). A lost device reports no captures, and what follows will know.
void refuse_capturing(char const* call, stream_ref stream,
                      char const* advice = "call it after the capture has ended",
                      char const* what = "`stream`");

// What: the references that an exec or a hoisted part has, the launch orders of those sets that may
//   be written, and the end of the last launch.
// Lifetime: its end, or what is assigned to it, drops the references after that launch: see
//   end_state. Leaks are reported.
class holding {
 public:
  holding() = default;
  // Of what is to be launched. Throws cuda_error, std::bad_alloc.
  explicit holding(reference_sets const& sets);
  explicit holding(std::shared_ptr<launch_order> order);
  // For enter() and step_out() alone. Throws std::bad_alloc.
  [[nodiscard]] static holding turn_of(std::shared_ptr<launch_order> order);
  holding(holding&& other) noexcept = default;
  holding& operator=(holding other) noexcept {
    held.swap(other.held);
    end.swap(other.end);
    orders_.swap(other.orders_);
    return *this;
  }
  ~holding();

  [[nodiscard]] reference_sets sets() const;  // that are held; throws std::bad_alloc

  deferred_releases held;
  std::shared_ptr<launch_end> end;  // null: what is held is dropped at once

  // The rest is for the holder of a launch_lock. `call` is the public function, for errors.

  // Makes `stream` wait for the last launches, but for the one whose end is `same_exec`, and for
  // that whose end is `besides`, if it is not null: see end_state. Throws cuda_error, and
  // usage_error for a capturing stream if it would have to wait, and if an end is due. Returns the
  // stream's id, if that was needed; else 0.
  std::uint64_t wait_for_last(char const* call, stream_ref stream, launch_end const* same_exec,
                              launch_end* besides = nullptr);
  // Something was launched on `stream`: records its end for the others: record_end(). Throws
  // cuda_error. `id`: the stream's, or 0.
  void note_launch(stream_ref stream, std::uint64_t id, recorded_by whom = recorded_by::any);
  // The same, if it is known already that its end will not be.
  void lose_launch(cudaError_t why, std::uint64_t id) noexcept;

  // The same without a record: the stream with that id, not 0, orders later launches on it, and
  // others refuse to launch until the end is recorded. Returns false, and has done nothing, if
  // there are other execs, or one of the orders is a sharing group's.
  [[nodiscard]] bool put_off_end(std::uint64_t id) noexcept;

  // Between the two, no launch_lock of these orders succeeds. leave() notes what was launched on
  // the stream with that id, without the lock. It throws cuda_error if the end is not known, and
  // usage_error if the stream captures.
  void enter() noexcept;
  void step_out() noexcept;  // the end of a turn that launched nothing; takes a launch_lock
  void leave(char const* call, stream_ref stream, std::uint64_t id);

  // For a call that lets CUDA see what is held: throws usage_error, naming `call`, if a sharing
  // group of it is parked, and keeps it unparked while `pins` lives. No launch_lock is needed.
  void pin(char const* call, group_pins& pins) const;

  // Whether nothing is written: then nothing orders the launches.
  [[nodiscard]] bool is_only_read() const noexcept { return orders_.empty(); }

 private:
  friend class launch_lock;

  [[nodiscard]] bool is_shared() const noexcept;        // with other execs, or in a sharing group
  [[nodiscard]] bool streams_outlive() const noexcept;  // see sharing_options
  void become_last() noexcept;
  void end_turn() noexcept;

  std::vector<std::shared_ptr<launch_order>> orders_;  // each once, in address order
};

// Serializes launches of execs that may write the same resources: locks their orders.
class launch_lock {
 public:
  // Whether one of them may be a parked group's.
  enum class parked : std::uint8_t { refused, allowed };
  // Throws group_busy if another thread entered one of them and does not leave within `wait_max`;
  // usage_error if this thread did, and for a group that is parked.
  launch_lock(char const* call, holding const& its,
              std::chrono::nanoseconds wait_max = std::chrono::seconds(10),
              parked groups = parked::refused);
  // Also while one is entered.
  explicit launch_lock(holding const& its) noexcept : orders_(its.orders_) { lock(); }
  launch_lock(launch_lock&&) = delete;
  ~launch_lock() { unlock(); }

 private:
  void lock_in_turn(char const* call, std::chrono::nanoseconds wait_max);
  void lock() noexcept;
  void unlock() noexcept;

  std::vector<std::shared_ptr<launch_order>> const& orders_;
};

// Throws cuda_error, naming `call`, for what the unknown `end` forbids.
[[noreturn]] void refuse_unknown(char const* call, launch_end const& end, char const* what);

}  // namespace escrow::inline v0_2
