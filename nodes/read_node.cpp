// SPDX-License-Identifier: Apache-2.0
// Reading nodes back: parameters by CUDA's calls, owners from the graph.
#include "escrow/nodes/any_kind.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/nodes/build.hpp"
#include "graph_core.hpp"
#include "node_words.hpp"

namespace escrow::inline v0_2 {

struct any_kind::content {
  cudaGraphNodeParams params{};
  kernel_arguments arguments;   // of a kernel
  std::vector<void*> pointers;  // to these
  std::vector<cudaLaunchAttribute> attributes;
  ref<retired_object> owner;
};

namespace {

// Those that nodes take (measured), but for what only the device uses.
constexpr std::array read_attributes{
    cudaLaunchAttributeAccessPolicyWindow, cudaLaunchAttributeCooperative,
    cudaLaunchAttributeClusterDimension,   cudaLaunchAttributePriority,
    cudaLaunchAttributeMemSyncDomainMap,   cudaLaunchAttributeMemSyncDomain};

// What CUDA tells of a node that was given none.
cudaLaunchAttributeValue usual_value_of(cudaLaunchAttributeID id) {
  cudaLaunchAttributeValue usual{};
  if (id == cudaLaunchAttributeMemSyncDomainMap) usual.memSyncDomainMap.remote = 1;
  return usual;
}

std::vector<cudaLaunchAttribute> attributes_of(cudaGraphNode_t node) {
  std::vector<cudaLaunchAttribute> found;
  for (cudaLaunchAttributeID const id : read_attributes) {
    cudaLaunchAttribute read{};
    read.id = id;
    check(cudaGraphKernelNodeGetAttribute(node, id, &read.val), "cudaGraphKernelNodeGetAttribute");
    cudaLaunchAttributeValue const usual = usual_value_of(id);
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison,cert-*): all its bytes
    if (std::memcmp(&read.val, &usual, sizeof usual) != 0) found.push_back(read);
  }
  return found;
}

void* function_of(cudaGraphNode_t node, kernel_arguments const& read) {
  cudaKernelNodeParams params{};
  // The runtime knows no function of a driver's module.
  cudaError_t const status =
      call_aside([&] { return cudaGraphKernelNodeGetParams(node, &params); });
  if (status == cudaSuccess) return params.func;
  if (status == cudaErrorInvalidDeviceFunction && read.kernel != nullptr) return read.kernel;
  throw cuda_error(status, "cudaGraphKernelNodeGetParams", source_location::current(),
                   status == cudaErrorInvalidDeviceFunction
                       ? "the kernel is a function of a driver's module, which no node of the "
                         "runtime has: load its code by library::load or cuLibraryLoadData"
                       : "");
}

void read_kernel(cudaGraphNode_t node, cudaGraphNodeParams& params, kernel_arguments& arguments) {
  node_words().read_arguments(node, arguments);
  params.kernel.func = function_of(node, arguments);
  params.kernel.gridDim = arguments.grid;
  params.kernel.blockDim = arguments.block;
  params.kernel.sharedMemBytes = arguments.shared_bytes;
}

void read_memset(cudaGraphNode_t node, cudaGraphNodeParams& params) {
  cudaMemsetParams its{};
  check(cudaGraphMemsetNodeGetParams(node, &its), "cudaGraphMemsetNodeGetParams");
  params.memset.dst = its.dst;
  params.memset.pitch = its.pitch;
  params.memset.value = its.value;
  params.memset.elementSize = its.elementSize;
  params.memset.width = its.width;
  params.memset.height = its.height;
}

void read_host(cudaGraphNode_t node, cudaGraphNodeParams& params) {
  cudaHostNodeParams its{};
  check(cudaGraphHostNodeGetParams(node, &its), "cudaGraphHostNodeGetParams");
  params.host.fn = its.fn;
  params.host.userData = its.userData;
}

}  // namespace

cudaGraphNodeType any_kind::type() const noexcept {
  return read_->params.type;
}

bool any_kind::has_owner() const noexcept {
  return static_cast<bool>(read_->owner);
}

cudaGraphNodeParams const& any_kind::params() const noexcept {
  return read_->params;
}

