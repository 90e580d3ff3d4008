// SPDX-License-Identifier: Apache-2.0
// CUDA's parameters of the nodes, and what is refused.
#include "escrow/nodes/node_kinds.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_2 {

namespace detail {

namespace {

cudaGraphNodeParams params_of(cudaGraphNodeType type) {
  cudaGraphNodeParams result{};
  result.type = type;
  return result;
}

// `where`: nowhere if the caller's line is named by who calls.
void require(bool condition, char const* call, char const* problem, char const* remedy,
             source_location where = {}) {
  if (!condition) refuse_at(where, call, problem, remedy);
}

// A size above is a negative number that was converted.
constexpr std::size_t bytes_max = std::numeric_limits<std::ptrdiff_t>::max();

void require_size(char const* call, std::size_t bytes) {
  if (bytes <= bytes_max) return;
  throw usage_error(call, "`bytes` is " + size_text(bytes), "give the number of bytes");
}

void require_room(char const* call, char const* argument, std::size_t there, std::size_t used) {
  if (used <= there) return;
  throw usage_error(call,
                    argument + (" has " + std::to_string(there) + " bytes, and the node uses ") +
                        std::to_string(used),
                    "give it more memory, or the node fewer bytes");
}

bool fits(unsigned value, unsigned bytes) noexcept {
  return bytes >= sizeof(value) || value >> (8 * bytes) == 0;
}

}  // namespace

cudaGraphNodeParams kernel_params(kernel const& launched, launch_config const& config) {
  constexpr char const* call = "kernel_node";
  require(launched.get() != nullptr, call, "the kernel is null", null_kernel_advice);
  auto const is_of_device = [](cudaLaunchAttribute const& each) {
    return each.id == cudaLaunchAttributeDeviceUpdatableKernelNode;
  };
  require(
      std::ranges::none_of(config.attributes, is_of_device), call,
      "an attribute of `config` gives the device a handle of the node",
      "set it by cudaGraphKernelNodeSetAttribute on the node's get(), which returns the handle");
  require(config.deleter == nullptr, call, "`config` names a deleter",
          "name it when the graph is made: graph(deleter)");
  require(config.shared_bytes <= std::numeric_limits<unsigned>::max(), call,
          "`shared_bytes` of `config` is 4 GiB or more", "no device has as much");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeKernel);
  result.kernel.func = const_cast<void*>(launched.get());
  result.kernel.gridDim = config.grid;
  result.kernel.blockDim = config.block;
  result.kernel.sharedMemBytes = static_cast<unsigned>(config.shared_bytes);
  return result;
}

retired_object::loan payload_of(char const* call, graph_core& core) {
  deleter_core& keeper = core.keeper();
  require(keeper.is_open(), call, "the deleter that destroys what nodes keep was stopped",
          "add nodes before stop(), or make the graph with another deleter");
  return retired_object::loan(&keeper.take_retired_object(0, false));
}

cudaGraphNodeParams event_params(cudaGraphNodeType type, cudaEvent_t event, source_location where) {
  bool const records = type == cudaGraphNodeTypeEventRecord;
  require(event != nullptr, records ? "record_node" : "wait_node", "the event is null",
          "pass an event that is there; one that was moved from is null", where);
  cudaGraphNodeParams result = params_of(type);
  (records ? result.eventRecord.event : result.eventWait.event) = event;
  return result;
}

