// SPDX-License-Identifier: Apache-2.0
// Calls of a caller's function that enqueues work.
#pragma once

#include <driver_types.h>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What launches: returns nothing, or a cudaError_t, which is checked.
template <class Call>
concept launch_call = std::invocable<Call> &&
    (std::is_void_v<std::invoke_result_t<Call>> ||
     std::is_same_v<std::invoke_result_t<Call>, cudaError_t>);

namespace detail {

// Throws usage_error if a caller's function is a null pointer or an empty std::function.
template <class Call>
void require_function(char const* call, Call const& function, source_location where) {
  constexpr bool may_be_null = std::is_constructible_v<Call, std::nullptr_t> && requires {
    function != nullptr;
  };
  if constexpr (may_be_null) {
    if (function == nullptr) {
      refuse_at(where, call, "the function is null", "give one that enqueues the work");
    }
  }
}

// The call's status; success if it returns nothing.
template <launch_call Call>
[[nodiscard]] cudaError_t status_of(Call&& call) {
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    std::forward<Call>(call)();
    return cudaSuccess;
  } else {
    return std::forward<Call>(call)();
  }
}

// The same of one that takes the stream that it enqueues on, or nothing.
template <class Call>
[[nodiscard]] cudaError_t status_on(stream_ref stream, Call&& call) {
  constexpr bool takes_stream = std::invocable<Call, stream_ref>;
  static_assert(takes_stream || std::invocable<Call>,
                "the function is called with an escrow::stream_ref, or with nothing");
  auto const bound = [&]() -> decltype(auto) {
    if constexpr (takes_stream) {
      return std::forward<Call>(call)(stream);
    } else if constexpr (std::invocable<Call>) {
      return std::forward<Call>(call)();
    }
  };
  constexpr bool is_checked = launch_call<decltype(bound)>;
  static_assert(is_checked, "the function returns nothing, or a cudaError_t, which is checked");
  if constexpr (is_checked) return status_of(bound);
  return cudaSuccess;
}

}  // namespace detail

}  // namespace escrow::inline v0_2
