// What happens to owners when a node is added, changed or destroyed, and when the graph ends.
#include "graph_core.hpp"

#include <algorithm>
#include <utility>

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/graph_identity.hpp"
#include "escrow/core/insist.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/user_object.hpp"

namespace escrow {

// One change of what a graph keeps. What is to be kept afterwards is on the graph, where it has to
// be, before CUDA is called; the end takes that back unless commit() was called, which cannot fail.
class graph_core::change {
 public:
  // `node` is null for one that is yet to be made.
  change(graph_core& core, cudaGraphNode_t node, detail::node_payload next);
  change(change&&) = delete;
  ~change();

  void commit(cudaGraphNode_t node) noexcept;

 private:
  void replace_bundle();

  graph_core& core_;
  node_table::entry* old_;
  retired_owner* next_ = nullptr;  // held here
  launch_params const* launched_;
  graph_bundle* placed_ = nullptr;  // takes the place of the old bundle, or has just the payload
};

graph_core::change::change(graph_core& core, cudaGraphNode_t node, detail::node_payload next)
    : core_(core), launched_(next.launched()) {
  core_.drop_hoisted();
  core_.payloads_.reserve_one();
  old_ = node == nullptr ? nullptr : core_.payloads_.find(node);
  if (next.get() != nullptr) {
    next_ = next.release();
    next_->hold();
    next_->enter_graph();
  }
  try {
    replace_bundle();
  } catch (...) {
    if (next_ != nullptr) next_->let_go();
    throw;
  }
}

void graph_core::change::replace_bundle() {
  bool const is_on_graph = old_ != nullptr && old_->bundle != nullptr;
  std::vector<graph_reference*> parts;
  if (is_on_graph) {
    auto const all = old_->bundle->parts();
    parts.reserve(all.size());
    std::ranges::remove_copy(all, std::back_inserter(parts), old_->owner);
  }
  if (next_ != nullptr && (is_on_graph || core_.is_exposed_)) parts.push_back(next_);
  if (parts.empty()) return;
  placed_ = &core_.place(std::move(parts));
}

graph_core::change::~change() {
  if (placed_ != nullptr) core_.take_off(*placed_);
  if (next_ != nullptr) next_->let_go();
}

void graph_core::change::commit(cudaGraphNode_t node) noexcept {
  core_.snapshot_.reset();
  if (old_ != nullptr) {
    graph_bundle* const replaced = old_->bundle;
    retired_owner& dropped = *old_->owner;
    core_.payloads_.erase(old_);
    if (replaced == nullptr) {
      --core_.pending_;
      dropped.let_go();
    } else {
      for (auto& each : core_.payloads_.entries()) {
        if (each.bundle == replaced) each.bundle = placed_;
      }
      core_.take_off(*replaced);
    }
  }
  if (next_ != nullptr) {
    core_.payloads_.insert({node, next_, launched_, placed_});
    // One that is not on the graph is held by the graph's core instead.
    placed_ != nullptr ? next_->let_go() : static_cast<void>(++core_.pending_);
  }
  placed_ = nullptr;
  next_ = nullptr;
}

graph_core::graph_core(cudaGraph_t native, std::uint64_t id, bool is_exposed) noexcept
    : is_original(id != 0), native_(native), id_(id), is_exposed_(is_exposed) {}

graph_core::~graph_core() {
  if (native_ != nullptr) {
    insist_relaxed([this] { return cudaGraphDestroy(native_); });
    if (id_ != 0) graph_registry::global().forget_destroyed(id_);
  }
  forget_payloads();
  if (keeper_ != nullptr) keeper_->drop_use();
}

release_hub& graph_core::keeper() {
  if (keeper_ == nullptr) set_keeper(deleter::global().hub());
  if (order_ == nullptr) order_ = std::make_shared<launch_order>();
  return *keeper_;
}

void graph_core::set_keeper(release_hub& keeper) noexcept {
  keeper.add_use();
  keeper_ = &keeper;
}

void graph_core::forget_payloads() noexcept {
  for (auto const& each : payloads_.entries()) {
    if (each.bundle == nullptr) each.owner->let_go();
  }
  payloads_.entries().clear();
  pending_ = 0;
  for (placed_bundle const& each : placed_) each.bundle->let_go();
  placed_.clear();
  snapshot_.reset();
}

void graph_core::identify() {
  if (id_ != 0) return;
  try {
    id_ = graph_id_of(native_).value_or(0);
  } catch (cuda_error const& error) {
    if (error.status() == cudaErrorStreamCaptureInvalidated) native_ = nullptr;  // it is gone
    throw;
  }
  // One that is being captured into is its capturer's; what is kept then is kept all the same.
  if (id_ == 0) throw cuda_error(cudaErrorIllegalState, "cudaStreamBeginCaptureToGraph");
}

graph_bundle& graph_core::place(std::vector<graph_reference*> parts) {
  identify();
  placed_.reserve(placed_.size() + 1);
  release_hub& hub = keeper();
  graph_bundle::pointer made(&graph_bundle::make(hub, std::move(parts), order_));
  graph_registry::global().add_parts(made->parts());
  user_object object(*made);
  cudaUserObject_t const moved = object.move_to(native_, id_);
  placed_.push_back({made.get(), moved});
  return *made.release();
}

void graph_core::take_off(graph_bundle& bundle) noexcept {
  auto const found = std::ranges::find(placed_, &bundle, &placed_bundle::bundle);
  let_go(*found);
  placed_.erase(found);
}

void graph_core::let_go(placed_bundle const& placed) noexcept {
  cudaError_t status = cudaSuccess;
  bool const is_off = insist([&] {
    status = cudaGraphReleaseUserObject(native_, placed.object, 1);
    return status;
  });
  if (is_off) {
    graph_registry::global().withdraw(*placed.bundle, id_);
  } else {
    placed.bundle->hub().report(status, "cudaGraphReleaseUserObject");  // it goes with the graph
  }
  placed.bundle->let_go();
}

void graph_core::drop_hoisted() noexcept {
  // Others may have hoisted the graph by its handle.
  if (!is_exposed_ || placed_.empty()) return;
  std::erase_if(placed_, [this](placed_bundle const& each) {
    if (graph_registry::global().is_on(*each.bundle, id_)) return false;
    std::erase_if(payloads_.entries(),
                  [&each](auto const& payload) { return payload.bundle == each.bundle; });
    each.bundle->let_go();
    return true;
  });
}

void graph_core::seal() {
  if (pending_ == 0) return;
  std::vector<graph_reference*> parts;
  parts.reserve(pending_);
  for (auto const& each : payloads_.entries()) {
    if (each.bundle == nullptr) parts.push_back(each.owner);
  }
  graph_bundle& placed = place(std::move(parts));
  for (auto& each : payloads_.entries()) {
    if (each.bundle != nullptr) continue;
    each.bundle = &placed;
    each.owner->let_go();
  }
  pending_ = 0;
}

cudaGraph_t graph_core::expose() {
  if (is_exposed_) return native_;
  seal();
  is_exposed_ = true;
  return native_;
}

cudaGraph_t graph_core::detach() {
  seal();
  forget_payloads();
  id_ = 0;
  blank_copies.clear();
  bodies.clear();
  return std::exchange(native_, nullptr);
}

cudaGraphNode_t graph_core::add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                cudaGraphNodeParams& params, detail::node_payload payload) {
  cudaGraphNode_t made = nullptr;
  auto const call = [&] {
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
  check(cudaGraphDestroyNode(doomed), "cudaGraphDestroyNode");
  keeping.commit(doomed);
}

std::shared_ptr<node_table const> graph_core::snapshot() {
  seal();
  drop_hoisted();
  payloads_.sort();
  if (snapshot_ == nullptr && order_ != nullptr) {
    snapshot_ = std::make_shared<node_table const>(payloads_);
  }
  return snapshot_;
}

launch_params const* graph_core::launched(cudaGraphNode_t node) noexcept {
  auto const* const found = payloads_.find(node);
  return found == nullptr ? nullptr : found->launched;
}

void graph_core::copy_payloads(graph_core& original) {
  if (original.keeper_ != nullptr) set_keeper(*original.keeper_);
  if (original.payloads_.entries().empty()) return;
  order_ = original.order_;
  payloads_.entries().reserve(original.payloads_.entries().size());
  placed_ = graph_registry::global().bundles_of(id_);
  for (placed_bundle const& each : placed_) each.bundle->hold();
  for (node_table::entry copied : original.payloads_.entries()) {
    check(cudaGraphNodeFindInClone(&copied.node, copied.node, native_), "cudaGraphNodeFindInClone");
    payloads_.insert(copied);
  }
}

}  // namespace escrow
