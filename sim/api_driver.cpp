// SPDX-License-Identifier: Apache-2.0
// The driver's version, and those of its functions that the runtime hands out.
#include "address_ranges.hpp"
#include "api.hpp"
#include "driver_call.hpp"
#include "driver_kernels.hpp"
#include "graphs.hpp"
#include "nodes.hpp"
#include "streams.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace escrow::sim::model {
namespace {

// The driver's functions answer in every state, make no context, and leave the runtime's last error
// alone.

CUresult CUDAAPI primary_context_state(CUdevice device, unsigned* flags, int* active) {
  auto& s = the();
  std::lock_guard const lock(s.mutex);
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= s.how.devices) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = s.devices[static_cast<std::size_t>(device)].has_context ? 1 : 0;
  return CUDA_SUCCESS;
}

// 32 bits, where capture ids have 64.
CUresult CUDAAPI graph_id(CUgraph handle, unsigned* id) {
  auto& s = the();
  std::lock_guard const lock(s.mutex);
  auto const graph = find_graph(handle);
  if (graph == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = static_cast<unsigned>(graph->id);
  return CUDA_SUCCESS;
}

// Whether the thread has no current context, of which a default stream could be.
bool lacks_context(CUstream handle) {
  if (!is_default_stream(handle)) return false;
  auto& s = the();
  std::lock_guard const lock(s.mutex);
  thread_record const& me = this_thread();
  bool const is_made = me.has_context || me.pushed_count != 0;
  return !is_made || !s.devices[static_cast<std::size_t>(me.device)].has_context;
}

int device_of(state const& s, CUcontext context) {
  int device = 0;
  while (device < s.how.devices && context_of(device) != context) ++device;
  return device;
}
// For a function of the driver that does what one of the runtime does, and is counted and let fail
// as that one. The runtime's last error stays. It answers in callbacks, too (measured); not where
// the runtime is stepped, which runs them on the program's own thread, where no library could tell.
template <class Call>
CUresult as_the_driver(Call runtime) {
  auto& me = this_thread_unchecked();
  cudaError_t const kept = me.last_error;
  auto const callbacks = me.in_callback;
  if (callbacks != 0) {
    std::lock_guard const lock(the().mutex);
    ++the().calls_in_callbacks;
    if (!the().how.stepped) me.in_callback = 0;
  }
  me.asks_driver = true;
  cudaError_t const status = runtime();
  me.asks_driver = false;
  me.in_callback = callbacks;
  me.last_error = kept;
  return static_cast<CUresult>(status);
}

// The same of a function that is given a stream.
template <class Call>
CUresult as_the_driver_on(CUstream handle, Call runtime) {
  return lacks_context(handle) ? CUDA_ERROR_INVALID_CONTEXT : as_the_driver(runtime);
}

}  // namespace

