// The orders of launches, and a launch's turn in them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

// How long a launch waits while another thread is inside hoisted::launch().
inline constexpr std::chrono::nanoseconds turn_wait_max = std::chrono::seconds(10);

// Throws usage_error if `stream`, which is `what` in the text, is capturing, and as
// usable_capture_of(). A lost device reports no captures, and what follows will know.
void refuse_capturing(char const* call, stream_ref stream, char const* what, char const* advice);

// The launch orders of the held sets that may be written: each once, in address order.
class launch_orders {
 public:
  launch_orders() = default;
  explicit launch_orders(deferred_releases const& held);  // throws std::bad_alloc
  launch_orders(launch_orders&& other) noexcept = default;
  launch_orders& operator=(launch_orders&& other) noexcept {
    orders_.swap(other.orders_);
    return *this;
  }
  ~launch_orders();

  // The rest is for the holder of a launch_lock. `call` is the public function, for errors.

  // Makes `stream` wait for the last launches, but for the one whose end is `same_exec`, and for
  // that whose end is `besides`, if it is not null: see end_state. Throws cuda_error, and
  // usage_error for a capturing stream if it would have to wait, and if an end is due. Returns the
  // stream's id, if that was needed; else 0.
  std::uint64_t wait_for_last(char const* call, stream_ref stream, launch_end const* same_exec,
                              launch_end const* besides = nullptr);
  // Something was launched on `stream`: records its end, `own`, for the others: record_end().
  // Throws cuda_error. `id`: the stream's, or 0.
  void note_launch(stream_ref stream, std::shared_ptr<launch_end> const& own, std::uint64_t id,
                   recorded_by whom = recorded_by::any);
  // The same, if it is known already that its end will not be.
  void lose_launch(cudaError_t why, std::shared_ptr<launch_end> const& own,
                   std::uint64_t id) noexcept;

  // The same without a record: the stream with that id, not 0, orders later launches on it, and
  // others refuse to launch until `own` is recorded. Returns false, and has done nothing, if there
  // are other execs, or one of the orders is a sharing group's.
  [[nodiscard]] bool put_off_end(std::uint64_t id, std::shared_ptr<launch_end> const& own) noexcept;

  // Between the two, no launch_lock of these orders succeeds.
  void enter() noexcept;
  void leave() noexcept;

  // Whether nothing is written: then there is no order.
  [[nodiscard]] bool is_empty() const noexcept { return orders_.empty(); }

 private:
  friend class launch_lock;

  [[nodiscard]] bool is_shared() const noexcept;  // with other execs, or in a sharing group
  void make_last(std::shared_ptr<launch_end> const& own) noexcept;

  std::vector<std::shared_ptr<launch_order>> orders_;
};

// What: what an exec, or a hoisted part, holds.
// Lifetime: its end, or what is assigned to it, drops the references after the last launch: see
//   end_state. Leaks are reported.
struct holding {
  holding() = default;
  explicit holding(
      reference_sets const& sets);  // to be launched. Throws cuda_error, std::bad_alloc
  holding(holding&& other) noexcept = default;
  holding& operator=(holding other) noexcept {
    held.swap(other.held);
    std::swap(orders, other.orders);
    end.swap(other.end);
    return *this;
  }
  ~holding();

  [[nodiscard]] reference_sets sets() const;  // that are held; throws std::bad_alloc

  deferred_releases held;
  launch_orders orders;             // of what is held; empty if nothing is launched
  std::shared_ptr<launch_end> end;  // null: the references are dropped at once
};

// Serializes launches of execs that may write the same resources: locks their orders.
class launch_lock {
 public:
  // Throws group_busy if another thread entered one of them and does not leave within `wait_max`;
  // usage_error if this thread did.
  launch_lock(char const* call, launch_orders const& orders,
              std::chrono::nanoseconds wait_max = turn_wait_max);
  explicit launch_lock(launch_orders const& orders) noexcept;  // also while one is entered
  launch_lock(launch_lock&&) = delete;
  ~launch_lock() { unlock(); }

 private:
  void lock() noexcept;
  void unlock() noexcept;

  launch_orders const& orders_;
};

// Records the end of the work on the stream, where `whom` may have launched it, or waits for it if
// that fails: see end_state. Returns why it is not known if both fail, or the error of a lost
// device, where nothing runs any more.
cudaError_t record_end(launch_end& end, stream_ref stream,
                       recorded_by whom = recorded_by::any) noexcept;

// Throws cuda_error, naming `call`, for what the unknown `end` forbids.
[[noreturn]] void refuse_unknown(char const* call, launch_end const& end, char const* what);

}  // namespace escrow::inline v0_1
