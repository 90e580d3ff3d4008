// SPDX-License-Identifier: Apache-2.0
// What a kernel gets for its arguments, and what of them is kept until it is done.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow::inline v0_2::detail {

// What the kernel gets for an argument.
template <class T>
auto device_value_of(T const& argument) {
  if constexpr (owning_argument<T>) {
    using value = decltype(kernel_argument_traits<T>::device_value(argument));
    static_assert(std::is_trivially_copyable_v<value>,
                  "kernel_argument_traits::device_value() must give what can be copied bytewise");
    return kernel_argument_traits<T>::device_value(argument);
  } else {
    static_assert(std::is_trivially_copyable_v<T>,
                  "kernels take values that can be copied bytewise; specialise "
                  "escrow::kernel_argument_traits for a type that owns what the kernel uses");
    return argument;
  }
}

// Whether a T owns host memory of new, which no kernel can use. What a std::shared_ptr owns is not
// known.
template <class T>
inline constexpr bool is_host_memory = false;
template <class T>
inline constexpr bool is_host_memory<std::unique_ptr<T, std::default_delete<T>>> =
    !owning_argument<T>;

// Refuses, in one line of error, arguments that no kernel can use.
template <class... Arguments>
constexpr void require_device_memory() {
  static_assert(
      !(is_host_memory<Arguments> || ...),
      "a std::unique_ptr with std::default_delete owns host memory: pass one whose deleter "
      "frees device memory");
}

// Whether a T may be passed to a kernel for a parameter of this type. Memory that an owner has
// without a type (device_block) is passed for a pointer to any type.
template <class Parameter, class T>
constexpr bool can_be_passed() {
  using value = decltype(device_value_of(std::declval<T const&>()));
  if constexpr (std::is_constructible_v<Parameter, value>) return true;
  constexpr bool is_untyped_memory = owning_argument<T> && std::is_pointer_v<value> &&
                                     std::is_void_v<std::remove_pointer_t<value>>;
  return is_untyped_memory && std::is_pointer_v<Parameter> && requires(value given) {
    static_cast<Parameter>(given);
  };
}

// Refuses, in one line of error, what cannot be passed for a parameter of this type. `argument`,
// from 0, is for the compiler's text.
template <std::size_t argument, class Parameter, class T>
constexpr void require_passable() {
  constexpr bool is_untyped =
      std::is_pointer_v<Parameter> && (std::is_same_v<T, void*> || std::is_same_v<T, void const*>);
  static_assert(
      !is_untyped || can_be_passed<Parameter, T>(),
      "a void* is not passed for a typed pointer: static_cast it to the parameter's type");
  constexpr bool is_array = std::is_array_v<T>;  // as an argument its elements are const
  static_assert(!is_array || can_be_passed<Parameter, T>(),
                "an array is passed by the address of its first element: &array[0]");
  static_assert(is_untyped || is_array || can_be_passed<Parameter, T>(),
                "an argument cannot be converted to the type of the kernel's parameter");
}

// A pool's lease.
template <class T>
concept lease_argument = self_keeping_argument<T> && requires(std::remove_const_t<T>& claimed) {
  { claimed.share_with_node() } -> std::same_as<slot_share>;
  static_cast<bool>(claimed);
};
// A smart pointer to an object that owns what the kernel uses.
template <class T>
concept pointer_to_owner = owning_argument<T> && owning_argument<typename T::element_type> &&
    requires(T const& pointer) {
  { pointer == nullptr } -> std::convertible_to<bool>;
  { *pointer } -> std::convertible_to<typename T::element_type const&>;
};

[[noreturn]] inline void refuse_argument(char const* call, std::size_t position,
                                         char const* problem, char const* advice) {
  throw usage_error(call, "argument " + std::to_string(position) + " (counted from 0) " + problem,
                    advice);
}

// Refuses, in the name of the function that the caller called, an argument that has no value.
template <class T>
void require_there(char const* call, std::size_t position, T const& argument) {
  if constexpr (pointer_to_owner<T>) {
    if (argument == nullptr) {
      refuse_argument(call, position, "is a null pointer to an owner",
                      "pass a pointer to one, or the device address itself");
    }
    require_there(call, position, *argument);
  } else if constexpr (lease_argument<T>) {
    if (!argument) {
      refuse_argument(call, position, "is an empty lease: it was released or moved from",
                      "claim again");
    }
  } else if constexpr (sized_argument<T> && requires { static_cast<bool>(argument); }) {
    if (!argument) {
      refuse_argument(call, position, "has no memory: it was moved from",
                      "use the one that it was moved to");
    }
  }
}
template <class... Arguments>
void require_all_there([[maybe_unused]] char const* call, Arguments const&... arguments) {
  [[maybe_unused]] std::size_t position = 0;
  (require_there(call, position++, arguments), ...);
}

