// What happens to owners when a node is added, changed or destroyed.
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "graph_core.hpp"

namespace escrow {

// One change of what a graph keeps. What is to be kept afterwards is on the graph, or has room in a
// set that is, before CUDA is called; the end takes that back unless commit() was called, which
// cannot fail.
class graph_core::change {
 public:
  // `node` is null for one that is yet to be made.
  change(graph_core& core, cudaGraphNode_t node, detail::node_payload next);
  change(change&&) = delete;
  ~change();

  void commit(cudaGraphNode_t node) noexcept;

 private:
  void replace_set();

  graph_core& core_;
  node_table::entry* old_;
  retired_object* next_ = nullptr;   // held here
  reference_set* placed_ = nullptr;  // takes the place of the old set, or has just the payload
  reference_set* grown_ = nullptr;   // is on the graph, and will have the payload as well
};

graph_core::change::change(graph_core& core, cudaGraphNode_t node, detail::node_payload next)
    : core_(core) {
  core_.drop_hoisted();
  core_.payloads_.reserve_one();
  old_ = node == nullptr ? nullptr : core_.payloads_.find(node);
  next_ = next.hand_on(core_.device());
  try {
    replace_set();
  } catch (...) {
    if (next_ != nullptr) next_->drop_ref();
    throw;
  }
}

void graph_core::change::replace_set() {
  bool const is_on_graph = old_ != nullptr && old_->set != nullptr;
  if (!is_on_graph && next_ != nullptr && core_.is_exposed_) {
    grown_ = core_.open_set();
    if (grown_ != nullptr) return grown_->reserve_shared(1);
  }
  std::vector<retired_object*> parts;
  if (is_on_graph) {
    for (auto const& each : old_->set->shared()) {
      auto* const part = static_cast<retired_object*>(each.get());
      if (part != old_->owner) parts.push_back(part);
    }
  }
  if (next_ != nullptr && (is_on_graph || core_.is_exposed_)) parts.push_back(next_);
  if (parts.empty()) return;
  placed_ = &core_.place(parts);
}

graph_core::change::~change() {
  if (placed_ != nullptr) core_.take_off(*placed_);
  if (next_ != nullptr) next_->drop_ref();
}

void graph_core::change::commit(cudaGraphNode_t node) noexcept {
  core_.snapshot_.reset();
  if (old_ != nullptr) {
    reference_set* const replaced = old_->set;
    retired_object& dropped = *old_->owner;
    core_.payloads_.erase(old_);
    if (replaced == nullptr) {
      --core_.pending_;
      dropped.drop_ref();
    } else {
      for (auto& each : core_.payloads_.entries()) {
        if (each.set == replaced) each.set = placed_;
      }
      core_.take_off(*replaced);
    }
  }
  if (grown_ != nullptr) {
    grown_->append_shared(ref<reclaimable>(*next_), next_->is_written());
    placed_ = grown_;
  }
  if (next_ != nullptr) {
    core_.payloads_.insert({node, next_, placed_});
    // One that is not on the graph is held by the graph's core instead.
    placed_ != nullptr ? next_->drop_ref() : static_cast<void>(++core_.pending_);
  }
  placed_ = nullptr;
  next_ = nullptr;
}

cudaGraphNode_t graph_core::add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                cudaGraphNodeParams& params, detail::node_payload payload) {
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
  if (payload.get() == nullptr) {
    call();
  } else {
    change keeping(*this, nullptr, std::move(payload));
    call();
    keeping.commit(made);
  }
  note_reshaped();
  return made;
}

void graph_core::set(cudaGraphNode_t changed, cudaGraphNodeParams& params,
                     detail::node_payload payload) {
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
  note_reshaped();
}

}  // namespace escrow
