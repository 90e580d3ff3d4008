// SPDX-License-Identifier: Apache-2.0
// A recapture, by CUDA's manual: no GPU was seen doing it.
#include "recaptures.hpp"

#include "edges.hpp"
#include "ends.hpp"
#include "graphs.hpp"
#include "nodes.hpp"

#include <cstring>

namespace escrow::sim::model {
namespace {

using numbers = std::vector<std::uintptr_t>;

template <class T>
std::uintptr_t number(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// What a node does, as the callback gets it.
void put(kernel_work& kernel, cudaGraphNodeParams& out) {
  auto const& s = kernel.shape;
  kernel.pointers = kernel.args.pointers();
  out.kernel.func = s.func;
  out.kernel.gridDim = s.gridDim;
  out.kernel.blockDim = s.blockDim;
  out.kernel.sharedMemBytes = s.sharedMemBytes;
  out.kernel.kernelParams = kernel.pointers.data();
}
void put(host_work& host, cudaGraphNodeParams& out) {
  out.host.fn = host.run;
  out.host.userData = host.argument;
}
void put(copy_work& copy, cudaGraphNodeParams& out) {
  out.memcpy.copyParams = copy.shape;
}
void put(fill_work& fill, cudaGraphNodeParams& out) {
  auto const& s = fill.shape;
  out.memset.dst = s.dst;
  out.memset.pitch = s.pitch;
  out.memset.value = s.value;
  out.memset.elementSize = s.elementSize;
  out.memset.width = s.width;
  out.memset.height = s.height;
}
void put(record_work& record, cudaGraphNodeParams& out) {
  out.eventRecord.event = record.event->handle;
}
void put(wait_work& wait, cudaGraphNodeParams& out) {
  out.eventWait.event = wait.event->handle;
}
template <class Other>
void put(Other&, cudaGraphNodeParams&) {}

cudaGraphNodeParams params_of(cudaGraphNodeType type, work& what) {
  cudaGraphNodeParams result{};
  result.type = type;
  std::visit([&](auto& each) { put(each, result); }, what);
  return result;
}

numbers values_of(kernel_work const& kernel) {
  auto const& s = kernel.shape;
  return {s.gridDim.x,  s.gridDim.y,  s.gridDim.z,     s.blockDim.x,
          s.blockDim.y, s.blockDim.z, s.sharedMemBytes};
}
numbers values_of(host_work const& host) {
  return {reinterpret_cast<std::uintptr_t>(host.run), number(host.argument)};
}
numbers values_of(copy_work const& copy) {
  auto const& s = copy.shape;
  return {number(s.srcPtr.ptr), s.srcPtr.pitch,
          s.srcPos.x,           s.srcPos.y,
          s.srcPos.z,           number(s.dstPtr.ptr),
          s.dstPtr.pitch,       s.dstPos.x,
          s.dstPos.y,           s.dstPos.z,
          s.extent.width,       s.extent.height,
          s.extent.depth,       std::uintptr_t{s.kind}};
}
numbers values_of(fill_work const& fill) {
  auto const& s = fill.shape;
  return {number(s.dst), s.pitch, s.value, s.elementSize, s.width, s.height};
}
numbers values_of(record_work const& record) {
  return {number(record.event.get())};
}
numbers values_of(wait_work const& wait) {
  return {number(wait.event.get())};
}
template <class Other>
numbers values_of(Other const&) {
  return {};
}

bool has_same_args(kernel_work& one, kernel_work& other) {
  auto const& sizes = one.code->arg_sizes;
  auto const before = one.args.pointers();
  auto const after = other.args.pointers();
  for (std::size_t i = 0; one.code == other.code && i < sizes.size(); ++i) {
    if (std::memcmp(before[i], after[i], sizes[i]) != 0) return false;
  }
  return one.code == other.code;
}

bool does_same(work& old, work& now) {
  auto* const before = std::get_if<kernel_work>(&old);
  auto* const after = std::get_if<kernel_work>(&now);
  if (before != nullptr && after != nullptr && !has_same_args(*before, *after)) return false;
  auto const values = [](work const& what) {
    return std::visit([](auto const& each) { return values_of(each); }, what);
  };
  return values(old) == values(now);
}

// On just what the stream's next node would depend on.
bool is_behind_ends(CUgraphNode_st const& node, stream_state const& stream) {
  if (node.before.size() != stream.ends.size()) return false;
  for (std::size_t i = 0; i < stream.ends.size(); ++i) {
    auto const& end = *stream.ends[i];
    if (!depends_on(node, end) || !is_same(edge_from(end, node), stream.end_edges[i])) return false;
  }
  return true;
}

}  // namespace

cudaError_t recapture_work(api_call& c, stream_state& stream, cudaGraphNodeType type, work what) {
  auto const capture = stream.capturing;
  auto& again = *capture->again;
  auto const fail = [&] {
    capture->invalidated = again.failed = true;
    return cudaErrorGraphRecaptureFailure;
  };
  auto const& nodes = capture->graph->nodes;
  if (again.next == nodes.size()) return fail();
  auto& node = *nodes[again.next];
  if (node.type != type || !is_behind_ends(node, stream)) return fail();
  if (again.on_mismatch != nullptr && !does_same(node.what, what)) {
    auto const original = params_of(type, node.what);
    auto const recaptured = params_of(type, what);
    auto const status = may_become(node.what, what) ? cudaGraphRecaptureEligibleForUpdate
                                                    : cudaGraphRecaptureIneligibleForUpdate;
    c.lock.unlock();
    auto const answer = again.on_mismatch(again.data, &node, &original, &recaptured, status);
    c.lock.lock();
    if (answer != cudaSuccess) return fail();
  }
  node.what = std::move(what);
  ++again.next;
  set_ends(stream, {&node}, nullptr);
  return cudaSuccess;
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void set_recapture_gives_new_id(bool is_new) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.recapture_gives_new_id = is_new;
}

}  // namespace escrow::sim
