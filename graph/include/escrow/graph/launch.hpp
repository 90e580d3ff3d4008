// Launching a kernel whose arguments stay alive until it is done, captured or not.
#pragma once

#include <array>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/kept_arguments.hpp"
#include "escrow/graph/kernel.hpp"
#include "escrow/graph/launch_config.hpp"

namespace escrow {

namespace detail {

// Enqueues the kernel with the values that `values` points to.
void launch_values(stream_ref stream, kernel const& launched, launch_config const& config,
                   void** values);

// Keeps what has to be kept, and launches with `values`, of the types that the kernel has.
template <class... Values, class... Arguments>
void launch_keeping(stream_ref stream, kernel const& launched, launch_config const& config,
                    std::tuple<Values...> values, Arguments&&... arguments) {
  (announce_use(arguments, stream), ...);
  auto pointers = addresses_of(values);
  auto const enqueue = [&] { launch_values(stream, launched, config, pointers.data()); };
  if (!keeps_any<Arguments...> && launched.library() == nullptr) {
    static_cast<void>(usable_capture_of("launch", stream));  // else retire_around() asks
    return enqueue();
  }

  using kept = kept_launch<Arguments...>;
  auto const take = [&](kept& in_place) noexcept { in_place.take(arguments...); };
  deleter& keeper = config.keeper != nullptr ? *config.keeper : deleter::global();
  keeper.retire_around("launch", stream, kept(launched, arguments...), take, enqueue);
}

}  // namespace detail

// Launches a kernel on `stream`. An argument whose type owns what the kernel uses
// (kernel_argument_traits: std::shared_ptr, std::unique_ptr, a lease of a pool, a type of the
// caller's) is passed as its device value, and kept until the kernel is done; in a capture, until
// the graph, its clones, execs and their launches are gone. Other arguments are passed as they are,
// and must have exactly the types that the kernel has. The library that the kernel was found in is
// kept as well. An argument that can only be moved has to be moved in; eager, it is moved from only
// if the launch succeeds. Throws usage_error for a kernel that was moved from, an invalidated
// capture, a lease that was not claimed in the capture, the legacy stream while a blocking stream
// captures, and a keeper that was stopped; cuda_error, std::bad_alloc. Nothing was launched then
// (leases may stay told of the stream, as by record_stream()), with one exception: if, eager, the
// error names cudaEventRecord, the kernel runs, and what it uses is kept for ever
// (deleter_stats::held). Any thread. Source: cudaLaunchKernelExC.
template <class... Arguments>
void launch(stream_ref stream, kernel const& launched, launch_config const& config,
            Arguments&&... arguments) {
  using values = std::tuple<decltype(detail::device_value_of(arguments))...>;
  detail::launch_keeping(stream, launched, config, values(detail::device_value_of(arguments)...),
                         std::forward<Arguments>(arguments)...);
}

// The same for a __global__ function, whose parameters' types the arguments are converted to.
template <class... Parameters, class... Arguments>
void launch(stream_ref stream, void (*launched)(Parameters...), launch_config const& config,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "as many arguments as the kernel has parameters");
  detail::launch_keeping(stream, kernel(launched), config,
                         std::tuple<Parameters...>(detail::device_value_of(arguments)...),
                         std::forward<Arguments>(arguments)...);
}

}  // namespace escrow