// What memset and memcpy nodes take for an argument: the address of an array is that of its first
// element.
template <class T>
auto address_of(T& argument) {
  if constexpr (std::is_array_v<T>) {
    return static_cast<std::remove_extent_t<T>*>(argument);
  } else {
    return device_value_of(argument);
  }
}

// Where a node copies or fills, and how many bytes are there; unknown_bytes: that is not known.
inline constexpr std::size_t unknown_bytes = std::numeric_limits<std::size_t>::max();
template <class Address>
struct memory_span {
  Address* address;
  std::size_t bytes;
};
using writable_span = memory_span<void>;
using readable_span = memory_span<void const>;

// That of an argument, which is there: see require_there().
template <class Span, class T>
Span span_of(char const* call, std::size_t position, T& argument) {
  using plain = std::remove_const_t<T>;
  require_there(call, position, argument);
  std::size_t bytes = unknown_bytes;
  if constexpr (std::is_array_v<T>) {
    bytes = sizeof(T);
  } else if constexpr (sized_argument<T>) {
    bytes = kernel_argument_traits<plain>::bytes(argument);
  }
  using address = decltype(Span::address);
  if constexpr (std::is_convertible_v<decltype(address_of(argument)), address>) {
    return {address_of(argument), bytes};
  } else {
    static_assert(std::is_convertible_v<decltype(address_of(argument)), address>,
                  "this is no memory that can be written, or read: pass a pointer, an array or an "
                  "owner; what is const is not written");
    return {};
  }
}

// The arguments' values, as they are. Throws usage_error, in the name of `call`, for one that has
// none.
template <class... Arguments>
auto values_of([[maybe_unused]] char const* call, Arguments const&... arguments) {
  require_device_memory<Arguments...>();
  require_all_there(call, arguments...);
  return std::tuple<decltype(device_value_of(arguments))...>(device_value_of(arguments)...);
}

// The same, of the types that the kernel's parameters have.
template <class... Parameters, class... Arguments>
std::tuple<Parameters...> values_for([[maybe_unused]] char const* call,
                                     Arguments const&... arguments) {
  if constexpr (sizeof...(Parameters) != sizeof...(Arguments)) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                  "as many arguments as the kernel has parameters");
    std::terminate();
  } else if constexpr (!(can_be_passed<Parameters, Arguments>() && ...)) {
    []<std::size_t... argument>(std::index_sequence<argument...>) {
      (require_passable<argument, Parameters, Arguments>(), ...);
    }
    (std::index_sequence_for<Arguments...>());
    std::terminate();
  } else {
    static_assert(!((std::is_floating_point_v<Arguments> && std::is_integral_v<Parameters>) || ...),
                  "a floating-point argument would become an integer: static_cast it, or give the "
                  "arguments in the order of the kernel's parameters");
    require_device_memory<Arguments...>();
    require_all_there(call, arguments...);
    return std::tuple<Parameters...>(static_cast<Parameters>(device_value_of(arguments))...);
  }
}

// The addresses of a kernel's values, as CUDA takes them.
template <class... Values>
std::array<void*, sizeof...(Values) + 1> addresses_of(std::tuple<Values...>& values) {
  return std::apply(
      [](auto&... each) {
        return std::array<void*, sizeof...(Values) + 1>{std::addressof(each)..., nullptr};
      },
      values);
}

// Tells an argument that keeps itself on streams.
template <class T>
void announce_use(T& argument, stream_ref stream) {
  using customised = kernel_argument_traits<std::remove_const_t<T>>;
  if constexpr (self_keeping_argument<T>) {
    static_assert(
        !shareable_argument<T>,
        "kernel_argument_traits has either owner() or before_launch(): which of them keeps it?");
    static_assert(
        requires { customised::before_launch(argument, stream); },
        "this argument, such as a lease, has to be told of its use, and is const: declare it "
        "without const");
    customised::before_launch(argument, stream);
  }
}

