// SPDX-License-Identifier: Apache-2.0
// The allocator of TVM-FFI's environment.
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "escrow/internal/never_destroyed.hpp"
#include "escrow/tensor_allocator.hpp"

namespace escrow::inline v0_2 {

// The allocators of all devices.
struct tvm_ffi_memory {
  tvm_ffi_memory(pool_options its_options, scratch_policy its_policy)
      : options(std::move(its_options)), policy(std::move(its_policy)) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    devices.resize(static_cast<std::size_t>(count));
  }

  stream_allocator on(int device) {
    if (device < 0 || static_cast<std::size_t>(device) >= devices.size()) {
      throw cuda_error(cudaErrorInvalidDevice, "use_for_tvm_ffi::memory");
    }
    std::lock_guard const lock(mutex);
    auto& its = devices[static_cast<std::size_t>(device)];
    if (!its) {
      options.device = device;
      its.emplace(options, policy);
    }
    return *its;
  }

  std::mutex mutex;  // guards `options` and the elements of `devices`
  pool_options options;
  scratch_policy policy;
  std::vector<std::optional<stream_allocator>> devices;
  DLPackManagedTensorAllocator previous = nullptr;  // for other devices; written before any use
};

namespace {

// TVM-FFI's function has no argument for it. Never destroyed: a static use_for_tvm_ffi of a program
// may end after the statics of this file.
struct current_memory {
  std::mutex mutex;  // guards `memory`
  std::shared_ptr<tvm_ffi_memory> memory;
};
constinit never_destroyed<current_memory> in_use;

using set_error = void (*)(void* error, char const* kind, char const* text);

int allocate(DLTensor* prototype, DLManagedTensorVersioned** made, void* error, set_error report) {
  char const* kind = "MemoryError";
  try {
    std::shared_ptr<tvm_ffi_memory> memory;
    {
      std::lock_guard const lock(in_use->mutex);
      memory = in_use->memory;
    }
    DLDevice const device = prototype->device;
    if (memory != nullptr && device.device_type == kDLCUDA) {
      void* const stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
      *made = make_dlpack_tensor(memory->on(device.device_id), static_cast<cudaStream_t>(stream),
                                 *prototype, source_location());
      return 0;
    }
    if (memory != nullptr && memory->previous != nullptr) {
      return memory->previous(prototype, made, error, report);
    }
    report(error, "RuntimeError",
           memory == nullptr ? "use_for_tvm_ffi: it has ended; set another allocator"
                             : "use_for_tvm_ffi: `device` is not a CUDA device, and there was no "
                               "allocator before; set one for it first");
    return -1;
  } catch (std::bad_alloc const&) {
    report(error, kind, "use_for_tvm_ffi: out of host memory");
  } catch (pool_exhausted const& failed) {
    report(error, kind, failed.what());
  } catch (cuda_error const& failed) {
    if (failed.status() != cudaErrorMemoryAllocation) kind = "RuntimeError";
    report(error, kind, failed.what());
  } catch (std::exception const& failed) {
    report(error, "RuntimeError", failed.what());
  }
  return -1;
}

// For all threads, or for this one; what was this thread's.
DLPackManagedTensorAllocator set(DLPackManagedTensorAllocator allocator, bool is_for_all) {
  DLPackManagedTensorAllocator previous = nullptr;
  if (TVMFFIEnvSetDLPackManagedTensorAllocator(allocator, is_for_all ? 1 : 0, &previous) != 0) {
    throw std::runtime_error("use_for_tvm_ffi: TVMFFIEnvSetDLPackManagedTensorAllocator failed");
  }
  return previous;
}

}  // namespace

use_for_tvm_ffi::use_for_tvm_ffi(pool_options const& options, scratch_policy const& policy)
    : memory_(std::make_shared<tvm_ffi_memory>(options, policy)) {
  std::lock_guard const lock(in_use->mutex);
  if (in_use->memory != nullptr) {
    throw usage_error("use_for_tvm_ffi", "there is another one", "destroy that one first");
  }
  previous_here_ = set(nullptr, false);
  previous_of_all_ = TVMFFIEnvGetDLPackManagedTensorAllocator();  // as this thread has none now
  memory_->previous = previous_here_ != nullptr ? previous_here_ : previous_of_all_;
  set(&allocate, true);
  in_use->memory = memory_;
}

use_for_tvm_ffi::~use_for_tvm_ffi() {
  try {
    set(previous_of_all_, true);
    set(previous_here_, false);
  } catch (std::exception const&) {  // allocations fail from now on
  }
  std::lock_guard const lock(in_use->mutex);
  in_use->memory = nullptr;
}

stream_allocator use_for_tvm_ffi::memory(int device) const {
  return memory_->on(device);
}

}  // namespace escrow::inline v0_2
