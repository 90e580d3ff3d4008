// SPDX-License-Identifier: Apache-2.0
// A kind of node: what CUDA is told of a node, and what the node keeps alive.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/detail/bound_arguments.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/retired_object.hpp"
#include "escrow/nodes/launch.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class graph_core;

namespace detail {

// What CUDA is told of a node, and what the node keeps, complete before the call that may fail.
struct node_draft {
  cudaGraphNodeParams params{};
  retired_object::loan payload;
  std::span<cudaLaunchAttribute const> attributes = {};  // of a kernel
  ref<retired_object> shared = {};                       // in place of the payload: another node's
};

// A kind of node whose parameters can be changed. draft() is called once, in the name of a function
// of Escrow; the parameters may point into the kind.
template <class Kind>
concept changeable_kind = requires(Kind& kind, char const* call, graph_core& core) {
  { kind.draft(call, core) } -> std::same_as<node_draft>;
};

// Whether a kind still has what its node is to keep: not after a move out of it.
class possession {
 public:
  explicit possession(bool is_any) noexcept
      : now_(is_any ? ownership::there : ownership::nothing) {}
  possession(possession const&) noexcept = default;
  possession(possession&& other) noexcept : now_(other.leave()) {}
  possession& operator=(possession const&) noexcept = default;
  possession& operator=(possession&& other) noexcept {
    now_ = other.leave();
    return *this;
  }
  ~possession() = default;

  // Throws usage_error if it was taken.
  void require(char const* call) const {
    if (now_ != ownership::taken) return;
    throw usage_error(call, "`kind` was moved from: its owners were taken by an earlier add",
                      "make the node kind again");
  }

 private:
  enum class ownership { nothing, there, taken };
  ownership leave() noexcept {
    return now_ == ownership::there ? std::exchange(now_, ownership::taken) : now_;
  }

  ownership now_;
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
    call_nothrow("the function of a host_node", static_cast<host_callable*>(called)->function);
  }
  Function function;
};

// An empty object for what a node of this graph keeps. Throws usage_error, in the name of `call`,
// if the deleter was stopped.
[[nodiscard]] ESCROW_API retired_object::loan payload_of(char const* call, graph_core& core);

// A kind whose parameters can be changed, with what the node keeps; of a kernel, with its values.
template <class Owner, class Values = std::tuple<>>
class owning_kind {
 public:
  owning_kind(cudaGraphNodeParams const& params, Owner owner, Values values = {})
      : params_(params),
        values_(std::move(values)),
        has_(has_what_a_move_takes(owner)),
        owner_(std::move(owner)) {}

  // Of a kernel; they are moved with the kind.
  void set_attributes(std::vector<cudaLaunchAttribute> attributes) noexcept {
    attributes_ = std::move(attributes);
    if (!attributes_.empty()) has_ = possession(true);
  }

  [[nodiscard]] node_draft draft(char const* call, graph_core& core) {
    has_.require(call);
    node_draft made{params_, {}, attributes_};
    pointers_ = addresses_of(values_);
    if (params_.type == cudaGraphNodeTypeKernel) {
      made.params.kernel.kernelParams = pointers_.data();
    }
    if constexpr (requires { owner_.is_empty(); }) {
      if (owner_.is_empty()) return made;
    }
    made.payload = payload_of(call, core);
    if constexpr (requires { owner_.without_library(); }) {
      if (auto* const arguments = owner_.without_library()) {
        keep(made, *arguments);
        return made;
      }
    }
    keep(made, owner_);
    return made;
  }

 private:
  template <class Kept>
  static void keep(node_draft& made, Kept& owner) {
    Kept& placed = made.payload->emplace(std::move(owner));
    if (made.params.type == cudaGraphNodeTypeHost) made.params.host.userData = &placed;
    if constexpr (requires { placed.end_slot_shares_with(*made.payload); }) {
      placed.end_slot_shares_with(*made.payload);
    }
  }

  static bool has_what_a_move_takes(Owner const& owner) noexcept {
    if constexpr (requires { owner.is_empty(); }) {
      return !owner.is_empty();
    } else {
      return !std::is_trivially_copyable_v<Owner>;  // else a move is a copy
    }
  }

  cudaGraphNodeParams params_;
  std::vector<cudaLaunchAttribute> attributes_;
  Values values_;
  decltype(addresses_of(std::declval<Values&>())) pointers_{};
  possession has_;  // before the owner, which is moved away
  Owner owner_;
};

// A kind with what its node keeps of the arguments, which the kind has from now on: an argument
// that can only be moved is moved into it, last of all.
template <class Owner, class... Values>
auto taking_kind(cudaGraphNodeParams const& params, Owner owner, Values... values) {
  owner.take();
  return owning_kind<Owner, Values...>(params, std::move(owner), std::move(values)...);
}

// The values for a kernel: the arguments' own, or, of a function, of its parameters' types.
template <class... Arguments>
auto node_values(kernel const* /*launched*/, Arguments const&... arguments) {
  return values_of("kernel_node", arguments...);
}
template <class... Parameters, class... Arguments>
std::tuple<Parameters...> node_values(void (* /*launched*/)(Parameters...),
                                      Arguments const&... arguments) {
  return values_for<Parameters...>("kernel_node", arguments...);
}

template <class Launched, class... Arguments>
auto kernel_kind(kernel const& launched, launch_config const& config, source_location where,
                 std::remove_reference_t<Arguments>&... arguments) {
  using owner = launch_owner<bound_to::node, Arguments...>;
  return called_at("kernel_node", where, [&] {
    cudaGraphNodeParams const params = kernel_params(launched, config);
    auto values = node_values(static_cast<Launched*>(nullptr), arguments...);
    if constexpr (std::same_as<Launched, kernel>) require_values("kernel_node", launched, values);
    auto attributes = config.attributes;
    auto made = taking_kind(params, owner(launched, arguments...), std::move(values));
    made.set_attributes(std::move(attributes));
    return made;
  });
}
template <class Launched, class... Arguments>
using kernel_kind_of =
    owning_kind<launch_owner<bound_to::node, Arguments...>,
                decltype(node_values(
                    std::declval<Launched*>(),
                    std::declval<std::remove_reference_t<Arguments> const&>()...))>;

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
}  // namespace escrow::inline v0_2