// What keeps the arguments: a launch on a stream, or a node of a graph. They differ in arguments
// that keep themselves on streams, of which a node gets a share.
enum class bound_to { stream, node };

// Nothing is kept of an argument.
struct no_share {
  static constexpr bool is_empty() noexcept { return true; }
  static constexpr bool is_shared = true;  // as owner: see is_shared_owner
};

// An argument that is moved in when nothing can fail any more, or, of a node's kind, when the kind
// is made: until then where it is.
template <class T>
class moved_in {
  static_assert(std::is_nothrow_move_constructible_v<T>);

 public:
  explicit moved_in(T& from) noexcept : object_(std::in_place_index<0>, &from) {}
  moved_in(moved_in&&) noexcept = default;

  void take() noexcept {
    T* const from = std::get<0>(object_);
    object_.template emplace<1>(std::move(*from));
  }

 private:
  std::variant<T*, T> object_;
};

// Whether an argument that was given as `Argument` (T& or T, as forwarded) stays its caller's.
template <class Argument>
inline constexpr bool is_named =
    std::is_reference_v<Argument> || std::is_const_v<std::remove_reference_t<Argument>>;

// What is kept of an argument. Throws what taking a share throws.
template <bound_to To, class Argument>
auto share_of(std::remove_reference_t<Argument>& argument) {
  using given = std::remove_reference_t<Argument>;
  using T = std::remove_const_t<given>;
  using traits = kernel_argument_traits<T>;
  if constexpr (!owning_argument<T> || (self_keeping_argument<T> && To == bound_to::stream)) {
    return no_share();
  } else if constexpr (self_keeping_argument<T>) {
    constexpr bool has_share = requires {
      traits::owner_for_node(argument);
    };
    static_assert(has_share,
                  "this argument gives a node no share: it is const, or has no owner_for_node()");
    if constexpr (has_share) {
      return traits::owner_for_node(argument);
    } else {
      return no_share();
    }
  } else if constexpr (shareable_argument<T>) {
    return traits::owner(argument);
  } else if constexpr (is_named<Argument> && outlasting_argument<T>) {
    // A launch in a capture keeps it on its own: see share_with_capture().
    if constexpr (To == bound_to::node) {
      return traits::owner_in_graph(argument);
    } else {
      return no_share();
    }
  } else {
    constexpr bool is_moved = !is_named<Argument>;
    static_assert(is_moved,
                  "the owner of this argument cannot be shared: std::move it into the launch, or "
                  "pass its data(), if it outlives the work; of a lease pass the lease itself");
    if constexpr (is_moved) {
      return moved_in<T>(argument);
    } else {
      return no_share();
    }
  }
}

// What: all that is kept of some arguments.
// Errors: the constructor throws what taking a share throws; the rest cannot fail.
template <bound_to To, class... Arguments>
class bound_arguments {
  template <class Argument>
  using share =
      decltype(share_of<To, Argument>(std::declval<std::remove_reference_t<Argument>&>()));

 public:
  explicit bound_arguments(std::remove_reference_t<Arguments>&... arguments)
      : shares_(share_of<To, Arguments>(arguments)...) {}

  // Whether nothing is kept of any argument.
  static constexpr bool is_empty() noexcept {
    return (std::is_same_v<share<Arguments>, no_share> && ...);
  }
  // See is_shared_owner.
  static constexpr bool is_shared = (is_shared_owner<share<Arguments>> && ...);

  // Takes what is moved in, from where it is.
  void take() noexcept {
    std::apply([](auto&... each) { (take_one(each), ...); }, shares_);
  }
  // Shares of slots end with the payload that they are in, not with the owners in it.
  void end_slot_shares_with(retired_object& payload) noexcept {
    std::apply([&](auto&... each) { (end_one(each, payload), ...); }, shares_);
  }

 private:
  static void take_one(auto& /*share*/) noexcept {}
  template <class T>
  static void take_one(moved_in<T>& share) noexcept {
    share.take();
  }
  static void end_one(auto& /*share*/, retired_object& /*payload*/) noexcept {}
  static void end_one(slot_share& share, retired_object& payload) noexcept {
    share.end_with(payload);
  }

  std::tuple<share<Arguments>...> shares_;
};

}  // namespace escrow::inline v0_2::detail
