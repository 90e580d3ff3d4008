// The parameters of a node, with what they keep alive: the same for a new node, for one of a graph
// that is changed, and for one of an exec.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "escrow/core/event.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/graph/kept_arguments.hpp"
#include "escrow/graph/launch_config.hpp"
#include "escrow/graph/memset_config.hpp"
#include "escrow/graph/node_payload.hpp"

namespace escrow::detail {

// CUDA's parameters. They throw usage_error for what cannot be meant.
[[nodiscard]] cudaGraphNodeParams kernel_params(kernel const& launched, launch_config const& config,
                                                void** values);
[[nodiscard]] cudaGraphNodeParams memset_params(void* destination, memset_config const& config);
[[nodiscard]] cudaGraphNodeParams memcpy_params(void* to, void const* from, std::size_t bytes);
[[nodiscard]] cudaGraphNodeParams host_params(cudaHostFn_t function, void* data);
// What a C function is called with.
[[nodiscard]] std::unique_ptr<std::byte[]> copy_of(void const* data, std::size_t bytes);
[[nodiscard]] cudaGraphNodeParams record_params(cudaEvent_t event);
[[nodiscard]] cudaGraphNodeParams wait_params(cudaEvent_t event);

// What: all that one version of a kernel node keeps, where CUDA does not tell what it launches.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as kept_arguments.
template <class... Arguments>
class kept_node_launch {
 public:
  kept_node_launch(kernel const& launched, launch_config const& config,
                   std::remove_reference_t<Arguments>&... arguments)
      : params_{launched, config.grid, config.block, config.shared_bytes},
        arguments_(arguments...) {}

  [[nodiscard]] launch_params const& params() const noexcept { return params_; }
  void take(std::remove_reference_t<Arguments>&... arguments) noexcept {
    arguments_.take(arguments...);
  }
  void end_slot_shares_with(retired_owner& payload) noexcept {
    arguments_.end_slot_shares_with(payload);
  }

 private:
  launch_params params_;
  kept_node_arguments<Arguments...> arguments_;
};

// Calls `apply(cudaGraphNodeParams&, node_payload)`, which throws or keeps the payload, and returns
// what it returns. Arguments that are moved in are taken afterwards.
template <class Kept, class Apply, class... Arguments>
auto apply_keeping(release_hub& keeper, Apply& apply, cudaGraphNodeParams& params, Kept kept,
                   Arguments&... arguments) {
  Kept* placed = nullptr;
  node_payload payload(keeper, std::move(kept), placed);
  placed->end_slot_shares_with(*payload.get());
  if constexpr (requires { placed->params(); }) payload.set_launched(&placed->params());
  auto result = apply(params, std::move(payload));
  placed->take(arguments...);
  return result;
}

// With the values that the kernel gets.
template <class Apply, class... Values, class... Arguments>
auto apply_launch_of(std::tuple<Values...> values, release_hub& keeper, Apply apply,
                     kernel const& launched, launch_config const& config,
                     Arguments&&... arguments) {
  auto pointers = addresses_of(values);
  cudaGraphNodeParams params = kernel_params(launched, config, pointers.data());
  if (launched.library() != nullptr) {
    return apply_keeping(keeper, apply, params,
                         kept_node_launch<Arguments...>(launched, config, arguments...),
                         arguments...);
  }
  if constexpr (node_keeps_any<Arguments...>) {
    return apply_keeping(keeper, apply, params, kept_node_arguments<Arguments...>(arguments...),
                         arguments...);
  } else {
    return apply(params, node_payload());
  }
}

template <class Apply, class... Arguments>
auto apply_launch(release_hub& keeper, Apply apply, kernel const& launched,
                  launch_config const& config, Arguments&&... arguments) {
  return apply_launch_of(std::tuple(device_value_of(arguments)...), keeper, apply, launched, config,
                         std::forward<Arguments>(arguments)...);
}

// The same for a __global__ function, whose parameters' types the arguments are converted to.
template <class Apply, class... Parameters, class... Arguments>
auto apply_launch(release_hub& keeper, Apply apply, void (*launched)(Parameters...),
                  launch_config const& config, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "as many arguments as the kernel has parameters");
  return apply_launch_of(std::tuple<Parameters...>(device_value_of(arguments)...), keeper, apply,
                         kernel(launched), config, std::forward<Arguments>(arguments)...);
}

template <class Apply, class... Arguments>
auto apply_with(release_hub& keeper, Apply apply, cudaGraphNodeParams params,
                Arguments&&... arguments) {
  if constexpr (node_keeps_any<Arguments...>) {
    return apply_keeping(keeper, apply, params, kept_node_arguments<Arguments...>(arguments...),
                         arguments...);
  } else {
    return apply(params, node_payload());
  }
}

template <class Apply, class Destination>
auto apply_memset(release_hub& keeper, Apply apply, memset_config const& config,
                  Destination&& destination) {
  return apply_with(keeper, apply, memset_params(device_value_of(destination), config),
                    std::forward<Destination>(destination));
}

template <class Apply, class To, class From>
auto apply_memcpy(release_hub& keeper, Apply apply, std::size_t bytes, To&& to, From&& from) {
  return apply_with(keeper, apply, memcpy_params(device_value_of(to), device_value_of(from), bytes),
                    std::forward<To>(to), std::forward<From>(from));
}

// A callable of the host that a node calls.
template <class Function>
auto apply_call(release_hub& keeper, auto apply, Function function) {
  Function* placed = nullptr;
  node_payload payload(keeper, std::move(function), placed);
  cudaGraphNodeParams params =
      host_params([](void* called) noexcept { (*static_cast<Function*>(called))(); }, placed);
  return apply(params, std::move(payload));
}

// A C function with a copy of `bytes` bytes of data.
auto apply_call(release_hub& keeper, auto apply, cudaHostFn_t function, void const* data,
                std::size_t bytes) {
  cudaGraphNodeParams params = host_params(function, nullptr);
  auto copy = copy_of(data, bytes);
  params.host.userData = copy.get();
  std::unique_ptr<std::byte[]>* placed = nullptr;
  return apply(params, node_payload(keeper, std::move(copy), placed));
}

// An event, shared or borrowed, for a node that `params_of` makes the parameters of.
auto apply_event(release_hub& keeper, auto apply, auto params_of, shared_event event) {
  cudaGraphNodeParams params = params_of(event.get());
  shared_event* placed = nullptr;
  return apply(params, node_payload(keeper, std::move(event), placed));
}
auto apply_event(release_hub& /*keeper*/, auto apply, auto params_of, event_ref event) {
  cudaGraphNodeParams params = params_of(event.get());
  return apply(params, node_payload());
}

}  // namespace escrow::detail
