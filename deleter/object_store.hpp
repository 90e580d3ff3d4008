// The store of objects for owners, and what was retired eagerly.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "escrow/detail/retired_object.hpp"
#include "escrow/detail/spin_lock.hpp"
#include "release_queue.hpp"

namespace escrow {

// What eager retirements need, spread over shelves by stream, so that each costs two short locks
// and touches no memory that retirements on other streams touch. Destroy callbacks never come here:
// they use the release queue.
// Thread safety: any thread, but for what is marked as the worker's.
class object_store {
 public:
  object_store(deleter_core& core, release_queue& destroyed) : core_(core), queue_(destroyed) {}
  object_store(object_store&&) = delete;
  ~object_store() { trim(); }

  // As deleter_core's functions of these names.
  [[nodiscard]] retired_object& take(std::uint64_t stream, bool with_event);
  void put(retired_object& idle) noexcept;
  // Whether it is the first on its shelf: the worker has to be woken then.
  [[nodiscard]] bool push(retired_object& retired) noexcept;

  // For the worker:
  [[nodiscard]] release_list take_retired() noexcept;
  [[nodiscard]] bool has_retired() const noexcept;
  void put_after_pass(retired_object& idle) noexcept;
  void shelve_emptied() noexcept;  // what was put after the pass

  void trim() noexcept;  // frees all idle objects

 private:
  struct alignas(64) shelf {
    spin_lock lock;     // guards the rest, but for what `emptied` has
    release_list idle;  // to be used next, with events of the streams' device
    std::size_t idle_count = 0;
    release_list retired;  // recorded and not yet taken by the worker, oldest first
    // Whether `retired` has any. Written under the lock; read without it by the worker, which goes
    // to sleep only after the wakeup's exchange with the thread that wrote it, or takes the lock.
    std::atomic<bool> has_retired{false};
    // The worker's, to join `idle` after its pass.
    release_list emptied;
    std::size_t emptied_count = 0;
  };
  static constexpr std::size_t idle_max = 16384;  // objects that a shelf keeps
  static constexpr std::size_t shelf_count = 32;  // what retired_object::shelf_ can tell

  [[nodiscard]] retired_object& make(shelf& of);

  deleter_core& core_;
  release_queue& queue_;
  std::array<shelf, shelf_count> shelves_;
};

}  // namespace escrow