cudaGraphNodeParams memset_params(writable_span destination, memset_config const& config) {
  constexpr char const* call = "memset_node";
  require(destination.address != nullptr, call, "the destination is null", "pass device memory");
  unsigned const bytes = config.element_bytes;
  require(bytes == 1 || bytes == 2 || bytes == 4, call, "`element_bytes` is not 1, 2 or 4",
          "write larger elements with a kernel");
  require(fits(config.value, bytes), call, "`value` does not fit in an element",
          "raise `element_bytes`, or cut the value");
  require(config.width != 0 && config.height != 0, call, "there is nothing to write",
          "give a width, and rows");
  require(config.width <= bytes_max / bytes, call, "`width` is more than memory has",
          "give the elements of a row");
  std::size_t const row = config.width * bytes;
  require(config.height == 1 || config.pitch >= row, call, "`pitch` is less than a row",
          "give the bytes from row to row");
  std::size_t const gaps = config.height - 1;
  require(gaps == 0 || config.pitch <= (bytes_max - row) / gaps, call,
          "`height` rows are more than memory has", "give the number of rows");
  require_room(call, "the destination", destination.bytes,
               row + (gaps == 0 ? 0 : gaps * config.pitch));
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeMemset);
  result.memset.dst = destination.address;
  result.memset.pitch = config.pitch;
  result.memset.value = config.value;
  result.memset.elementSize = bytes;
  result.memset.width = config.width;
  result.memset.height = config.height;
  return result;
}

cudaGraphNodeParams memcpy_params(writable_span to, readable_span from, std::size_t bytes) {
  constexpr char const* call = "memcpy_node";
  require(to.address != nullptr && from.address != nullptr, call, "an address is null",
          "pass memory");
  require(bytes != 0, call, "`bytes` is 0", "leave the node out");
  require_size(call, bytes);
  require_room(call, "`to`", to.bytes, bytes);
  require_room(call, "`from`", from.bytes, bytes);
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeMemcpy);
  cudaMemcpy3DParms& copy = result.memcpy.copyParams;
  copy.srcPtr = {const_cast<void*>(from.address), bytes, bytes, 1};
  copy.dstPtr = {to.address, bytes, bytes, 1};
  copy.extent = {bytes, 1, 1};
  copy.kind = cudaMemcpyDefault;
  return result;
}

cudaGraphNodeParams host_params(cudaHostFn_t function) {
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeHost);
  result.host.fn = function;
  return result;
}

void require_callable(bool is_null, source_location where) {
  require(!is_null, "host_node", "`function` is null", "pass one that can be called", where);
}

}  // namespace detail

child_kind child_node(graph const& child) noexcept {
  return {child.core()};
}

alloc_kind alloc_node(std::size_t bytes, alloc_config const& config, source_location where) {
  detail::require(bytes != 0, "alloc_node", "`bytes` is 0", "leave the node out", where);
  detail::called_at("alloc_node", where, [bytes] { detail::require_size("alloc_node", bytes); });
  alloc_kind made{detail::params_of(cudaGraphNodeTypeMemAlloc), {}};
  int const device =
      config.device >= 0 ? config.device : detail::called_at("alloc_node", where, current_device);
  made.params.alloc.poolProps.allocType = cudaMemAllocationTypePinned;
  made.params.alloc.poolProps.location = {cudaMemLocationTypeDevice, device};
  made.params.alloc.bytesize = bytes;
  for (int const peer : config.peers) {
    made.access.push_back({{cudaMemLocationTypeDevice, peer}, cudaMemAccessFlagsProtReadWrite});
  }
  return made;
}

detail::owning_kind<detail::no_share> free_node(void* address, source_location where) {
  detail::require(address != nullptr, "free_node", "`address` is null",
                  "free what a node allocates", where);
  cudaGraphNodeParams params = detail::params_of(cudaGraphNodeTypeMemFree);
  params.free.dptr = address;
  return {params, {}};
}

conditional_kind switch_node(condition const& tested, unsigned bodies, source_location where) {
  bool const is_negative = bodies > static_cast<unsigned>(std::numeric_limits<int>::max());
  detail::require(bodies != 0 && !is_negative, "switch_node",
                  is_negative ? "`bodies` is a negative number that was converted to unsigned"
                              : "`bodies` is 0",
                  "give at least one", where);
  return {"switch_node", tested, cudaGraphCondTypeSwitch, bodies};
}

}  // namespace escrow::inline v0_2
