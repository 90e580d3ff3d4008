// SPDX-License-Identifier: Apache-2.0
// What graph nodes do: work made from CUDA's parameters, and what an exec's node may change to.
#include "nodes.hpp"

#include "graph_memory.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "overruns.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace escrow::sim::model {
namespace {

// Of headers since CUDA 13.
constexpr int nvlink_centric_scheduling = 16;

bool is_empty(cudaExtent const& extent) {
  return extent.width == 0 || extent.height == 0 || extent.depth == 0;
}

bool is_flat(cudaExtent const& extent) {
  return extent.height == 1 && extent.depth == 1;
}

// A row must fit between the beginning of one and that of the next.
bool fits(cudaPitchedPtr const& memory, cudaPos const& position, cudaExtent const& extent) {
  return is_flat(extent) || position.x + extent.width <= memory.pitch;
}

// The last byte of its last row is beyond the memory of the first one.
bool ends_beyond(char const* operand, cudaPitchedPtr const& memory, cudaPos const& position,
                 cudaExtent const& extent) {
  auto const to = [&](std::size_t x, std::size_t y, std::size_t z) {
    return (z * memory.ysize + y) * memory.pitch + x;
  };
  auto const begin = to(position.x, position.y, position.z);
  auto const end =
      to(position.x + extent.width, position.y + extent.height - 1, position.z + extent.depth - 1);
  void const* const first = static_cast<char const*>(memory.ptr) + begin;
  refuse_overrun(operand, first, end - begin);
  return is_beyond(first, end - begin);
}

std::size_t bytes_of(cudaMemsetParams const& p) {
  if (p.width == 0 || p.height == 0) return 0;
  return (p.height - 1) * p.pitch + p.width * p.elementSize;
}

bool is_aligned(cudaMemsetParams const& p) {
  auto const address = reinterpret_cast<std::uintptr_t>(p.dst);
  return address % p.elementSize == 0 && (p.height <= 1 || p.pitch % p.elementSize == 0);
}

std::shared_ptr<event_state> find_event(cudaEvent_t handle) {
  return the().events.find(handle);
}

bool is_inside(graph_state const& graph, graph_state const& other) {
  for (auto const* each = &graph; each != nullptr; each = each->parent) {
    if (each == &other) return true;
  }
  return false;
}

// Host memory may take the place of device memory and the other way round.
bool is_on_same_device(memory_place const& old, memory_place const& now) {
  constexpr auto on_device = cudaMemoryTypeDevice;
  return old.type != on_device || now.type != on_device || old.device == now.device;
}

// The kind is compared as it was given: an explicit one does not replace cudaMemcpyDefault, though
// it may mean the same.
bool replaces(copy_work const& old, copy_work const& now) {
  return old.shape.kind == now.shape.kind && is_on_same_device(old.to, now.to) &&
         is_on_same_device(old.from, now.from);
}

bool replaces(fill_work const& old, fill_work const& now) {
  auto const& a = old.shape;
  auto const& b = now.shape;
  if (old.to != now.to) return false;
  if (a.height <= 1 && b.height <= 1) return true;
  return a.height == b.height && a.width == b.width && a.pitch == b.pitch &&
         a.elementSize == b.elementSize;
}

// Of attributes that are a number.
int attribute_of(kernel_work const& kernel, int id) {
  auto const found = kernel.attributes.find(id);
  return found == kernel.attributes.end() ? 0 : found->second.cooperative;
}

bool replaces(kernel_work const& old, kernel_work const& now) {
  return old.device == now.device &&
         attribute_of(old, cudaLaunchAttributeCooperative) ==
             attribute_of(now, cudaLaunchAttributeCooperative) &&
         attribute_of(old, nvlink_centric_scheduling) ==
             attribute_of(now, nvlink_centric_scheduling);
}

bool replaces(alloc_work const& old, alloc_work const& now) {
  return old.block == now.block;
}

bool replaces(graph_free_work const& old, graph_free_work const& now) {
  return old.block == now.block;
}

bool replaces(conditional_work const& old, conditional_work const& now) {
  return old.type == now.type && old.bodies.size() == now.bodies.size();
}

// Clusters of that size, and a grid.
template <class Size>
bool divides(Size const& cluster, dim3 const& grid) {
  auto const [x, y, z] = cluster;
  constexpr unsigned blocks_max = 8;
  return x != 0 && y != 0 && z != 0 && x * y * z <= blocks_max && grid.x % x == 0 &&
         grid.y % y == 0 && grid.z % z == 0;
}

template <class Other>
bool replaces(Other const&, Other const&) {
  return true;
}

}  // namespace

