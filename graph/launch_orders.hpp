// The orders of launches, and a launch's turn in them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
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
  // `more`: further orders, or null. Throws std::bad_alloc.
  launch_orders(deferred_releases const& held, launch_orders const* more);
  launch_orders(launch_orders&& other) noexcept
      : orders_(std::exchange(other.orders_, {})), has_group_(other.has_group_) {}
  launch_orders& operator=(launch_orders&& other) noexcept {
    std::swap(orders_, other.orders_);
    std::swap(has_group_, other.has_group_);
    return *this;
  }
  ~launch_orders();

  // The rest is for the holder of a launch_lock. `call` is the public function, for errors.

  // Makes `stream` wait for the last launches, but for the one whose end is `own` only if not
  // `is_same_exec`, whose launches CUDA orders, or if fill() writes. Throws cuda_error, and
  // usage_error for a capturing stream if it would have to wait, and if an end is due. Returns the
  // stream's id, if that was needed; else 0.
  std::uint64_t wait_for_last(char const* call, stream_ref stream, launch_end const* own,
                              bool is_same_exec);
  [[nodiscard]] bool has_group() const noexcept { return has_group_; }
  // Fills what `held` has in sharing groups with sharing_options::fill, and records the end of that
  // as note_launch() does, since a launch may fail afterwards. Throws cuda_error, std::bad_alloc,
  // and usage_error for a capturing stream.
  void fill(char const* call, deferred_releases const& held, stream_ref stream,
            std::shared_ptr<launch_end> const& own);
  // Something was launched on `stream`: records its end, `own`, for the others. If that fails,
  // waits for the work. If both fail, stores the failure in `own` and throws cuda_error. `id`: the
  // stream's, or 0.
  void note_launch(stream_ref stream, std::shared_ptr<launch_end> const& own, std::uint64_t id);

  // The same without a record: the stream with that id, not 0, orders later launches on it, and
  // others refuse to launch until `own` is recorded. Returns false, and has done nothing, if there
  // are other execs, or one of the orders is a sharing group's.
  [[nodiscard]] bool put_off_end(std::uint64_t id, std::shared_ptr<launch_end> const& own) noexcept;

  // Between enter() and leave(), no launch_lock of these orders succeeds.
  void enter() noexcept;
  void leave() noexcept;
  // The same where the end of what was launched, `own`, is not known: the others refuse to launch.
  void leave_unknown(std::shared_ptr<launch_end> const& own, cudaError_t failure) noexcept;
  // The others wait for `known` instead of `own`; null: for nothing.
  void replace_last(std::shared_ptr<launch_end> const& own,
                    std::shared_ptr<launch_end> const& known) noexcept;

 private:
  friend class launch_lock;

  void note_end(stream_ref stream, std::shared_ptr<launch_end> const& own, std::uint64_t id);

  std::vector<std::shared_ptr<launch_order>> orders_;
  bool has_group_ = false;  // one of them is a sharing group's
};

// Serializes launches of execs that may write the same resources: locks their orders.
class launch_lock {
 public:
  // Throws group_busy if another thread entered one of them and does not leave within `wait_max`,
  // or if this thread did.
  launch_lock(char const* call, launch_orders const& orders,
              std::chrono::nanoseconds wait_max = enter_wait_max);
  struct for_leaving {};
  launch_lock(for_leaving leaving, launch_orders const& orders) noexcept;  // also while entered
  launch_lock(launch_lock&&) = delete;
  ~launch_lock() { unlock(); }

 private:
  void lock() noexcept;
  void unlock() noexcept;

  launch_orders const& orders_;
};

// Records the end of the work on the stream, as launch_orders::note_launch(). If an end is due, it
// stays due where both fail.
void record_end(launch_end& end, stream_ref stream);

}  // namespace escrow::inline v0_1
