// What a kernel gets for its arguments, and what of them is kept until it is done.
#pragma once

#include <array>
#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument_traits.hpp"
#include "escrow/deleter/retired_owner.hpp"
#include "escrow/deleter/slot_share.hpp"
#include "escrow/graph/kernel.hpp"

namespace escrow::detail {

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
                  "escrow::kernel_argument_traits "
                  "for a type that owns what the kernel uses");
    return argument;
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

// Tells an argument that keeps itself.
template <class T>
void announce_use(T& argument, stream_ref stream) {
  using customised = kernel_argument_traits<std::remove_const_t<T>>;
  if constexpr (self_keeping_argument<T>) {
    static_assert(
        !shareable_argument<T>,
        "kernel_argument_traits has either owner() or before_launch(): who keeps the argument?");
    static_assert(
        requires { customised::before_launch(argument, stream); },
        "this argument has to be told of its use, and is const");
    customised::before_launch(argument, stream);
  }
}

// What is kept of an argument that was given as `Argument` (T& or T, as forwarded): nothing, a
// share that is taken before the launch, or the moved object, taken when nothing can fail any more.
template <class Argument, class T = std::remove_cvref_t<Argument>>
class kept_argument {
 public:
  explicit kept_argument(T const& /*argument*/) noexcept {}
  void take(T const& /*argument*/) noexcept {}
};

template <class Argument, class T>
requires shareable_argument<T>
class kept_argument<Argument, T> {
 public:
  explicit kept_argument(T const& argument) : owner_(kernel_argument_traits<T>::owner(argument)) {}
  void take(T const& /*argument*/) noexcept {}

 private:
  decltype(kernel_argument_traits<T>::owner(std::declval<T const&>())) owner_;
};

template <class Argument, class T>
requires(owning_argument<T> && !shareable_argument<T> &&
         !self_keeping_argument<T>) class kept_argument<Argument, T> {
  static_assert(!std::is_lvalue_reference_v<Argument> &&
                    !std::is_const_v<std::remove_reference_t<Argument>>,
                "the owner of this argument cannot be shared: std::move it into the launch");
  static_assert(std::is_nothrow_move_constructible_v<T>);

 public:
  explicit kept_argument(T const& /*argument*/) noexcept {}
  void take(T& argument) noexcept { owner_.emplace(std::move(argument)); }

 private:
  std::optional<T> owner_;
};

// What a node keeps of an argument: the same, but for one that keeps itself on streams.
template <class Argument, class T = std::remove_cvref_t<Argument>>
class kept_node_argument : public kept_argument<Argument> {
 public:
  using kept_argument<Argument>::kept_argument;
  void end_slot_share_with(retired_owner& /*payload*/) noexcept {}
};

template <class Argument, class T>
requires self_keeping_argument<T>
class kept_node_argument<Argument, T> {
  using given = std::remove_reference_t<Argument>;
  static_assert(
      requires(given & argument) { kernel_argument_traits<T>::owner_for_node(argument); },
      "this argument gives a node no share: it is const, or has no owner_for_node()");

 public:
  explicit kept_node_argument(given& argument)
      : owner_(kernel_argument_traits<T>::owner_for_node(argument)) {}
  void take(T const& /*argument*/) noexcept {}
  // A share of a slot ends with the node's payload, not with the owners in it.
  void end_slot_share_with(retired_owner& payload) noexcept {
    if constexpr (std::same_as<owner, slot_share>) owner_.end_with(payload);
  }

 private:
  using owner = decltype(kernel_argument_traits<T>::owner_for_node(std::declval<given&>()));

  owner owner_;
};

// What: all that is kept of some arguments.
// Thread safety, Memory ordering, Lifetime, Capture: a value.
// Errors: the constructor throws what taking a share throws; take() cannot fail.
template <class... Kept>
class kept_of_each {
 public:
  template <class... Arguments>
  requires(sizeof...(Arguments) == sizeof...(Kept)) explicit kept_of_each(Arguments&... arguments)
      : kept_(Kept(arguments)...) {}

  // Takes what could not be shared.
  template <class... Arguments>
  void take(Arguments&... arguments) noexcept {
    std::apply([&](auto&... kept) { (kept.take(arguments), ...); }, kept_);
  }

  // Of a node's: see kept_node_argument. Once it is where it stays.
  void end_slot_shares_with(retired_owner& payload) noexcept {
    std::apply([&](auto&... kept) { (kept.end_slot_share_with(payload), ...); }, kept_);
  }

 private:
  std::tuple<Kept...> kept_;
};
template <class... Arguments>
using kept_arguments = kept_of_each<kept_argument<Arguments>...>;
template <class... Arguments>
using kept_node_arguments = kept_of_each<kept_node_argument<Arguments>...>;

// What: all that one launch keeps: the kernel's library, and what its arguments own.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as kept_arguments.
template <class... Arguments>
class kept_launch {
 public:
  explicit kept_launch(kernel const& launched, std::remove_cvref_t<Arguments> const&... arguments)
      : library_(launched.library()), arguments_(arguments...) {}

  void take(std::remove_reference_t<Arguments>&... arguments) noexcept {
    arguments_.take(arguments...);
  }

 private:
  std::shared_ptr<loaded_library const> library_;
  kept_arguments<Arguments...> arguments_;
};

// Whether a node with these arguments has anything to keep, besides a library.
template <class... Arguments>
inline constexpr bool node_keeps_any = (owning_argument<std::remove_cvref_t<Arguments>> || ...);

// Whether a launch with these arguments has anything to keep, besides a library.
template <class... Arguments>
inline constexpr bool keeps_any = ((owning_argument<std::remove_cvref_t<Arguments>> &&
                                    !self_keeping_argument<std::remove_cvref_t<Arguments>>) ||
                                   ...);

}  // namespace escrow::detail
