// SPDX-License-Identifier: Apache-2.0
// The device memory that Escrow allocates.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "address_range.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/version.hpp"
#include "store_place.hpp"

namespace escrow::inline v0_2 {

// What this thread knows meanwhile of the memory that it allocates and frees.
struct ESCROW_LOCAL memory_scope {
  bool is_unused = false;  // what it frees, by GPU work
  // What it allocates is a pool's: large blocks do not share CUDA's steps with others, so what is
  // freed is the device's at once. Out of memory, the pool waits for the worker.
  bool is_of_pool = false;

  // Makes it the thread's until the end of the scope.
  class set;
  [[nodiscard]] static memory_scope now() noexcept;
};

class ESCROW_LOCAL memory_scope::set {
 public:
  explicit set(memory_scope what) noexcept;
  set(set&&) = delete;
  ~set();

 private:
  memory_scope outer_;
};

// What: one memory pool of CUDA for each device. cudaFree waits for all work of the device, and
//   keeps every thread from launching meanwhile (measured); a memory pool does neither. What is
//   freed stays there for the next allocation. Of that, what no allocation has needed for
//   `window` goes back to the device, but for an eighth of what is used, and for 32 MiB.
//   A pool's large blocks have memory of their own: ranges of addresses.
// Thread safety: any thread. The lock is held across no CUDA call.
// Lifetime: the process's. A device that was reset gets a new pool.
// Capture: capture-safe.
class ESCROW_LOCAL device_store {
 public:
  // What may be kept unused in any case: CUDA reserves memory in steps of that (measured).
  static constexpr std::size_t kept_min = store_place::kept_min;

  [[nodiscard]] static device_store& global();

  // As cudaMalloc, on the current device: usable on every stream at once, and by all devices that
  // can. `from`: of that pool instead, which is somebody else's.
  cudaError_t allocate(void** address, std::size_t bytes, cudaMemPool_t from = nullptr) noexcept;
  // As cudaFree, also of memory that is not from here. Waits for the device only if the memory may
  // be in use: outside of what the deleter reclaims and of a memory_scope that says more.
  cudaError_t free(void* address) noexcept;
  // For memory that free() could not free, `why`, and that nobody will free again: frees it after
  // the next wait for its device. False: it is memory of another source.
  bool free_later(void* address, cudaError_t why) noexcept;
  void end(void* address) noexcept {
    cudaError_t const status = free(address);
    if (status != cudaSuccess) static_cast<void>(free_later(address, status));
  }
  // Waits for the device, as free() does where memory may be in use.
  cudaError_t wait_for_uses(int device) noexcept;
  // Frees what free_later() has noted, if there is any, after a wait for the device.
  void wait_and_free_late(int device);
  // Gives back to the device what is unused, and the pool if nothing is used. Returns the bytes.
  // Throws cuda_error.
  std::size_t trim(int device);
  // What trim() trims, too. Throws std::bad_alloc.
  void add(int device, std::shared_ptr<group_memory> const& arena);

  // What the process has of each device. Throws std::bad_alloc.
  [[nodiscard]] std::vector<device_use> uses();

 private:
  static constexpr std::size_t page = std::size_t{2} << 20;  // what ranges are mapped in
  static constexpr std::size_t mapped_min = 2 * page;        // bytes of a large block

  struct block {
    std::shared_ptr<store_place> in;
    std::unique_ptr<address_range> range;  // null: of a pool of CUDA
    std::size_t bytes = 0;                 // of the place's pool; 0: of another one
    std::uint64_t late = 0;        // its number among those to be freed after a wait for the device
    bool is_known_unused = false;  // that has been
  };

  [[nodiscard]] std::shared_ptr<store_place> known_place(int device);  // null if there is none
  [[nodiscard]] std::shared_ptr<store_place> place_of(int device);
  // With that device current, in Relaxed mode. Null if the device has no ranges. Throws cuda_error.
  [[nodiscard]] std::unique_ptr<address_range> map(int device, std::size_t bytes);
  // One with a number up to `last`, before a wait that has ended; null if there is none.
  [[nodiscard]] void* take_late(store_place const& in, std::uint64_t last) noexcept;
  void free_late(store_place const& in, std::uint64_t last) noexcept;
  std::size_t trim_store(int device);
  // Of all devices, what was unused for so long. True if more may follow.
  bool settle(std::chrono::nanoseconds least) noexcept;

  std::mutex mutex_;                                                 // guards all below
  std::vector<std::pair<int, std::weak_ptr<group_memory>>> arenas_;  // of devices
  std::vector<std::shared_ptr<store_place>> places_;
  std::map<void*, block> blocks_;
  std::uint64_t late_count_ = 0;  // how many ever were late
};

}  // namespace escrow::inline v0_2