void refuse_destroyed(char const* call, cudaGraphNode_t node) {
  if (node == nullptr || node->graph != nullptr) return;
  give_up(
      std::string(call) +
      " with a node that was destroyed: CUDA's driver reads freed memory; use a node of a graph "
      "no longer than it is there");
}

cudaError_t make_work(cudaKernelNodeParams const& params, work& what) {
  kernel_work made;
  auto const error = make_kernel_work(params, made);
  what = std::move(made);
  return error;
}

cudaError_t make_work(cudaMemsetParams const& p, work& what) {
  auto const error = make_fill(p, what);
  return error == cudaSuccess && is_beyond(p.dst, bytes_of(p)) ? cudaErrorInvalidValue : error;
}

cudaError_t make_fill(cudaMemsetParams const& p, work& what) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return cudaErrorInvalidValue;
  bool const is_nothing = p.width == 0 || p.height == 0;
  if ((p.dst == nullptr && !is_nothing) || !is_aligned(p)) return cudaErrorInvalidValue;
  if (p.height > 1 && p.pitch < p.width * p.elementSize) return cudaErrorInvalidValue;
  refuse_overrun("a fill of", p.dst, bytes_of(p));
  what = fill_work{p, place_of(p.dst)};
  return cudaSuccess;
}

// Whether pageable memory is where the direction says that memory of a device is. Whatever else it
// says that is not so is ignored (measured).
bool is_of_pageable(copy_work const& copy) {
  constexpr cudaMemoryType pageable = cudaMemoryTypeUnregistered;
  cudaMemcpyKind const kind = copy.shape.kind;
  bool const is_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  bool const is_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  return (is_from_device && copy.from.type == pageable) ||
         (is_to_device && copy.to.type == pageable);
}

