// SPDX-License-Identifier: Apache-2.0
// Pooled storage for retired owners, and the queue of eager retirements.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "escrow/detail/retired_object.hpp"
#include "escrow/internal/release_queue.hpp"
#include "escrow/internal/spin_lock.hpp"

namespace escrow::inline v0_2 {

// Storage and queues of eager retirements, sharded into shelves by stream, so that each costs two
// short locks and shares no cache line with other streams. Destroy callbacks use the release queue
// instead.
// Thread safety: any thread, except functions marked as the worker's.
class object_store {
 public:
  explicit object_store(release_queue& destroyed) : queue_(destroyed) {}
  object_store(object_store&&) = delete;
  ~object_store() { trim(); }

  // As deleter_core's functions of these names.
  [[nodiscard]] retired_object& take(deleter_core& core, std::uint64_t stream, bool with_event);
  void put(retired_object& idle) noexcept;
  // True if it is the first on its shelf: the caller must then wake the worker.
  [[nodiscard]] bool push(retired_object& retired) noexcept;

  // For the worker:
  [[nodiscard]] release_list take_retired() noexcept;
  [[nodiscard]] bool has_retired() const noexcept;
  void put_after_pass(retired_object& idle) noexcept;
  void shelve_emptied() noexcept;  // returns these to the shelves

  void trim() noexcept;  // frees all idle objects

 private:
  struct alignas(64) shelf {
    spin_lock lock;     // guards all below except `emptied...`
    release_list idle;  // used next; events of the streams' device
    std::size_t idle_count = 0;
    release_list retired;  // not yet taken by the worker, oldest first
    // `retired` is not empty. Written under the lock. The worker reads it without, relaxed: before
    // sleeping it synchronizes with the writer through the wakeup; else it takes the lock.
    std::atomic<bool> has_retired{false};
    release_list emptied;  // the worker's: joins `idle` after its pass
    std::size_t emptied_count = 0;
  };
  static constexpr std::size_t idle_max = 16384;  // idle objects per shelf
  static constexpr std::size_t shelf_count = 32;  // limit of retired_object::shelf_

  [[nodiscard]] retired_object& make(deleter_core& core, shelf& of);

  release_queue& queue_;
  std::array<shelf, shelf_count> shelves_;
};

}  // namespace escrow::inline v0_2