// Exported, under names that begin like those of the runtime: see escrow_sim's CMakeLists.txt.
extern "C" {
CUresult CUDAAPI cuda_driver_stream_context(CUstream handle, CUcontext* context) {
  return driver_call("cuStreamGetCtx", [&](api_call&) {
    if (context == nullptr || is_default_stream(handle)) return CUDA_ERROR_INVALID_HANDLE;
    auto const stream = find_made_stream("cuStreamGetCtx", handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = context_of(stream->device);
    return CUDA_SUCCESS;
  });
}
// Of a device's only context: never another device's.
CUresult CUDAAPI cuda_driver_context_id(CUcontext context, unsigned long long* id) {
  return driver_call("cuCtxGetId", [&](api_call& c) {
    if (context == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto const device = static_cast<std::size_t>(device_of(c.s, context));
    // Never reused: another one after each reset.
    *id = (c.s.epoch << 32) + (std::uint64_t{c.s.devices.at(device).resets} << 16) + device + 1;
    return CUDA_SUCCESS;
  });
}
// It stays: the runtime keeps one, too.
CUresult CUDAAPI cuda_driver_retain_context(CUcontext* context, CUdevice device) {
  return driver_call("cuDevicePrimaryCtxRetain", [&](api_call& c) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= c.s.how.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (fault() != cudaSuccess) return static_cast<CUresult>(fault());
    c.s.devices[static_cast<std::size_t>(device)].has_context = true;
    *context = context_of(device);
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuda_driver_release_context(CUdevice device) {
  return driver_call("cuDevicePrimaryCtxRelease", [&](api_call& c) {
    return device < 0 || device >= c.s.how.devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
  });
}
// The runtime's current device is that of the context.
CUresult CUDAAPI cuda_driver_push_context(CUcontext context) {
  return driver_call("cuCtxPushCurrent", [&](api_call& c) {
    if (c.me.pushed_count == c.me.pushed.size()) return CUDA_ERROR_OUT_OF_MEMORY;
    c.me.device = c.me.pushed[c.me.pushed_count++] = device_of(c.s, context);
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuda_driver_pop_context(CUcontext* context) {
  return driver_call("cuCtxPopCurrent", [&](api_call& c) {
    auto& count = c.me.pushed_count;
    if (count == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *context = context_of(c.me.pushed[--count]);
    c.me.device = count == 0 ? c.me.chosen_device : c.me.pushed[count - 1];
    return CUDA_SUCCESS;
  });
}
// Of a context that was pushed.
CUresult CUDAAPI cuda_driver_context_device(CUdevice* device) {
  return driver_call("cuCtxGetDevice", [&](api_call& c) {
    if (c.me.pushed_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *device = c.me.device;
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuda_driver_end_capture(CUstream handle, CUgraph* graph) {
  return as_the_driver([&] { return cudaStreamEndCapture(handle, graph); });
}
CUresult CUDAAPI cuda_driver_is_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  auto found = cudaStreamCaptureStatusNone;
  CUresult const result =
      as_the_driver_on(handle, [&] { return cudaStreamIsCapturing(handle, &found); });
  *status = static_cast<CUstreamCaptureStatus>(found);
  return result;
}
CUresult CUDAAPI cuda_driver_capture_info(CUstream handle, CUstreamCaptureStatus* status,
                                          cuuint64_t* id, CUgraph* graph, CUgraphNode const** nodes,
                                          CUgraphEdgeData const** edges, std::size_t* count) {
  auto found = cudaStreamCaptureStatusNone;
  unsigned long long its_id = 0;
  cudaGraphEdgeData const* its_edges = nullptr;
  CUresult const result = as_the_driver_on(handle, [&] {
    return cudaStreamGetCaptureInfo(handle, &found, &its_id, graph, nodes, &its_edges, count);
  });
  *status = static_cast<CUstreamCaptureStatus>(found);
  *id = its_id;
  *edges = reinterpret_cast<CUgraphEdgeData const*>(its_edges);
  return result;
}
CUresult CUDAAPI cuda_driver_stream_id(CUstream handle, unsigned long long* id) {
  return as_the_driver_on(handle, [&] { return cudaStreamGetId(handle, id); });
}
CUresult CUDAAPI cuda_driver_record(CUevent event, CUstream handle) {
  return as_the_driver_on(handle, [&] { return cudaEventRecord(event, handle); });
}
CUresult CUDAAPI cuda_driver_node_type(CUgraphNode node, CUgraphNodeType* type) {
  auto found = cudaGraphNodeTypeEmpty;
  CUresult const result = as_the_driver([&] { return cudaGraphNodeGetType(node, &found); });
  *type = static_cast<CUgraphNodeType>(found);
  return result;
}
CUresult CUDAAPI cuda_driver_node_dependencies(CUgraphNode node, CUgraphNode* nodes,
                                               CUgraphEdgeData* edges, std::size_t* count) {
  auto* const its_edges = reinterpret_cast<cudaGraphEdgeData*>(edges);
  return as_the_driver([&] { return cudaGraphNodeGetDependencies(node, nodes, its_edges, count); });
}
CUresult CUDAAPI cuda_driver_exchange_mode(CUstreamCaptureMode* mode) {
  auto its = static_cast<cudaStreamCaptureMode>(*mode);
  CUresult const result = as_the_driver([&] { return cudaThreadExchangeStreamCaptureMode(&its); });
  *mode = static_cast<CUstreamCaptureMode>(its);
  return result;
}
CUresult CUDAAPI cuda_driver_device_attribute(int* value, CUdevice_attribute which,
                                              CUdevice device) {
  return driver_call("cuDeviceGetAttribute", [&](api_call& c) {
    if (value == nullptr || device < 0 || device >= c.s.how.devices)
      return CUDA_ERROR_INVALID_VALUE;
    if (which != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
      return CUDA_ERROR_INVALID_VALUE;
    *value = c.s.how.has_virtual_memory ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
}

namespace {

int driver_version(state const& s) {
  return s.how.driver_version == 0 ? CUDART_VERSION : s.how.driver_version;
}

// Null if a driver of the version that runs, or that was asked for, has no such function.
void* find_function(std::string_view symbol, int version) {
  struct entry {
    std::string_view name;
    int since;
    void* function;
  };
  static std::array const known{
      entry{"cuDevicePrimaryCtxGetState", 7000, reinterpret_cast<void*>(&primary_context_state)},
      entry{"cuGraphGetId", 13010, reinterpret_cast<void*>(&graph_id)},
      entry{"cuGraphKernelNodeGetParams", 12000,
            reinterpret_cast<void*>(&cuda_driver_kernel_params)},
      entry{"cuGraphKernelNodeGetAttribute", 11080,
            reinterpret_cast<void*>(&cuda_driver_kernel_attribute)},
      entry{"cuFuncGetName", 12030, reinterpret_cast<void*>(&cuda_driver_function_name)},
      entry{"cuKernelGetName", 12030, reinterpret_cast<void*>(&cuda_driver_kernel_name)},
      entry{"cuFuncGetParamInfo", 12040, reinterpret_cast<void*>(&cuda_driver_function_parameter)},
      entry{"cuKernelGetParamInfo", 12040, reinterpret_cast<void*>(&cuda_driver_kernel_parameter)},
      entry{"cuPointerGetAttributes", 7000,
            reinterpret_cast<void*>(&cuda_driver_pointer_attributes)},
      entry{"cuStreamEndCapture", 10000, reinterpret_cast<void*>(&cuda_driver_end_capture)},
      entry{"cuStreamIsCapturing", 10000, reinterpret_cast<void*>(&cuda_driver_is_capturing)},
      entry{"cuStreamGetCaptureInfo", 12030, reinterpret_cast<void*>(&cuda_driver_capture_info)},
      entry{"cuStreamGetId", 12000, reinterpret_cast<void*>(&cuda_driver_stream_id)},
      entry{"cuEventRecord", 2000, reinterpret_cast<void*>(&cuda_driver_record)},
      entry{"cuGraphNodeGetType", 10000, reinterpret_cast<void*>(&cuda_driver_node_type)},
      entry{"cuGraphNodeGetDependencies", 12030,
            reinterpret_cast<void*>(&cuda_driver_node_dependencies)},
      entry{"cuThreadExchangeStreamCaptureMode", 10010,
            reinterpret_cast<void*>(&cuda_driver_exchange_mode)},
      entry{"cuDeviceGetAttribute", 2000, reinterpret_cast<void*>(&cuda_driver_device_attribute)},
      entry{"cuMemGetAllocationGranularity", 10020,
            reinterpret_cast<void*>(&cuda_driver_granularity)},
      entry{"cuMemAddressReserve", 10020, reinterpret_cast<void*>(&cuda_driver_reserve)},
      entry{"cuMemAddressFree", 10020, reinterpret_cast<void*>(&cuda_driver_free_range)},
      entry{"cuMemCreate", 10020, reinterpret_cast<void*>(&cuda_driver_create)},
      entry{"cuMemRelease", 10020, reinterpret_cast<void*>(&cuda_driver_release_memory)},
      entry{"cuMemMap", 10020, reinterpret_cast<void*>(&cuda_driver_map)},
      entry{"cuMemUnmap", 10020, reinterpret_cast<void*>(&cuda_driver_unmap)},
      entry{"cuMemSetAccess", 10020, reinterpret_cast<void*>(&cuda_driver_set_access)},
      entry{"cuStreamGetCtx", 9020, reinterpret_cast<void*>(&cuda_driver_stream_context)},
      entry{"cuCtxGetId", 12000, reinterpret_cast<void*>(&cuda_driver_context_id)},
      entry{"cuDevicePrimaryCtxRetain", 7000, reinterpret_cast<void*>(&cuda_driver_retain_context)},
      entry{"cuDevicePrimaryCtxRelease", 11000,
            reinterpret_cast<void*>(&cuda_driver_release_context)},
      entry{"cuCtxPushCurrent", 4000, reinterpret_cast<void*>(&cuda_driver_push_context)},
      entry{"cuCtxPopCurrent", 4000, reinterpret_cast<void*>(&cuda_driver_pop_context)},
      entry{"cuCtxGetDevice", 2000, reinterpret_cast<void*>(&cuda_driver_context_device)}};
  for (entry const& each : known) {
    if (each.name == symbol && each.since <= version) return each.function;
  }
  return nullptr;
}

}  // namespace
}  // namespace escrow::sim::model

using namespace escrow::sim::model;  // What this file gives C names to.

extern "C" {

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call& c) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = driver_version(c.s);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(char const* symbol, void** function,
                                                       unsigned int version,
                                                       unsigned long long flags,
                                                       cudaDriverEntryPointQueryResult* result) {
  return call(__func__, outlives_fault | without_context, [&](api_call& c) {
    if (symbol == nullptr || function == nullptr || flags > cudaEnablePerThreadDefaultStream)
      return cudaErrorInvalidValue;
    *function = find_function(symbol, std::min(driver_version(c.s), static_cast<int>(version)));
    bool const is_there = *function != nullptr;
    if (result != nullptr)
      *result = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return is_there ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
}
