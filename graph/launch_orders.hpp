// The orders of launches, and a launch's turn in them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

// How long a launch waits for another thread's hoisted::leave().
inline constexpr std::chrono::nanoseconds enter_wait_max = std::chrono::seconds(10);

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

  // Makes `stream` wait for the last launches, but for the one whose end is `own` only if not
  // `is_same_exec`, whose launches CUDA orders. Throws cuda_error, and usage_error for a capturing
  // stream if it would have to wait, and if an end is due. Returns the stream's id, if that was
  // needed; else 0.
  std::uint64_t wait_for_last(char const* call, stream_ref stream, launch_end const* own,
                              bool is_same_exec);
  // Something was launched on `stream`: records its end, `own`, for the others: record_end().
  // Throws cuda_error. `id`: the stream's, or 0.
  void note_launch(stream_ref stream, std::shared_ptr<launch_end> const& own, std::uint64_t id);

  // The same without a record: the stream with that id, not 0, orders later launches on it, and
  // others refuse to launch until `own` is recorded. Returns false, and has done nothing, if there
  // are other execs, or one of the orders is a sharing group's.
  [[nodiscard]] bool put_off_end(std::uint64_t id, std::shared_ptr<launch_end> const& own) noexcept;

  // Between enter() and leave(), no launch_lock of these orders succeeds. Afterwards the others
  // refuse to launch until the end of what was launched, `own`, is recorded.
  void enter(std::shared_ptr<launch_end> const& own) noexcept;
  void leave() noexcept;

 private:
  friend class launch_lock;

  [[nodiscard]] bool is_shared() const noexcept;  // with other execs, or in a sharing group
  void make_last(std::shared_ptr<launch_end> const& own) noexcept;

  std::vector<std::shared_ptr<launch_order>> orders_;
};

// Serializes launches of execs that may write the same resources: locks their orders.
class launch_lock {
 public:
  // Throws group_busy if another thread entered one of them and does not leave within `wait_max`,
  // or if this thread did.
  launch_lock(char const* call, launch_orders const& orders,
              std::chrono::nanoseconds wait_max = enter_wait_max);
  explicit launch_lock(launch_orders const& orders) noexcept;  // also while one is entered
  launch_lock(launch_lock&&) = delete;
  ~launch_lock() { unlock(); }

 private:
  void lock() noexcept;
  void unlock() noexcept;

  launch_orders const& orders_;
};

// Records the end of the work on the stream, or waits for it if that fails. If both fail, the end
// is not known: `failure` says why, and an end that was due stays due. Returns that, or the error
// of a lost device, where nothing runs any more.
cudaError_t record_end(launch_end& end, stream_ref stream) noexcept;

// Drops references after the last launch, whose end is `end`: at once if nothing runs. Leaks and
// reports them if the end is not known.
void drop_after(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept;

}  // namespace escrow::inline v0_1
