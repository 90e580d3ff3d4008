// Payloads when a node is added, changed or destroyed.
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

reference_set& graph_core::set_with_room() {
  reference_set* const last = placed_.empty() ? nullptr : placed_.back().get();
  // What was hoisted is sealed.
  if (last == nullptr || last->is_off_graphs() || graph_registry::global().is_sealed(*last)) {
    forget_hoisted();
    static_cast<void>(place({}));
  }
  placed_.back()->reserve(1);
  return *placed_.back();
}

template <class Call>
void graph_core::keep_after(Call const& call, retired_object::loan payload) {
  ref<retired_object> owner = hand_on(std::move(payload), device_);
  reference_set* const set = owner ? &set_with_room() : nullptr;
  if (payloads_.size() == payloads_.capacity()) payloads_.reserve(2 * payloads_.size() + 8);
  cudaGraphNode_t const node = call();  // nothing fails after it
  if (set != nullptr || !payloads_.empty()) payloads_.push_back({node, owner.get()});
  if (set != nullptr) set->append(*owner, owner->is_written());
}

cudaGraphNode_t graph_core::add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                cudaGraphNodeParams& params, retired_object::loan payload) {
  cudaGraphNode_t made = nullptr;
  auto const call = [&] {
    if (params.type == cudaGraphNodeTypeKernel) {  // most are, and this call is faster
      auto const& kernel = params.kernel;
      cudaKernelNodeParams const its{kernel.func,           kernel.gridDim,      kernel.blockDim,
                                     kernel.sharedMemBytes, kernel.kernelParams, nullptr};
      check(cudaGraphAddKernelNode(&made, in, after.data(), after.size(), &its),
            "cudaGraphAddKernelNode");
    } else {
      check(cudaGraphAddNode(&made, in, after.data(), nullptr, after.size(), &params),
            "cudaGraphAddNode");
    }
    return made;
  };
  if (payload == nullptr) return call();
  keep_after(call, std::move(payload));
  return made;
}

void graph_core::set(cudaGraphNode_t changed, cudaGraphNodeParams& params,
                     retired_object::loan payload) {
  auto const call = [&] {
    check(cudaGraphNodeSetParams(changed, &params), "cudaGraphNodeSetParams");
    return changed;
  };
  keep_after(call, std::move(payload));
  is_changed_ = true;
}

void graph_core::destroy(cudaGraphNode_t doomed) {
  auto const call = [&] {
    graph_lifetime_lock const turn;
    check(cudaGraphDestroyNode(doomed), "cudaGraphDestroyNode");
    return doomed;
  };
  keep_after(call, {});
  is_changed_ = true;
}

}  // namespace escrow::inline v0_1