cudaError_t make_work(cudaMemcpy3DParms const& p, work& what) {
  if (p.kind < cudaMemcpyHostToHost || p.kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if (p.srcArray != nullptr || p.dstArray != nullptr) return cudaErrorNotSupported;
  if (!is_empty(p.extent)) {
    if (p.srcPtr.ptr == nullptr || p.dstPtr.ptr == nullptr) return cudaErrorInvalidValue;
    if (!fits(p.srcPtr, p.srcPos, p.extent) || !fits(p.dstPtr, p.dstPos, p.extent))
      return cudaErrorInvalidPitchValue;
    if (ends_beyond("a copy from", p.srcPtr, p.srcPos, p.extent) ||
        ends_beyond("a copy to", p.dstPtr, p.dstPos, p.extent))
      return cudaErrorInvalidValue;
  }
  copy_work made{p, place_of(p.dstPtr.ptr), place_of(p.srcPtr.ptr)};
  if (!is_empty(p.extent) && is_of_pageable(made)) return cudaErrorInvalidValue;
  what = made;
  return cudaSuccess;
}

cudaError_t make_work(cudaHostNodeParams const& params, work& what) {
  if (params.fn == nullptr) return cudaErrorInvalidValue;
  what = host_work{params.fn, params.userData};
  return cudaSuccess;
}

cudaError_t make_record_work(cudaEvent_t event, work& what) {
  record_work made{find_event(event)};
  if (made.event == nullptr) return cudaErrorInvalidValue;
  what = std::move(made);
  return cudaSuccess;
}

cudaError_t make_wait_work(cudaEvent_t event, work& what) {
  wait_work made{find_event(event)};
  if (made.event == nullptr) return cudaErrorInvalidValue;
  what = std::move(made);
  return cudaSuccess;
}

cudaError_t make_child_work(graph_state const& graph, cudaGraph_t handle, bool moves, work& what) {
  auto const child = find_graph(handle);
  if (child == nullptr || child->moved) return cudaErrorInvalidValue;
  if (moves && (child->embedded || child->open || is_inside(graph, *child)))
    return cudaErrorInvalidValue;
  if (has_conditionals(*child) || (!moves && has_memory_nodes(*child)))
    return cudaErrorNotSupported;
  auto const inside = moves ? child : clone(*child, true);
  inside->embedded = true;
  inside->moved = moves;
  what = child_work{inside};
  return cudaSuccess;
}

cudaError_t make_work(cudaGraphNodeParams const& p, work& what) {
  switch (p.type) {
    case cudaGraphNodeTypeKernel: {
      auto const& k = p.kernel;
      return make_work(cudaKernelNodeParams{k.func, k.gridDim, k.blockDim, k.sharedMemBytes,
                                            k.kernelParams, k.extra},
                       what);
    }
    case cudaGraphNodeTypeMemset: {
      auto const& m = p.memset;
      return make_work(cudaMemsetParams{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height},
                       what);
    }
    case cudaGraphNodeTypeMemcpy:
      return p.memcpy.flags != 0 ? cudaErrorInvalidValue : make_work(p.memcpy.copyParams, what);
    case cudaGraphNodeTypeHost:
      return make_work(cudaHostNodeParams{p.host.fn, p.host.userData}, what);
    case cudaGraphNodeTypeEventRecord:
      return make_record_work(p.eventRecord.event, what);
    case cudaGraphNodeTypeWaitEvent:
      return make_wait_work(p.eventWait.event, what);
    default:
      return cudaErrorNotSupported;
  }
}

cudaMemcpy3DParms linear(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
  return rows({to, bytes, bytes, 1}, {const_cast<void*>(from), bytes, bytes, 1}, bytes, 1, kind);
}

cudaMemcpy3DParms rows(cudaPitchedPtr to, cudaPitchedPtr from, std::size_t width,
                       std::size_t height, cudaMemcpyKind kind) {
  cudaMemcpy3DParms result{};
  result.srcPtr = from;
  result.dstPtr = to;
  result.extent = {width, height, 1};
  result.kind = kind;
  return result;
}

bool may_become(work const& old, work const& now) {
  if (old.index() != now.index()) return false;
  return std::visit(
      [&](auto const& before) {
        return replaces(before, std::get<std::decay_t<decltype(before)>>(now));
      },
      old);
}

cudaGraphExecUpdateResult refusal(work const& old, work const& now) {
  auto const* const before = std::get_if<kernel_work>(&old);
  auto const* const after = std::get_if<kernel_work>(&now);
  if (before == nullptr || after == nullptr) return cudaGraphExecUpdateErrorParametersChanged;
  return before->device != after->device ? cudaGraphExecUpdateErrorUnsupportedFunctionChange
                                         : cudaGraphExecUpdateErrorAttributesChanged;
}

bool read_attribute(kernel_work const& kernel, int id, cudaLaunchAttributeValue& value) {
  constexpr std::array readable{cudaLaunchAttributeAccessPolicyWindow,
                                cudaLaunchAttributeCooperative,
                                cudaLaunchAttributeClusterDimension,
                                cudaLaunchAttributeClusterSchedulingPolicyPreference,
                                cudaLaunchAttributePriority,
                                cudaLaunchAttributeMemSyncDomainMap,
                                cudaLaunchAttributeMemSyncDomain,
                                cudaLaunchAttributeDeviceUpdatableKernelNode,
                                cudaLaunchAttributePreferredSharedMemoryCarveout};
  if (std::ranges::find(readable, id) == readable.end()) return false;
  value = {};
  if (id == cudaLaunchAttributeClusterSchedulingPolicyPreference)
    value.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
  if (id == cudaLaunchAttributeMemSyncDomainMap) value.memSyncDomainMap.remote = 1;
  auto const found = kernel.attributes.find(id);
  if (found != kernel.attributes.end()) value = found->second;
  return true;
}

cudaError_t write_attribute(kernel_work& kernel, int id, cudaLaunchAttributeValue value) {
  constexpr std::array writable{int{cudaLaunchAttributeAccessPolicyWindow},
                                int{cudaLaunchAttributeCooperative},
                                int{cudaLaunchAttributeClusterDimension},
                                int{cudaLaunchAttributeClusterSchedulingPolicyPreference},
                                int{cudaLaunchAttributePriority},
                                int{cudaLaunchAttributeMemSyncDomainMap},
                                int{cudaLaunchAttributeMemSyncDomain},
                                int{cudaLaunchAttributeDeviceUpdatableKernelNode},
                                int{cudaLaunchAttributePreferredSharedMemoryCarveout},
                                nvlink_centric_scheduling};
  constexpr int highest_priority = -5;
  if (std::ranges::find(writable, id) == writable.end()) return cudaErrorInvalidValue;
  if (id == cudaLaunchAttributePriority)
    value.priority = std::clamp(value.priority, highest_priority, 0);
  auto const& size = value.clusterDim;
  if (id == cudaLaunchAttributeClusterDimension && size.x + size.y + size.z == 0) {
    kernel.attributes.erase(id);
    return cudaSuccess;
  }
  if (id == cudaLaunchAttributeClusterDimension && !divides(size, kernel.shape.gridDim))
    return cudaErrorInvalidClusterSize;
  kernel.attributes[id] = value;
  return cudaSuccess;
}

bool fills_are_legal(graph_state const& graph) {
  return std::ranges::all_of(graph.nodes, [](auto const& node) {
    auto const* const fill = std::get_if<fill_work>(&node->what);
    return (fill == nullptr || !is_beyond(fill->shape.dst, bytes_of(fill->shape))) &&
           std::ranges::all_of(inner_graphs(*node),
                               [](auto const& inner) { return fills_are_legal(*inner); });
  });
}

bool has_whole_clusters(work const& what) {
  auto const* const kernel = std::get_if<kernel_work>(&what);
  if (kernel == nullptr) return true;
  auto const found = kernel->attributes.find(cudaLaunchAttributeClusterDimension);
  return found == kernel->attributes.end() ||
         divides(found->second.clusterDim, kernel->shape.gridDim);
}

void keep_attributes(work const& old, work& now) {
  auto const* const before = std::get_if<kernel_work>(&old);
  auto* const after = std::get_if<kernel_work>(&now);
  if (before != nullptr && after != nullptr) after->attributes = before->attributes;
}

void keep_clusters(work const& old, work& now, bool is_used) {
  auto const* const before = std::get_if<kernel_work>(&old);
  auto* const after = std::get_if<kernel_work>(&now);
  if (before == nullptr || after == nullptr) return;
  for (int const id :
       {cudaLaunchAttributeClusterDimension, cudaLaunchAttributePreferredClusterDimension}) {
    if (is_used) after->attributes.erase(id);
    auto const found = before->attributes.find(id);
    if (found != before->attributes.end()) after->attributes.insert(*found);
  }
}

bool may_be_set_to(work const& old, work const& now) {
  if (!may_become(old, now)) return false;
  if (auto const* const fill = std::get_if<fill_work>(&now))
    return fill->shape.width != 0 && fill->shape.height != 0;
  auto const* const before = std::get_if<copy_work>(&old);
  if (before == nullptr) return true;
  auto const& extent = std::get<copy_work>(now).shape.extent;
  return is_flat(before->shape.extent) && is_flat(extent) && extent.width != 0;
}

}  // namespace escrow::sim::model
