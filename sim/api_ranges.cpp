// SPDX-License-Identifier: Apache-2.0
// The driver's virtual memory management. It harms no capture, in any mode (measured).
#include "address_ranges.hpp"
#include "apart.hpp"
#include "driver_call.hpp"

#include <sys/mman.h>

#include <algorithm>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

constexpr std::size_t step = std::size_t{2} << 20;

bool is_of_device(state const& s, CUmemAllocationProp const* of) {
  return of != nullptr && of->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         of->location.type == CU_MEM_LOCATION_TYPE_DEVICE && of->location.id >= 0 &&
         of->location.id < s.how.devices;
}

// The range that has all of these addresses; null if there is none.
reserved_range* find_range(state& s, CUdeviceptr address, std::size_t bytes) {
  auto const after = s.ranges.upper_bound(address);
  if (bytes == 0 || bytes % step != 0 || after == s.ranges.begin()) return nullptr;
  auto& [begin, range] = *std::prev(after);
  return address % step == 0 && address + bytes <= begin + range.bytes ? &range : nullptr;
}

void protect(CUdeviceptr address, std::size_t bytes, bool is_mapped) {
  auto* const at = reinterpret_cast<void*>(address);
  if (is_mapped) {
    ::mprotect(at, bytes, PROT_READ | PROT_WRITE);
    add_device_pages(at, bytes, bytes);
  } else {
    remove_device_pages(at);
    ::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuda_driver_granularity(std::size_t* told, CUmemAllocationProp const* of,
                                         CUmemAllocationGranularity_flags) {
  return driver_call("cuMemGetAllocationGranularity", [&](api_call& c) {
    if (told == nullptr || !is_of_device(c.s, of)) return CUDA_ERROR_INVALID_VALUE;
    *told = step;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t,
                                     CUdeviceptr, unsigned long long) {
  return driver_call("cuMemAddressReserve", [&](api_call& c) {
    if (address == nullptr || bytes == 0 || bytes % step != 0) return CUDA_ERROR_INVALID_VALUE;
    // More, for the alignment.
    void* const found = ::mmap(nullptr, bytes + step, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto const begin = reinterpret_cast<CUdeviceptr>(found);
    *address = (begin + step - 1) / step * step;
    if (*address != begin) ::munmap(found, *address - begin);
    ::munmap(reinterpret_cast<void*>(*address + bytes), begin + step - *address);
    c.s.ranges.emplace(*address, reserved_range{.bytes = bytes, .pieces = {}});
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_free_range(CUdeviceptr address, std::size_t bytes) {
  return driver_call("cuMemAddressFree", [&](api_call& c) {
    auto const found = c.s.ranges.find(address);
    if (found == c.s.ranges.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!found->second.pieces.empty()) return CUDA_ERROR_INVALID_VALUE;
    ::munmap(reinterpret_cast<void*>(address), bytes);
    c.s.used.forget(reinterpret_cast<void const*>(address), bytes);
    c.s.ranges.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                    CUmemAllocationProp const* of, unsigned long long) {
  return driver_call("cuMemCreate", [&](api_call& c) {
    if (handle == nullptr || bytes == 0 || bytes % step != 0 || !is_of_device(c.s, of)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto const* const made = make_physical(bytes, of->location.id);
    if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = made->handle;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_release_memory(CUmemGenericAllocationHandle handle) {
  return driver_call("cuMemRelease", [&](api_call& c) {
    auto const found = c.s.physical.find(handle);
    if (found == c.s.physical.end() || !found->second.is_held) return CUDA_ERROR_INVALID_VALUE;
    found->second.is_held = false;
    drop_physical(handle);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long) {
  return driver_call("cuMemMap", [&](api_call& c) {
    auto* const range = find_range(c.s, address, bytes);
    auto const found = c.s.physical.find(handle);
    if (range == nullptr || found == c.s.physical.end() || offset != 0 ||
        bytes != found->second.bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto const overlaps = [&](auto const& each) {
      return each.first < address + bytes && address < each.first + each.second.bytes;
    };
    if (std::ranges::any_of(range->pieces, overlaps)) return CUDA_ERROR_INVALID_VALUE;
    range->pieces.emplace(address, mapped_piece{bytes, handle, found->second.device});
    ++found->second.maps;
    return CUDA_SUCCESS;
  });
}

// Work that uses it meanwhile fails.
CUresult CUDAAPI cuda_driver_unmap(CUdeviceptr address, std::size_t bytes) {
  return driver_call("cuMemUnmap", [&](api_call& c) {
    auto* const range = find_range(c.s, address, bytes);
    auto const found =
        range == nullptr ? decltype(range->pieces.find(address)){} : range->pieces.find(address);
    if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (found == range->pieces.end()) return CUDA_SUCCESS;  // nothing is there
    if (found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    auto const handle = found->second.handle;
    protect(address, bytes, false);
    range->pieces.erase(found);
    --c.s.physical.at(handle).maps;
    drop_physical(handle);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuda_driver_set_access(CUdeviceptr address, std::size_t bytes,
                                        CUmemAccessDesc const* of, std::size_t count) {
  return driver_call("cuMemSetAccess", [&](api_call& c) {
    auto* const range = find_range(c.s, address, bytes);
    auto const is_right = [&](CUmemAccessDesc const& each) {
      return each.location.type == CU_MEM_LOCATION_TYPE_DEVICE && each.location.id >= 0 &&
             each.location.id < c.s.how.devices;
    };
    if (range == nullptr || of == nullptr || !std::all_of(of, of + count, is_right) ||
        !range->pieces.contains(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    protect(address, bytes, true);
    return CUDA_SUCCESS;
  });
}
}
