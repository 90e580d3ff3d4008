// SPDX-License-Identifier: Apache-2.0
// Devices: choosing, asking, waiting, resetting.
#include "api.hpp"
#include "captures.hpp"
#include "freed.hpp"
#include "memory.hpp"
#include "ops.hpp"
#include "runner.hpp"

#include <algorithm>
#include <cstring>

namespace escrow::sim::model {
namespace {

bool is_device(state const& s, int device) {
  return device >= 0 && device < s.how.devices;
}

cudaError_t attribute(cudaDeviceAttr which, int& value) {
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      value = 1024;
      break;
    case cudaDevAttrWarpSize:
      value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      value = 16;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      value = the().how.compute_capability;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      value = 0;
      break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
      value = 1;
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

void forget_allocations(state& s, int device) {
  std::erase_if(s.allocations, [&](auto const& each) {
    if (each.second.device != device || each.second.host) return false;
    uncount(s, each.second);
    delete_memory(const_cast<void*>(each.first), each.second);
    return true;
  });
}

// What the device held is gone; destructors of user objects do not run.
void forget_device(state& s, int device) {
  s.execs.lose_if([&](exec_state const& each) { return each.device == device; });
  s.events.lose_if([&](event_state const& each) { return each.device == device; });
  s.streams.lose_if([&](stream_state& each) {
    if (each.device != device) return false;
    forget_stream(each);
    return true;
  });
  std::erase_if(s.callback_queue, [](auto const& each) { return each.second.of == nullptr; });
  forget_allocations(s, device);
  auto& d = s.devices[static_cast<std::size_t>(device)];
  d.fault = cudaSuccess;  // there is nothing left to drop; the process keeps its fault
  d.has_context = false;
  ++d.resets;
  std::erase_if(s.memory_pools, [&](auto const& each) {
    if (each.second->device != device) return false;
    trim(*each.second, 0);
    return true;
  });
}

}  // namespace
}  // namespace escrow::sim::model

using namespace escrow::sim::model;  // What this file gives C names to.

extern "C" {

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  return call(__func__, outlives_fault | without_context, [&](api_call& c) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = c.me.device;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  return call(__func__, outlives_fault | without_context, [&](api_call& c) {
    if (!is_device(c.s, device)) return cudaErrorInvalidDevice;
    c.me.device = c.me.chosen_device = device;
    if (c.me.pushed_count != 0) c.me.pushed[c.me.pushed_count - 1] = device;
    c.make_context();
    return fault();
  });
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call& c) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = c.s.how.devices;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  return call(__func__, ordinary, [](api_call& c) {
    auto const device = c.me.device;
    if (auto const error = forbid_all(c, device); error != cudaSuccess) return error;
    block_on(c.lock, work_of_device(device), c.name);
    return fault();
  });
}

cudaError_t CUDARTAPI cudaDeviceReset() {
  return call(__func__, outlives_fault | without_context, [](api_call& c) {
    auto const device = c.me.device;
    if (auto const error = forbid_all(c, device); error != cudaSuccess) return error;
    block_on(c.lock, work_of_device(device), c.name);
    forget_device(c.s, device);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return call(__func__, outlives_fault | without_context, [&](api_call& c) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!is_device(c.s, device)) return cudaErrorInvalidDevice;
    return attribute(attr, *value);
  });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return call(__func__, outlives_fault | without_context, [&](api_call& c) {
    if (prop == nullptr) return cudaErrorInvalidValue;
    if (!is_device(c.s, device)) return cudaErrorInvalidDevice;
    *prop = cudaDeviceProp{};
    std::strncpy(prop->name, "escrow::sim device", sizeof prop->name - 1);
    prop->totalGlobalMem = c.s.how.device_memory;
    prop->major = 9;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->multiProcessorCount = 16;
    prop->unifiedAddressing = 1;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call(__func__, ordinary, [&](api_call& c) {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    auto const used = c.s.devices[static_cast<std::size_t>(c.me.device)].bytes_in_use;
    *total = c.s.how.device_memory;
    *free = *total - std::min(*total, used);
    return cudaSuccess;
  });
}
}
