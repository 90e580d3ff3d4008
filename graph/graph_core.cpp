// SPDX-License-Identifier: Apache-2.0
// Nodes and what they keep: placed on the graph, taken off it; and the graph's end.
#include "graph_core.hpp"

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "graph_tree.hpp"
#include "kernel_attributes.hpp"
#include "why_invalid.hpp"

namespace escrow::inline v0_2 {

namespace {

// All sets of a graph's nodes have one order, also those of other owners, before and after a
// change: it does not tell whether two parts have the same.
member_use node_use(retired_object const& owner) {
  return std::min(owner.use(), member_use::written);
}

void report_misuse(char const* api, char const* problem, char const* advice) noexcept {
  try {
    deleter::global().core().report(usage_error(api, problem, advice));
  } catch (std::exception const&) {
    // No memory for the text.
  }
}

template <class Handle>
void destroy(Handle doomed, cudaError_t (*end)(Handle), char const* api) noexcept {
  // Outside Relaxed mode, destroying an exec invalidates a capture.
  cudaError_t const status = retry_cleanup_relaxed([=] {
    graph_lifetime_lock const lock;
    return end(doomed);
  });
  if (status == cudaErrorInvalidValue) {
    return report_misuse(api, "it was destroyed already",
                         "leave what get() gives to its owner, or detach() it");
  }
  if (status != cudaErrorNotPermitted) return;
  // In a CUDA callback, where CUDA destroys nothing: the worker does.
  owned<Handle> left(doomed);
  deleter& its = deleter::global();
  try {
    its.retire(std::move(left));
  } catch (std::exception const&) {
    static_cast<void>(left.release());
    its.core().count_leaked();
    its.core().report(status, api);
  }
}

cudaKernelNodeParams kernel_params_of(cudaGraphNodeParams const& params) noexcept {
  auto const& its = params.kernel;
  return {its.func, its.gridDim, its.blockDim, its.sharedMemBytes, its.kernelParams, nullptr};
}

}  // namespace

void handle_end::operator()(cudaGraph_t doomed) const noexcept {
  destroy(doomed, cudaGraphDestroy, "cudaGraphDestroy");
}
void handle_end::operator()(cudaGraphExec_t doomed) const noexcept {
  destroy(doomed, cudaGraphExecDestroy, "cudaGraphExecDestroy");
}

owned<cudaGraph_t> new_graph() {
  cudaGraph_t made = nullptr;
  check(cudaGraphCreate(&made, 0), "cudaGraphCreate");
  return owned<cudaGraph_t>(made);
}

ref<retired_object> node_owner::hand_on(int device) && noexcept {
  if (made == nullptr) return std::move(shared);
  made->set_device(device);
  made->enter_graph();
  return ref<retired_object>(*made.release());
}

graph_core::graph_core(owned<cudaGraph_t> created) : native_(std::move(created)) {
  // The graph that had the handle before was destroyed.
  graph_registry::global().forget(native());
  // Last: on failure the registry must not know the handle.
  graph_registry::global().own(native(), 0);
}

graph_core::graph_core(owned<cudaGraph_t> native, std::uint64_t id) : native_(std::move(native)) {
  cudaGraph_t const its = native_.get();
  if (its == nullptr) return;
  graph_registry& registry = graph_registry::global();
  bool const is_needed = id == 0 && registry.known(its).id != 0;
  if (is_needed) id = graph_id_of(its).value_or(0);
  if (is_needed && id == 0) {
    throw usage_error("graph", "the graph's id cannot be learned",
                      "give it to the constructor: graph(native, id)");
  }
  registry.own(its, id);
}

graph_core::~graph_core() {
  for (body const& each : bodies) graph_registry::global().drop_body(each.graph);
  graph_registry::global().forget(native());
  native_.reset();
  forget_payloads();
  if (keeper_ != nullptr) keeper_->drop_use();
}

deleter_core& graph_core::keeper() {
  return keeper_ != nullptr ? *keeper_ : deleter::global().core();
}

void graph_core::set_keeper(deleter_core& keeper) noexcept {
  keeper.add_use();
  keeper_ = &keeper;
}

void graph_core::forget_payloads() noexcept {
  payloads_.clear();
  placed_.clear();
}

ref<reference_set> graph_core::set_of(std::span<retired_object* const> owners,
                                      std::shared_ptr<launch_order> order) {
  ref<reference_set> made = reference_set::make(keeper(), device_, std::move(order));
  made->reserve(owners.size());
  for (retired_object* const each : owners) {
    made->append(*each, node_use(*each));
  }
  return made;
}

void graph_core::place(std::span<retired_object* const> owners) {
  placed_.reserve(placed_.size() + 1);
  ref<reference_set> made = set_of(owners, order_);
  graph_registry::global().place(made, native(), 0, false);
  placed_.push_back(std::move(made));
}

void graph_core::take_off(reference_set& set) noexcept {
  cudaError_t const status =
      retry_cleanup([&] { return cudaGraphReleaseUserObject(native(), set.object(), 1); });
  if (status == cudaSuccess) {
    graph_registry::global().remove(set, native());
  } else {
    set.core().report(status, "cudaGraphReleaseUserObject");  // it stays as long as the graph
  }
}

void graph_core::forget_hoisted() noexcept {
  // The graph may have been hoisted by its handle.
  auto const is_off = [this](auto const& each) {
    return !graph_registry::global().is_on(*each, native());
  };
  if (std::ranges::any_of(placed_, is_off)) forget_payloads();
}

void graph_core::forget_unused() {
  if (payloads_.empty()) return;
  // Those of child graphs, too, which node_of() gives.
  std::vector<cudaGraphNode_t> all = tree_nodes_of(native());
  for (body const& each : bodies) {
    std::ranges::copy(tree_nodes_of(each.graph), std::back_inserter(all));
  }
  // The last entry of a node counts. Nodes may have been destroyed by plain calls, and others may
  // have got their handles.
  std::unordered_set<cudaGraphNode_t> left(all.begin(), all.end());
  auto const is_stale = [&left](auto const& each) { return left.erase(each.node) == 0; };
  payloads_.erase(payloads_.begin(),
                  std::remove_if(payloads_.rbegin(), payloads_.rend(), is_stale).base());
  std::erase_if(payloads_, [](auto const& each) { return each.owner == nullptr; });
}

template <class Call>
void graph_core::keep_after(Call const& call, node_owner kept) {
  ref<retired_object> const owner = std::move(kept).hand_on(device_);
  if (owner) {
    reference_set const* const last = placed_.empty() ? nullptr : placed_.back().get();
    // What was hoisted is sealed.
    if (last == nullptr || last->is_off_graphs() || graph_registry::global().is_sealed(*last)) {
      forget_hoisted();
      place({});
    }
    placed_.back()->reserve(1);
  }
  if (payloads_.size() == payloads_.capacity()) payloads_.reserve(2 * payloads_.size() + 8);
  cudaGraphNode_t const node = call();  // nothing fails after it
  if (owner || !payloads_.empty()) payloads_.push_back({node, owner.get()});
  if (owner) placed_.back()->append(*owner, node_use(*owner));
}

cudaGraphNode_t graph_core::add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                cudaGraphNodeParams& params, node_owner owner,
                                std::span<cudaLaunchAttribute const> attributes) {
  cudaGraphNode_t made = nullptr;
  if (!attributes.empty()) {
    try_attributes(new_graph().get(), kernel_params_of(params), attributes);
  }
  auto const call = [&] {
    if (params.type == cudaGraphNodeTypeKernel) {  // most are, and this call is faster
      cudaKernelNodeParams const its = kernel_params_of(params);
      check(cudaGraphAddKernelNode(&made, in, after.data(), after.size(), &its),
            "cudaGraphAddKernelNode");
    } else {
      refuse_parked_groups("add", in);  // CUDA looks at the addresses of copies and fills
      cudaError_t const status =
          cudaGraphAddNode(&made, in, after.data(), nullptr, after.size(), &params);
      check(status, "cudaGraphAddNode", source_location::current(),
            status == cudaErrorInvalidValue ? why_refused(params) : std::string_view());
    }
    return made;
  };
  if (!owner.is_any() && payloads_.empty()) {  // no earlier node with the handle kept anything
    call();
  } else {
    keep_after(call, std::move(owner));
  }
  try {
    give_attributes(made, attributes);
  } catch (cuda_error const&) {
    destroy(made, 0);
    throw;
  }
  return made;
}