detail::node_draft any_kind::draft(char const* /*call*/, graph_core& /*core*/) const {
  return {read_->params, {}, read_->attributes, read_->owner};
}

detail::node_draft any_kind::draft_for(cudaGraphNode_t changed,
                                       std::vector<cudaLaunchAttribute>& attributes) const {
  attributes = read_->attributes;
  if (type() == cudaGraphNodeTypeKernel && type_of(changed) == type()) {
    for (cudaLaunchAttribute const& now : attributes_of(changed)) {
      auto const is_it = [&now](auto const& each) { return each.id == now.id; };
      if (std::ranges::any_of(attributes, is_it)) continue;
      cudaLaunchAttribute& without = attributes.emplace_back();
      without.id = now.id;
      without.val = usual_value_of(now.id);
    }
  }
  return {read_->params, {}, attributes, read_->owner};
}

detail::node_draft any_kind::draft_in_exec(cudaGraphNode_t changed) const {
  detail::node_draft made{read_->params, {}, read_->attributes, read_->owner};
  if (made.attributes.empty() || type_of(changed) != type()) return made;
  auto const are_same = [](cudaLaunchAttribute const& one, cudaLaunchAttribute const& other) {
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison,cert-*): all its bytes
    return one.id == other.id && std::memcmp(&one.val, &other.val, sizeof one.val) == 0;
  };
  if (std::ranges::equal(attributes_of(changed), read_->attributes, are_same)) made.attributes = {};
  return made;
}

void node::set(any_kind const& kind, source_location where) const {
  detail::called_at("node::set", where, [&] {
    static_cast<void>(require("node::set"));
    std::vector<cudaLaunchAttribute> attributes;
    detail::node_draft made = kind.draft_for(get(), attributes);
    set_params(made);
  });
}

void set(graph_exec& exec, node const& changed, any_kind const& kind, source_location where) {
  constexpr char const* call = "set";
  detail::called_at(call, where, [&] {
    static_cast<void>(changed.core_in(call, exec));
    detail::node_draft made = kind.draft_in_exec(changed.get());
    changed.set_params_in(exec, made);
  });
}

any_kind node::kind(source_location where) const {
  constexpr char const* call = "node::kind";
  return detail::called_at(call, where, [&] {
    graph_core const& core = require(call);
    auto const read = std::make_shared<any_kind::content>();
    cudaGraphNodeParams& params = read->params;
    params.type = type_of(get());
    if (params.type == cudaGraphNodeTypeKernel) {
      read_kernel(get(), params, read->arguments);
      for (std::size_t const offset : read->arguments.offsets) {
        read->pointers.push_back(read->arguments.bytes.data() + offset);
      }
      params.kernel.kernelParams = read->pointers.data();
      read->attributes = attributes_of(get());
    } else if (params.type == cudaGraphNodeTypeMemset) {
      read_memset(get(), params);
    } else if (params.type == cudaGraphNodeTypeMemcpy) {
      check(cudaGraphMemcpyNodeGetParams(get(), &params.memcpy.copyParams),
            "cudaGraphMemcpyNodeGetParams");
    } else if (params.type == cudaGraphNodeTypeHost) {
      read_host(get(), params);
    } else if (params.type == cudaGraphNodeTypeEventRecord) {
      check(cudaGraphEventRecordNodeGetEvent(get(), &params.eventRecord.event),
            "cudaGraphEventRecordNodeGetEvent");
    } else if (params.type == cudaGraphNodeTypeWaitEvent) {
      check(cudaGraphEventWaitNodeGetEvent(get(), &params.eventWait.event),
            "cudaGraphEventWaitNodeGetEvent");
    } else {
      throw usage_error(call,
                        "the node is a child graph, empty, conditional, or allocates or frees, or "
                        "is of a kind that add() does not have",
                        "read it by CUDA's calls, and make the kind again: child_node, join(), "
                        "if_node, alloc_node, free_node");
    }
    read->owner = core.owner_of(get());
    if (!read->owner && core.keeps_more_than_owners()) {
      throw usage_error(
          call,
          "the graph keeps something, perhaps for this node: of a captured launch, of "
          "a child graph, or of before detach()",
          "read the node where it was added, or make the kind anew");
    }
    return any_kind(read);
  });
}

}  // namespace escrow::inline v0_2
