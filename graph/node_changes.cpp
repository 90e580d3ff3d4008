// Payloads when a node is added, changed or destroyed.
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "graph_core.hpp"

namespace escrow::inline v0_1 {

// A transaction on payloads. The new payload is on the graph, or has room in a set that is, before
// CUDA is called; the destructor undoes that unless commit(), which cannot fail, was called.
class graph_core::change {
 public:
  // `node` is null for a new one.
  change(graph_core& core, cudaGraphNode_t node, retired_object::loan next);
  change(change&&) = delete;
  ~change();

  void commit(cudaGraphNode_t node) noexcept;

 private:
  void replace_set();

  graph_core& core_;
  kept_owner* old_ = nullptr;        // the node's payload, or null
  ref<retired_object> next_;         // its new payload, or nothing
  reference_set* placed_ = nullptr;  // replaces the old set, or has only the payload
  reference_set* grown_ = nullptr;   // is on the graph; the payload will be appended
};

graph_core::change::change(graph_core& core, cudaGraphNode_t node, retired_object::loan next)
    : core_(core) {
  core_.drop_hoisted();
  auto& payloads = core_.payloads_;
  // Room for commit().
  if (payloads.size() == payloads.capacity()) payloads.reserve(2 * payloads.size() + 8);
  if (node != nullptr) old_ = core_.find_payload(node);
  next_ = hand_on(std::move(next), core_.device());
  replace_set();
}

void graph_core::change::replace_set() {
  bool const is_on_graph = old_ != nullptr && old_->set != nullptr;
  if (!is_on_graph && !core_.is_exposed_) return;
  if (!is_on_graph && next_) {
    grown_ = core_.open_set();
    if (grown_ != nullptr) return grown_->reserve_shared(1);
  }
  std::vector<retired_object*> owners;
  if (is_on_graph) {
    for (auto const& each : old_->set->shared()) {
      auto* const owner = static_cast<retired_object*>(each.get());
      if (owner != old_->owner.get()) owners.push_back(owner);
    }
  }
  if (next_) owners.push_back(next_.get());
  if (!owners.empty()) placed_ = &core_.place(owners);
}

graph_core::change::~change() {
  if (placed_ != nullptr) core_.take_off(*placed_);
}

void graph_core::change::commit(cudaGraphNode_t node) noexcept {
  if (old_ != nullptr && old_->set != nullptr) {
    reference_set* const replaced = old_->set;
    for (kept_owner& each : core_.payloads_) {
      if (each.set == replaced) each.set = placed_;
    }
    core_.take_off(*replaced);
  }
  reference_set* const set = grown_ != nullptr ? grown_ : std::exchange(placed_, nullptr);
  if (!next_) {
    if (old_ != nullptr) core_.erase_payloads_if([&](auto const& each) { return &each == old_; });
    return;
  }
  if (grown_ != nullptr) grown_->append_shared(ref<reclaimable>(*next_), next_->is_written());
  kept_owner next{node, std::move(next_), set};
  if (old_ != nullptr) {
    *old_ = std::move(next);
  } else {
    core_.payloads_.push_back(std::move(next));
  }
}

cudaGraphNode_t graph_core::add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                cudaGraphNodeParams& params, retired_object::loan payload) {
  cudaGraphNode_t made = nullptr;
  auto const call = [&] {
    if (params.type == cudaGraphNodeTypeKernel) {  // most are, and this call is faster
      auto const& kernel = params.kernel;
      cudaKernelNodeParams const its{kernel.func,           kernel.gridDim,      kernel.blockDim,
                                     kernel.sharedMemBytes, kernel.kernelParams, nullptr};
      return check(cudaGraphAddKernelNode(&made, in, after.data(), after.size(), &its),
                   "cudaGraphAddKernelNode");
    }
    check(cudaGraphAddNode(&made, in, after.data(), nullptr, after.size(), &params),
          "cudaGraphAddNode");
  };
  if (payload == nullptr) {
    call();
  } else {
    change keeping(*this, nullptr, std::move(payload));
    call();
    keeping.commit(made);
  }
  return made;
}

void graph_core::set(cudaGraphNode_t changed, cudaGraphNodeParams& params,
                     retired_object::loan payload) {
  change keeping(*this, changed, std::move(payload));
  check(cudaGraphNodeSetParams(changed, &params), "cudaGraphNodeSetParams");
  keeping.commit(changed);
}

void graph_core::destroy(cudaGraphNode_t doomed) {
  change keeping(*this, doomed, {});
  {
    graph_lifetime_lock const turn;
    check(cudaGraphDestroyNode(doomed), "cudaGraphDestroyNode");
  }
  keeping.commit(doomed);
}

}  // namespace escrow::inline v0_1