void graph_core::set(cudaGraphNode_t changed, cudaGraphNodeParams& params, node_owner owner,
                     std::span<cudaLaunchAttribute const> attributes) {
  refuse_parked_groups("set", native());
  if (!attributes.empty()) {
    try_attributes(new_graph().get(), kernel_params_of(params), attributes);
  }
  auto const call = [&] {
    change_for_attributes(changed, params, attributes);
    return changed;
  };
  keep_after(call, std::move(owner));
  is_changed_.store(true, std::memory_order_relaxed);
  give_attributes(changed, attributes);
}

ref<retired_object> graph_core::owner_of(cudaGraphNode_t node) const noexcept {
  auto const is_its = [node](kept_owner const& each) { return each.node == node; };
  auto const last = std::find_if(payloads_.rbegin(), payloads_.rend(), is_its);
  if (last == payloads_.rend() || last->owner == nullptr) return {};
  return ref<retired_object>(*last->owner);
}

bool graph_core::has_body(std::uint64_t number) const noexcept {
  auto const is_it = [number](body const& each) { return each.number == number; };
  return number == 0 || std::ranges::any_of(bodies, is_it);
}

bool graph_core::is_tested(cudaGraphConditionalHandle condition) const noexcept {
  auto const is_it = [condition](body const& each) { return each.tested == condition; };
  return std::ranges::any_of(bodies, is_it);
}

