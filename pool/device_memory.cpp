// SPDX-License-Identifier: Apache-2.0
// Allocation and release of blocks.
#include "escrow/pool/device_memory.hpp"
#include "device_store.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "memory_book.hpp"
#include "search.hpp"

namespace escrow::inline v0_2 {

cudaError_t device_malloc(void** address, std::size_t bytes) noexcept {
  return address != nullptr ? device_store::global().allocate(address, bytes)
                            : cudaErrorInvalidValue;
}

cudaError_t device_free(void* address) noexcept {
  return device_store::global().free(address);
}

void device_deleter::operator()(void* memory) const noexcept {
  device_store::global().end(memory);
}

std::size_t trim_device_memory(int device, source_location where) {
  constexpr char const* call = "trim_device_memory";
  return detail::called_at(call, where, [&] {
    device_scope const is_there(device);
    device_store::global().wait_and_free_late(device);
    return device_store::global().trim(device);
  });
}

memory_source memory_source::device() {
  return {device_malloc, device_free, "cudaMallocFromPoolAsync", false, true, true};
}

memory_source memory_source::cuda_malloc() {
  return {cudaMalloc, cudaFree, "cudaMalloc", false};
}

memory_source memory_source::pinned_host() {
  return {cudaMallocHost, cudaFreeHost, "cudaMallocHost", true};
}

namespace {

// Of memory of a caller's pool: frees it and throws if it is another device's than the current one.
// Returns why that is not known, and has freed it.
cudaError_t refuse_other_device(void* memory) {
  int device = 0;
  cudaPointerAttributes its{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaPointerGetAttributes(&its, memory);
  bool const is_other = its.type == cudaMemoryTypeDevice && its.device != device;
  if (status == cudaSuccess && !is_other) return status;
  device_store::global().end(memory);
  if (status != cudaSuccess) return status;
  throw usage_error("memory_source::from",
                    "the memory of `pool` is of device " + std::to_string(its.device) +
                        ", and is claimed for device " + std::to_string(device),
                    "give a pool of that device, or set pool_options::device");
}

}  // namespace

memory_source memory_source::from(cudaMemPool_t pool, source_location where) {
  if (pool == nullptr) {
    detail::refuse_at(where, "memory_source::from", "`pool` is null",
                      "pass a pool; for memory of the device use device()");
  }
  return {[pool](void** address, std::size_t bytes) {
            cudaError_t const status = device_store::global().allocate(address, bytes, pool);
            return status == cudaSuccess ? refuse_other_device(*address) : status;
          },
          device_free, "cudaMallocFromPoolAsync", false, true};
}

namespace {

// Allocates; out of memory, frees what pools have idle, waits for what deleter::global() is
// reclaiming, and tries again.
cudaError_t allocate_patiently(memory_source const& source, void** address, std::size_t bytes) {
  constexpr auto wait_max = std::chrono::milliseconds(100);  // as pool_options::reclaim_wait_max
  std::optional<host_wait> wait;
  bool has_trimmed =
      source.is_host_written.value_or(false);  // of host memory pools give nothing back
  while (true) {
    deleter_core const* const others = deleter_core::global_or_null();
    std::uint64_t const before = others != nullptr ? others->reclaimed() : 0;
    std::exception_ptr thrown;  // by a source of the caller's
    // Out of memory is no surprise.
    cudaError_t const status = call_aside([&] {
      try {
        return source.allocate(address, bytes);
      } catch (std::bad_alloc const&) {
        return cudaErrorMemoryAllocation;
      } catch (...) {
        thrown = std::current_exception();
        return cudaErrorUnknown;
      }
    });
    if (thrown != nullptr) std::rethrow_exception(thrown);
    if (status != cudaErrorMemoryAllocation || memory_scope::now().is_of_pool) return status;
    if (!std::exchange(has_trimmed, true)) {
      int const device = current_device();
      slot_pool::trim_all(device);
      static_cast<void>(device_store::global().trim(device));
      continue;  // in any case: others may have freed some
    }
    if (others == nullptr) return status;
    if (!wait) wait.emplace();
    while (others->reclaimed() == before) {
      // In this order: what was reclaimed meanwhile is counted by then.
      bool const is_any_left = others->may_reclaim();
      if (others->reclaimed() == before && (!is_any_left || !wait->go_on(wait_max))) return status;
    }
    if (!wait->go_on(wait_max)) return status;
  }
}

}  // namespace

// Owned by a block, and by graphs that were given a share.
struct ESCROW_LOCAL device_block::memory {
  explicit memory(std::function<cudaError_t(void*)> its_free) : free(std::move(its_free)) {}
  memory(memory&&) = delete;
  ~memory();

  void* data = nullptr;
  int const device = current_device();
  std::function<cudaError_t(void*)> free;
};

device_block::memory::~memory() {
  if (data == nullptr) return;
  auto const free_it = [this]() noexcept {
    cudaError_t status = cudaErrorUnknown;
    detail::call_nothrow("the `free` of a memory_source", [&] { status = free(data); });
    return status;
  };
  cudaError_t const status = retry_cleanup_relaxed(free_it);
  if (status == cudaSuccess || device_store::global().free_later(data, status)) return;
  if (deleter_core* const told = deleter_core::global_or_null()) {
    told->report(cuda_error(status, "`free` of a memory_source", source_location(),
                            "the block stays: was it freed by another call?"));
  }
}

device_block::device_block(char const* call, std::size_t bytes, memory_source const& source,
                           source_location where)
    : bytes_(bytes) {
  detail::called_at(call, where, [&] {
    if (!source.allocate || !source.free) {
      throw usage_error(call, "`source` has no `allocate` or no `free`",
                        "give it both, or use memory_source::device()");
    }
    relaxed_capture_scope const relaxed;
    memory_ = make_apart<memory>(source.free);
    cudaError_t const status = allocate_patiently(source, &data_, bytes);
    if (status != cudaSuccess) {
      throw cuda_error(status, source.name, source_location::current(),
                       "for " + detail::size_text(bytes, " bytes"));
    }
    if (data_ == nullptr && bytes != 0) {
      throw cuda_error(cudaErrorMemoryAllocation, source.name, source_location::current(),
                       "`allocate` returned success and a null address, which counts as that: "
                       "return an address, or an error");
    }
    memory_->data = data_;
    made_blocks::note_device_block(data_, bytes);
  });
}

// Never dropped.
struct ESCROW_LOCAL device_block::leaked_share {
  std::shared_ptr<memory> its;
  leaked_share* older = nullptr;
};

// Whoever has a share knows nothing of the work outside of its graph.
device_block::~device_block() {
  if (memory_ == nullptr) return;
  tell_handed_over(memory_.get());
  if (memory_.use_count() == 1) return;
  cudaError_t const waited = device_store::global().wait_for_uses(memory_->device);
  if (waited == cudaSuccess || is_sticky(waited)) return;
  if (deleter_core* const told = deleter_core::global_or_null()) {
    told->report(cuda_error(waited, "device_block::~device_block", source_location(),
                            "a graph has the memory, too, and work may use it: it is leaked; "
                            "retire() its owner on the stream"));
  }
  auto* const share = new (std::nothrow) leaked_share{memory_};
  static std::atomic<leaked_share*> newest{nullptr};  // relaxed: for nobody but a leak checker
  if (share != nullptr) share->older = newest.exchange(share, std::memory_order_relaxed);
}

}  // namespace escrow::inline v0_2
