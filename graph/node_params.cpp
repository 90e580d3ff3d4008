// CUDA's parameters of the nodes, and what is refused.
#include "escrow/graph/node_params.hpp"

#include <algorithm>
#include <limits>

#include "escrow/core/error.hpp"

namespace escrow::detail {

namespace {

cudaGraphNodeParams params_of(cudaGraphNodeType type) {
  cudaGraphNodeParams result{};
  result.type = type;
  return result;
}

void require(bool condition, char const* call, char const* problem, char const* remedy) {
  if (!condition) throw usage_error(call, problem, remedy);
}

bool fits(unsigned value, unsigned bytes) noexcept {
  return bytes >= sizeof(value) || value >> (8 * bytes) == 0;
}

}  // namespace

cudaGraphNodeParams kernel_params(kernel const& launched, launch_config const& config,
                                  void** values) {
  require(launched.get() != nullptr, "node::launch", "the kernel is null: it was moved from",
          "copy it, or find it again");
  require(config.attributes.empty(), "node::launch", "`config` has attributes",
          "capture the launch with its attributes, and embed the graph");
  require(config.keeper == nullptr, "node::launch", "`config` names a keeper",
          "name it when the graph is made: graph(keeper)");
  require(config.shared_bytes <= std::numeric_limits<unsigned>::max(), "node::launch",
          "`shared_bytes` of `config` is 4 GiB or more", "no device has as much");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeKernel);
  result.kernel.func = const_cast<void*>(launched.get());
  result.kernel.gridDim = config.grid;
  result.kernel.blockDim = config.block;
  result.kernel.sharedMemBytes = static_cast<unsigned>(config.shared_bytes);
  result.kernel.kernelParams = values;
  return result;
}

cudaGraphNodeParams memset_params(void* destination, memset_config const& config) {
  constexpr char const* call = "node::memset";
  require(destination != nullptr, call, "the destination is null", "pass device memory");
  unsigned const bytes = config.element_bytes;
  require(bytes == 1 || bytes == 2 || bytes == 4, call, "`element_bytes` is not 1, 2 or 4",
          "write larger elements with a kernel");
  require(fits(config.value, bytes), call, "`value` does not fit in an element",
          "raise `element_bytes`, or cut the value");
  require(config.width != 0 && config.height != 0, call, "there is nothing to write",
          "give a width, and rows");
  require(config.height == 1 || config.pitch >= config.width * bytes, call,
          "`pitch` is less than a row", "give the bytes from row to row");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeMemset);
  result.memset = {destination, config.pitch, config.value, bytes, config.width, config.height};
  return result;
}

cudaGraphNodeParams memcpy_params(void* to, void const* from, std::size_t bytes) {
  constexpr char const* call = "node::memcpy";
  require(to != nullptr && from != nullptr, call, "an address is null", "pass memory");
  require(bytes != 0, call, "`bytes` is 0", "leave the node out");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeMemcpy);
  cudaMemcpy3DParms& copy = result.memcpy.copyParams;
  copy.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
  copy.dstPtr = {to, bytes, bytes, 1};
  copy.extent = {bytes, 1, 1};
  copy.kind = cudaMemcpyDefault;
  return result;
}

cudaGraphNodeParams host_params(cudaHostFn_t function, void* data) {
  require(function != nullptr, "node::call", "the function is null", "pass one");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeHost);
  result.host = {function, data};
  return result;
}

std::unique_ptr<std::byte[]> copy_of(void const* data, std::size_t bytes) {
  require(data != nullptr || bytes == 0, "node::call", "`data` is null, and `bytes` is not 0",
          "pass data, or no bytes");
  auto copy = std::make_unique<std::byte[]>(bytes);
  std::copy_n(static_cast<std::byte const*>(data), bytes, copy.get());
  return copy;
}

cudaGraphNodeParams record_params(cudaEvent_t event) {
  require(event != nullptr, "node::record", "the event is null: it was moved from", "copy it");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeEventRecord);
  result.eventRecord.event = event;
  return result;
}

cudaGraphNodeParams wait_params(cudaEvent_t event) {
  require(event != nullptr, "node::wait", "the event is null: it was moved from", "copy it");
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeWaitEvent);
  result.eventWait.event = event;
  return result;
}

}  // namespace escrow::detail