std::uint64_t graph_core::home_of(std::uint64_t made_in) const {
  while (!has_body(made_in)) made_in = homes_.at(made_in);
  return made_in;
}

bool graph_core::keeps_more_than_owners() const {
  auto const is_other = [this](cudaGraph_t each) {
    return graph_registry::global().sets_on(each) > (each == native() ? placed_.size() : 0);
  };
  return std::ranges::any_of(graphs_of(native()), is_other);
}

std::vector<cudaGraph_t> graph_core::bodies_of(cudaGraphNode_t conditional) const {
  std::vector<cudaGraph_t> found;
  std::vector<cudaGraphNode_t> open{conditional};
  while (!open.empty()) {
    cudaGraphNode_t const node = open.back();
    open.pop_back();
    for (body const& each : bodies) {
      if (each.of != node) continue;
      found.push_back(each.graph);
      std::ranges::copy(nodes_of(each.graph), std::back_inserter(open));
    }
  }
  return found;
}

void graph_core::destroy(cudaGraphNode_t doomed, std::uint64_t in_body) {
  std::vector<cudaGraph_t> const gone = bodies_of(doomed);
  auto const is_gone = [&gone](body const& each) {
    return std::ranges::find(gone, each.graph) != gone.end();
  };
  auto homes = homes_;
  for (body const& each : bodies) {
    if (is_gone(each)) homes.emplace(each.number, in_body);
  }
  auto const call = [&] {
    graph_lifetime_lock const turn;
    check(cudaGraphDestroyNode(doomed), "cudaGraphDestroyNode");
    return doomed;
  };
  std::uint64_t& ended = ended_[doomed];
  keep_after(call, {});
  ended = ++nodes_ended;
  is_changed_.store(true, std::memory_order_relaxed);
  homes_.swap(homes);
  std::erase_if(bodies, is_gone);
  for (cudaGraph_t const each : gone) graph_registry::global().drop_body(each);
  if (payloads_.empty()) return;
  try {
    seal();
  } catch (std::exception const& why) {
    report(why, "what the node kept stays until the graph is next used");
  }
}

void graph_core::report(std::exception const& why, std::string_view consequence) {
  auto const* const failed = dynamic_cast<cuda_error const*>(&why);
  if (failed == nullptr) return keeper().report(why);
  keeper().report(cuda_error(failed->status(), failed->api(), failed->where(), consequence));
}

void graph_core::seal() {
  forget_hoisted();
  forget_unused();
  std::size_t on_graph = 0;
  for (auto const& each : placed_) on_graph += each->size();
  if (payloads_.empty() || on_graph != payloads_.size()) {
    std::size_t const before = placed_.size();
    std::vector<retired_object*> owners;
    for (kept_owner const& each : payloads_) owners.push_back(each.owner);
    if (!owners.empty()) place(owners);
    auto const end = placed_.begin() + static_cast<std::ptrdiff_t>(before);
    std::for_each(placed_.begin(), end, [this](auto const& each) { take_off(*each); });
    placed_.erase(placed_.begin(), end);
  }
  is_changed_.store(false, std::memory_order_relaxed);
}

cudaGraph_t graph_core::expose() {
  if (is_changed()) seal();
  note_exposed();
  return native();
}

void graph_core::note_exposed() noexcept {
  if (!std::exchange(is_exposed_, true)) graph_registry::global().expose(native());
}

void graph_core::refuse_parked_groups(char const* call, cudaGraph_t in) const {
  if (!is_any_parked()) return;
  group_pins pins;
  for (cudaGraph_t const each : {native(), in}) {
    for (auto const& group : graph_registry::global().groups_of(each)) pins.add(call, group);
  }
}

cudaGraph_t graph_core::detach() {
  seal();
  note_exposed();
  graph_registry& registry = graph_registry::global();
  // The handle alone no longer identifies the graph.
  auto const known = registry.known(native());
  std::uint64_t id = known.id;
  if (id == 0 && known.is_used) id = graph_id_of(native()).value_or(0);
  registry.disown(native(), id);
  forget_payloads();
  for (body const& each : bodies) registry.drop_body(each.graph);
  bodies.clear();
  return native_.release();
}

void graph_core::copy_payloads(graph_core& original) {
  if (original.keeper_ != nullptr) set_keeper(*original.keeper_);
  device_ = original.device_;
  if (original.payloads_.empty()) return;
  order_ = original.order_;
  placed_ = original.placed_;
  // CUDA finds no node of a child graph in a clone (measured).
  std::vector<cudaGraphNode_t> const from = tree_nodes_of(original.native());
  std::vector<cudaGraphNode_t> const to = tree_nodes_of(native());
  std::unordered_map<cudaGraphNode_t, cudaGraphNode_t> copies;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) copies.emplace(from[i], to[i]);
  for (kept_owner const& each : original.payloads_) {
    auto const found = copies.find(each.node);  // a destroyed one is not there
    if (found != copies.end()) payloads_.push_back({found->second, each.owner});
  }
}

}  // namespace escrow::inline v0_2
