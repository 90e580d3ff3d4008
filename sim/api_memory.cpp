// SPDX-License-Identifier: Apache-2.0
// Memory.
#include "api.hpp"
#include "captures.hpp"
#include "graph_memory.hpp"
#include "memory.hpp"
#include "operands.hpp"
#include "ops.hpp"
#include "races.hpp"
#include "runner.hpp"
#include "streams.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

cudaError_t allocate(char const* name, void** out, std::size_t bytes, bool host) {
  return call(name, ordinary, [&](api_call& c) {
    if (out == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    *out = bytes == 0 ? nullptr : allocate_memory(bytes, c.me.device, host);
    return bytes != 0 && *out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

CUmemPoolHandle_st& default_pool_of(state& s, int device) {
  return s.devices[static_cast<std::size_t>(device)].pool;
}

// Meanwhile launches are blocked: see wait_for_frees().
void wait_for_device(api_call& c, int device) {
  ++c.s.waiting_frees;
  block_on(c.lock, work_of_device(device), c.name);
  --c.s.waiting_frees;
  notify();
}

// Frees after all work of the memory's device, as CUDA does.
cudaError_t free_now(char const* name, void* address, bool host) {
  return call(name, frees, [&](api_call& c) {
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    if (address == nullptr) return cudaSuccess;
    refuse_free(name, address);
    if (auto const block = host ? nullptr : find_block(address)) {
      if (auto const error = book_free(*block); error != cudaSuccess) return error;
      refuse_used_after_retire(name, address, block->params.bytesize);
      wait_for_device(c, block->params.poolProps.location.id);
      vanish(*block);
      return cudaSuccess;
    }
    auto const found = c.s.allocations.find(address);
    if (found == c.s.allocations.end() || found->second.host != host || found->second.freeing) {
      return cudaErrorInvalidValue;
    }
    found->second.freeing = true;
    refuse_used_after_retire(name, address, found->second.bytes);
    // Of a pool, CUDA leaves the waiting to the caller.
    if (found->second.pool == nullptr) wait_for_device(c, found->second.device);
    free_memory(address);
    return cudaSuccess;
  });
}

// Another stream's allocation is unsafe during a capture; the capturing stream's own becomes a
// node.
cudaError_t forbid_on_other_streams(api_call& c, cudaStream_t handle,
                                    std::shared_ptr<stream_state>& stream) {
  if (auto const error = get_stream(c, handle, stream); error != cudaSuccess) return error;
  return stream->capturing == nullptr ? forbid_unsafe(c) : cudaSuccess;
}

// In stream order it begins or ends.
void note(api_call& c, stream_state const& stream, access_kind kind, void const* address,
          std::size_t bytes) {
  note_accesses(
      c.name, stream,
      {{.begin = reinterpret_cast<std::uintptr_t>(address), .bytes = bytes, .kind = kind}});
}

cudaError_t allocate_from(api_call& c, std::shared_ptr<stream_state> const& stream,
                          CUmemPoolHandle_st& pool, std::size_t bytes, void** address) {
  *address = bytes == 0 ? nullptr : allocate_memory(bytes, pool, *stream);
  if (bytes == 0) return cudaSuccess;
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  ++stream->at.own.number;  // what uses it comes behind this
  note(c, *stream, access_kind::allocates, *address, bytes);
  return cudaSuccess;
}

cudaError_t capture_alloc(api_call& c, stream_state& stream, std::size_t bytes, void** address) {
  if (stream.capturing->invalidated) return cudaErrorStreamCaptureInvalidated;
  cudaMemAllocNodeParams params{};
  params.poolProps.allocType = cudaMemAllocationTypePinned;
  params.poolProps.location = {cudaMemLocationTypeDevice, stream.device};
  params.bytesize = bytes;
  work what;
  auto const error = make_alloc_work(*stream.capturing->graph, params, what);
  if (error != cudaSuccess) return error;
  *address = params.dptr;
  return capture_work(c, stream, cudaGraphNodeTypeMemAlloc, std::move(what));
}

cudaError_t capture_free(api_call& c, stream_state& stream, void const* address) {
  if (stream.capturing->invalidated) return cudaErrorStreamCaptureInvalidated;
  work what;
  auto const error = make_graph_free_work(*stream.capturing->graph, address, what);
  if (error != cudaSuccess) return error;
  return capture_work(c, stream, cudaGraphNodeTypeMemFree, std::move(what));
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** address, std::size_t bytes) {
  return allocate(__func__, address, bytes, false);
}

cudaError_t CUDARTAPI cudaFree(void* address) {
  return free_now(__func__, address, false);
}

cudaError_t CUDARTAPI cudaMallocHost(void** address, std::size_t bytes) {
  return allocate(__func__, address, bytes, true);
}

cudaError_t CUDARTAPI cudaHostAlloc(void** address, std::size_t bytes, unsigned int) {
  return allocate(__func__, address, bytes, true);
}

cudaError_t CUDARTAPI cudaFreeHost(void* address) {
  return free_now(__func__, address, true);
}

cudaError_t CUDARTAPI cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t handle) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (address == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_on_other_streams(c, handle, stream); error != cudaSuccess)
      return error;
    if (stream->capturing != nullptr) {
      return capture_alloc(c, *stream, bytes, address);
    }
    if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
    return allocate_from(c, stream, default_pool_of(c.s, stream->device), bytes, address);
  });
}

cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** address, std::size_t bytes, cudaMemPool_t pool,
                                              cudaStream_t handle) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<stream_state> stream;
    if (address == nullptr || pool == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_on_other_streams(c, handle, stream); error != cudaSuccess)
      return error;
    if (stream->capturing != nullptr) return capture_alloc(c, *stream, bytes, address);
    if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
    return allocate_from(c, stream, *pool, bytes, address);
  });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* address, cudaStream_t handle) {
  return call(__func__, frees, [&](api_call& c) {
    auto const stream = find_stream(c, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capturing == nullptr) {
      if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    }
    if (address == nullptr) return cudaSuccess;
    refuse_free(c.name, address);
    if (stream->capturing != nullptr) return capture_free(c, *stream, address);
    if (auto const error = forbid_legacy(c, *stream); error != cudaSuccess) return error;
    if (auto const block = find_block(address)) {
      if (auto const error = book_free(*block); error != cudaSuccess) return error;
      auto const o = append(stream, graph_free_work{block});
      note(c, *stream, access_kind::frees, address, block->params.bytesize);
      release(o);
      return cudaSuccess;
    }
    auto const found = c.s.allocations.find(address);
    if (found == c.s.allocations.end() || found->second.host || found->second.freeing)
      return cudaErrorInvalidValue;
    found->second.freeing = true;
    found->second.freed_on = stream->id;
    refuse_used_after_retire(c.name, address, found->second.bytes);
    auto const o = append(stream, free_work{address});
    note(c, *stream, access_kind::frees, address, found->second.bytes);
    release(o);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* out, void const* address) {
  return call(__func__, ordinary, [&](api_call&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    // CUDA does not know the addresses of graphs' memory here.
    auto const place = find_block_around(address) != nullptr ? memory_place{} : place_of(address);
    auto* const pointer = const_cast<void*>(address);
    *out = {};
    out->type = place.type;
    out->device = place.device;
    out->devicePointer = place.type == cudaMemoryTypeUnregistered ? nullptr : pointer;
    out->hostPointer = place.type == cudaMemoryTypeDevice ? nullptr : pointer;
    return cudaSuccess;
  });
}
}
