// SPDX-License-Identifier: Apache-2.0
// A device's memory pool, and how a call runs on another device.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "memory_book.hpp"
#include "peers.hpp"

namespace escrow::inline v0_2 {

// Runs `call` in Relaxed mode with that device current. Returns its status, or why it did not run.
template <class Call>
cudaError_t on_device(int device, Call call) noexcept {
  try {
    device_scope const current(device);
    relaxed_capture_scope const relaxed;
    return call();
  } catch (cuda_error const& failed) {
    return failed.status();
  } catch (std::exception const&) {
    return cudaErrorMemoryAllocation;
  }
}

// As on_device(), for a call that works without if `may_be_elsewhere`: better than none.
template <class Call>
cudaError_t clean_up_on_device(int device, Call call, bool may_be_elsewhere = true) noexcept {
  std::optional<device_scope> current;
  try {
    current.emplace(device);
  } catch (cuda_error const& error) {
    if (!may_be_elsewhere && !is_sticky(error.status())) return error.status();
  } catch (std::exception const&) {
    if (!may_be_elsewhere) return cudaErrorMemoryAllocation;
  }
  return retry_cleanup_relaxed(call);
}

// What a device's memory pool and ranges have.
struct device_use {
  int device = 0;
  std::size_t reserved = 0;  // by the device's pool of CUDA; if that does not tell: `used`
  std::size_t used = 0;      // of it
  std::size_t mapped = 0;    // of large blocks
};

// A device's pool, and the stream on which memory is allocated and freed: it has no other work.
class ESCROW_LOCAL store_place {
 public:
  // What the pool keeps at least.
  static constexpr std::size_t kept_min = std::size_t{32} << 20;

  // With that device current, in Relaxed mode. Throws cuda_error.
  explicit store_place(int device) : device_(device) {
    try {
      check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
            "cudaStreamCreateWithFlags");
      make_pool();
      context_ = context_id_of(device);
    } catch (...) {
      end();
      throw;
    }
  }
  store_place(store_place&&) = delete;
  ~store_place() {
    { std::lock_guard const lock(mutex_); }  // a program's ThreadSanitizer sees it
    if (is_lost()) return;
    clean_up_on_device(device_, [this] {
      end();
      return cudaSuccess;
    });
  }

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
  [[nodiscard]] cudaMemPool_t pool() const noexcept { return pool_; }
  // Whether the device was reset since, and the handles are no more.
  [[nodiscard]] bool is_lost() const noexcept {
    if (!is_in_use(device_)) return true;
    try {
      return context_id_of(device_) != context_;
    } catch (std::exception const&) {
      return false;
    }
  }

  // Counts what is allocated, or freed. True if more may be unused than is kept. Any thread.
  bool count(std::size_t allocated, std::size_t freed) noexcept {
    std::lock_guard const lock(mutex_);
    used_ += allocated;
    used_ -= freed;
    most_used_ = std::max(most_used_, used_);
    reserved_max_ = std::max(reserved_max_, used_);
    return reserved_max_ > kept(used_);
  }
  // Gives back what was unused for the whole of the last window, if that has lasted for `least`.
  // True if more may follow. Any thread.
  bool settle(std::chrono::nanoseconds least) noexcept {
    std::size_t keep = 0;
    {
      std::lock_guard const lock(mutex_);
      if (reserved_max_ <= kept(used_)) return false;
      auto const now = std::chrono::steady_clock::now();
      if (now - begin_ < least) return true;
      begin_ = now;
      keep = kept(std::exchange(most_used_, used_));
    }
    if (is_lost()) return false;
    auto const trim_to = [&] { return cudaMemPoolTrimTo(pool_, keep); };
    static_cast<void>(succeeded(on_device(device_, trim_to)));  // else in the next window
    std::lock_guard const lock(mutex_);
    reserved_max_ = std::max(keep, most_used_);
    return reserved_max_ > kept(used_);
  }
  // Any thread.
  [[nodiscard]] device_use now() noexcept {
    device_use its{.device = device_};
    auto const ask = [&] { return asked_reserved(its.reserved); };
    bool const is_known = succeeded(on_device(device_, ask));
    std::lock_guard const lock(mutex_);
    its.used = used_;
    its.reserved = std::max(is_known ? its.reserved : 0, used_);
    return its;
  }
  // Gives back all that is unused. Returns the bytes. In Relaxed mode, with the device current.
  // Throws cuda_error.
  std::size_t trim() {
    std::size_t const before = reserved();
    check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo");
    std::size_t const now = reserved();
    return before - std::min(before, now);
  }

 private:
  void make_pool() {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = device_};
    check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    memory_book::global().add_pool(pool_);
    auto keep = std::numeric_limits<std::uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
          "cudaMemPoolSetAttribute");
    std::vector<cudaMemAccessDesc> peers;
    for (int const peer : peers_of(device_)) {
      peers.push_back({.location = {.type = cudaMemLocationTypeDevice, .id = peer},
                       .flags = cudaMemAccessFlagsProtReadWrite});
    }
    if (peers.empty()) return;
    check(cudaMemPoolSetAccess(pool_, peers.data(), peers.size()), "cudaMemPoolSetAccess");
  }
  void end() noexcept {
    if (pool_ != nullptr) {
      memory_book::global().remove_pool(pool_);  // first: another one may get the handle
      // A free may be behind a call that failed.
      retry_cleanup([this] { return cudaStreamSynchronize(stream_); });
      retry_cleanup([this] { return cudaMemPoolDestroy(pool_); });
    }
    if (stream_ != nullptr) retry_cleanup([this] { return cudaStreamDestroy(stream_); });
  }
  cudaError_t asked_reserved(std::size_t& bytes) const noexcept {
    std::uint64_t told = 0;
    cudaError_t const status =
        cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &told);
    bytes = told;
    return status;
  }
  [[nodiscard]] std::size_t reserved() const {
    std::size_t bytes = 0;
    check(asked_reserved(bytes), "cudaMemPoolGetAttribute");
    return bytes;
  }
  // How much the pool may reserve while so much of it is used.
  [[nodiscard]] static std::size_t kept(std::size_t used) noexcept {
    return used + std::max(kept_min, used / 8);
  }

  int const device_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  unsigned long long context_ = 0;
  std::mutex mutex_;  // guards all below; held across no CUDA call
  std::size_t used_ = 0;
  std::size_t most_used_ = 0;     // since `begin_`
  std::size_t reserved_max_ = 0;  // the pool reserves at most so much, but for fragments
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace escrow::inline v0_2
