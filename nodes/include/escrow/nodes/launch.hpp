// Launching a kernel whose arguments stay alive until it is done, captured or not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/bound_arguments.hpp"
#include "escrow/nodes/kernel.hpp"

namespace escrow::inline v0_1 {

// What: the shape of a launch, and the deleter that destroys what its arguments own.
struct launch_config {
  dim3 grid = {1, 1, 1};         // in blocks
  dim3 block = {1, 1, 1};        // in threads
  std::size_t shared_bytes = 0;  // of dynamic shared memory a block
  // Clusters, cooperative launch and the like; not for nodes. Source: cudaLaunchAttribute.
  std::vector<cudaLaunchAttribute> attributes = {};
  // Null: deleter::global(). Not for nodes, whose graph has one.
  escrow::deleter* deleter = nullptr;
};

namespace detail {

// All that one launch of a kernel, or a kernel node, keeps.
template <bound_to To, class... Arguments>
struct launch_owner {
  static constexpr bool is_shared = bound_arguments<To, Arguments...>::is_shared;
  [[nodiscard]] bool is_empty() const noexcept {
    return decltype(arguments)::is_empty && library == nullptr;
  }
  std::shared_ptr<void const> library;
  bound_arguments<To, Arguments...> arguments;
};

// Enqueues the kernel with the values that `values` points to.
inline void launch_values(stream_ref stream, kernel const& launched, launch_config const& config,
                          void** values) {
  if (launched.get() == nullptr) {
    throw usage_error("launch", "the kernel is null: it was moved from",
                      "copy it, or find it again");
  }
  // CUDA takes the attributes through a pointer to what it does not change.
  auto* const attributes = const_cast<cudaLaunchAttribute*>(config.attributes.data());
  cudaLaunchConfig_t const shape{
      .gridDim = config.grid,
      .blockDim = config.block,
      .dynamicSmemBytes = config.shared_bytes,
      .stream = stream.get(),
      .attrs = attributes,
      .numAttrs = static_cast<unsigned>(config.attributes.size()),
  };
  check(cudaLaunchKernelExC(&shape, launched.get(), values), "cudaLaunchKernelExC");
}

// Keeps what has to be kept, and launches with `values`, of the types that the kernel has.
template <class... Values, class... Arguments>
void launch_keeping(stream_ref stream, kernel const& launched, launch_config const& config,
                    std::tuple<Values...> values, Arguments&&... arguments) {
  (announce_use(arguments, stream), ...);
  auto pointers = addresses_of(values);
  auto const enqueue = [&] { launch_values(stream, launched, config, pointers.data()); };
  using owner = launch_owner<bound_to::stream, Arguments...>;
  owner kept{launched.library(), decltype(owner::arguments)(arguments...)};
  if (kept.is_empty()) {
    static_cast<void>(usable_capture_of("launch", stream));  // else retire_around() asks
    return enqueue();
  }
  deleter& its = config.deleter != nullptr ? *config.deleter : deleter::global();
  auto const take = [](owner& in_place) noexcept { in_place.arguments.take(); };
  its.retire_around("launch", stream, std::move(kept), take, enqueue);
}

}  // namespace detail

// Launches a kernel on `stream`. An argument whose type owns what the kernel uses
// (kernel_argument_traits: std::shared_ptr, std::unique_ptr, a lease of a pool, a type of the
// caller's) is passed as its device value, and kept until the kernel is done; in a capture, until
// the graph, its clones, execs and their launches are destroyed or done. Other arguments are passed
// as they are, and must have exactly the types that the kernel has. The library that the kernel was
// found in is kept as well. An argument that can only be moved has to be moved in; eager, it is
// moved from only if the launch succeeds. Throws usage_error for a kernel that was moved from, an
// invalidated capture, a lease that was not claimed in the capture, the legacy stream while a
// blocking stream captures, and a deleter that was stopped; cuda_error, std::bad_alloc. Nothing was
// launched then (leases may stay told of the stream, as by record_stream()), with one exception:
// if, eager, the error names cudaEventRecord, the kernel runs, and what it uses is leaked
// (deleter_stats::leaked). Any thread. Source: cudaLaunchKernelExC.
// Example: examples/retire.cpp.
template <class... Arguments>
void launch(stream_ref stream, kernel const& launched, launch_config const& config,
            Arguments&&... arguments) {
  detail::launch_keeping(stream, launched, config, detail::values_of(arguments...),
                         std::forward<Arguments>(arguments)...);
}

// The same for a __global__ function, whose parameters' types the arguments are converted to.
// Memory without a type, such as a device_block's, is passed for a pointer to any type.
template <class... Parameters, class... Arguments>
void launch(stream_ref stream, void (*launched)(Parameters...), launch_config const& config,
            Arguments&&... arguments) {
  detail::launch_keeping(stream, kernel(launched), config,
                         detail::values_for<Parameters...>(arguments...),
                         std::forward<Arguments>(arguments)...);
}

}  // namespace escrow::inline v0_1
