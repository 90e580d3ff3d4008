// How owners come onto the graph, and off it, and what happens to them when the graph ends.
#include "graph_core.hpp"

#include <algorithm>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/user_object.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

void destroy_graph(cudaGraph_t doomed) noexcept {
  graph_lifetime_lock const turn;
  retry_cleanup_relaxed([doomed] { return cudaGraphDestroy(doomed); });
}

graph_core::graph_core(cudaGraph_t native, std::uint64_t id, bool is_exposed)
    : is_original(id != 0), native_(native), id_(id), is_exposed_(is_exposed) {}

graph_core::~graph_core() {
  if (native_ != nullptr) {
    destroy_graph(native_);
    if (id_ != 0) graph_registry::global().forget_destroyed(id_);
  }
  forget_payloads();
  if (keeper_ != nullptr) keeper_->drop_use();
}

release_hub& graph_core::keeper() {
  return keeper_ != nullptr ? *keeper_ : deleter::global().hub();
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

void graph_core::try_identify() {
  if (id_ != 0) return;
  id_ = graph_id_of(native_).value_or(0);
}

void graph_core::identify() {
  try_identify();
  if (id_ == 0) {
    throw cuda_error(cudaErrorNotSupported, "cudaGraphDebugDotPrint");
  }
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
  bool const is_off = retry_cleanup([&] {
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
  snapshot_.reset();
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

std::shared_ptr<node_table const> graph_core::snapshot() {
  seal();
  drop_hoisted();
  payloads_.sort();
  if (snapshot_ == nullptr) snapshot_ = std::make_shared<node_table const>(payloads_);
  return snapshot_;
}

launch_params const* graph_core::launched(cudaGraphNode_t node) noexcept {
  auto const* const found = payloads_.find(node);
  return found == nullptr ? nullptr : found->launched;
}

void graph_core::copy_payloads(graph_core& original) {
  if (original.keeper_ != nullptr) set_keeper(*original.keeper_);
  original.drop_hoisted();
  if (original.payloads_.entries().empty()) return;
  order_ = original.order_;
  device_ = original.device_;
  payloads_.entries().reserve(original.payloads_.entries().size());
  placed_ = graph_registry::global().bundles_of(id_);
  for (placed_bundle const& each : placed_) each.bundle->hold();
  graph_lifetime_lock const turn;  // the links are read
  for (node_table::entry copied : original.payloads_.entries()) {
    check(cudaGraphNodeFindInClone(&copied.node, copied.node, native_), "cudaGraphNodeFindInClone");
    payloads_.insert(copied);
  }
}

}  // namespace escrow
