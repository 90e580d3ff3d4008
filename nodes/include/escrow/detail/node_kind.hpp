// A kind of node: what CUDA is told of a node, and what the node keeps alive.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/detail/bound_arguments.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/retired_object.hpp"
#include "escrow/nodes/launch.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

class graph_core;

namespace detail {

// What CUDA is told of a node, and what the node keeps, complete before the call that may fail.
struct node_draft {
  cudaGraphNodeParams params{};
  retired_object::loan payload;
};

// A kind of node whose parameters can be changed. draft() is called once, and commit() once CUDA
// has taken the parameters, which may point into the kind.
template <class Kind>
concept changeable_kind = requires(Kind& kind, graph_core& core) {
  { kind.draft(core) } -> std::same_as<node_draft>;
  { kind.commit() }
  noexcept;
};

// CUDA's parameters, yet without values. Throws usage_error, in the name of kernel_node, for what
// cannot be launched by a node.
[[nodiscard]] ESCROW_API cudaGraphNodeParams kernel_params(kernel const& launched,
                                                           launch_config const& config);

// What a node keeps of the arguments that were given as `Arguments` (T& or T, as forwarded).
template <class... Arguments>
using node_arguments = bound_arguments<bound_to::node, Arguments...>;

// A function of the host, which is called where the node keeps it.
template <class Function>
struct host_callable {
  static void CUDART_CB call(void* called) noexcept {
    static_cast<host_callable*>(called)->function();
  }
  Function function;
};

// An empty object for what a node of this graph keeps. Throws usage_error if the deleter was
// stopped.
[[nodiscard]] ESCROW_API retired_object::loan payload_of(graph_core& core);

// A kind whose parameters can be changed, with what the node keeps; of a kernel, with its values.
template <class Owner, class Values = std::tuple<>>
class owning_kind {
 public:
  owning_kind(cudaGraphNodeParams const& params, Owner owner, Values values = {})
      : params_(params), values_(std::move(values)), owner_(std::move(owner)) {}

  [[nodiscard]] node_draft draft(graph_core& core) {
    node_draft made{params_, {}};
    pointers_ = addresses_of(values_);
    if (params_.type == cudaGraphNodeTypeKernel) {
      made.params.kernel.kernelParams = pointers_.data();
    }
    if constexpr (requires { owner_.is_empty(); }) {
      if (owner_.is_empty()) return made;
    }
    made.payload = payload_of(core);
    placed_ = &made.payload->emplace(std::move(owner_));
    if (params_.type == cudaGraphNodeTypeHost) made.params.host.userData = placed_;
    if constexpr (is_bound) placed_->end_slot_shares_with(*made.payload);
    return made;
  }

  void commit() noexcept {
    if constexpr (is_bound) {
      if (placed_ != nullptr) placed_->take();
    }
  }

 private:
  static constexpr bool is_bound = requires { &Owner::end_slot_shares_with; };

  cudaGraphNodeParams params_;
  Values values_;
  decltype(addresses_of(std::declval<Values&>())) pointers_{};
  Owner owner_;
  Owner* placed_ = nullptr;
};

template <class... Arguments, class Values>
auto kernel_kind(kernel const& launched, launch_config const& config, Values values,
                 std::remove_reference_t<Arguments>&... arguments) {
  using owner = launch_owner<bound_to::node, Arguments...>;
  cudaGraphNodeParams const params = kernel_params(launched, config);
  return owning_kind<owner, Values>(params, owner(launched, arguments...), std::move(values));
}

// CUDA's parameters of a node that records, or waits. Throws usage_error for a null event.
[[nodiscard]] ESCROW_API cudaGraphNodeParams event_params(cudaGraphNodeType type, cudaEvent_t event,
                                                          source_location where);

// Of an event that the node keeps, or that has to stay.
inline auto event_kind(cudaGraphNodeType type, std::shared_ptr<event const> shared,
                       source_location where) {
  auto const params = event_params(type, shared == nullptr ? nullptr : shared->get(), where);
  return owning_kind<std::shared_ptr<event const>>(params, std::move(shared));
}
inline auto event_kind(cudaGraphNodeType type, event_ref event, source_location where) {
  return owning_kind<no_share>(event_params(type, event.get(), where), {});
}

}  // namespace detail
}  // namespace escrow::inline v0_1
