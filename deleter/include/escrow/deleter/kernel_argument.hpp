// SPDX-License-Identifier: Apache-2.0
// Kernel arguments that own something: the value passed, and the owner that must stay alive.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow::inline v0_2 {

// A graph node's share of a pool's slot, from lease::share_with_node(). The slot returns to its
// pool after its lease and all shares. Movable.
class slot_share {
 public:
  // Internal: `held` is idle: this is its only reference.
  explicit slot_share(slot_reference& held) noexcept : held_(held) {}
  // Internal: makes this share a companion of `last`, which has no reference yet: released with its
  // last one.
  void end_with(reclaimable& last) noexcept { last.take_along(*held_.release()); }

 private:
  ref<slot_reference> held_;
};

// Specialize it for a type whose objects own what a kernel uses; arguments of other types are
// passed unchanged. A specialization has
//
//     static V device_value(T const& object);
//
// which returns the value for the kernel, of a trivially copyable type, and at most one of:
//
//     static O owner(T const& object);
//     static O owner_in_graph(T const& object);
//     static void before_launch(T& object, stream_ref stream);
//
// owner() returns a share of what must stay alive until the kernel is done: of the allocation, so
// that a reset() of its wrapper frees nothing early. owner_in_graph() returns one for a capture or
// a node, of a type whose destructor waits for all other work. before_launch() is for types that
// track their own use; it is called before the launch. With each the caller keeps it. A
// type with none must be moved into the launch, which then owns it. With before_launch(),
//
//     static O owner_for_node(T& object);
//
// returns the share that a graph node keeps. A slot_share is dropped as soon as nothing uses that
// version of the node, other owners when the worker destroys them.
//
// A type may say how large its memory is: kinds of nodes that copy or fill more are refused.
//
//     static std::size_t bytes(T const& object);
template <class T>
struct kernel_argument_traits {};

// Whether a kernel receives something other than the T itself. Ignores const.
template <class T>
concept owning_argument = requires(std::remove_const_t<T> const& object) {
  kernel_argument_traits<std::remove_const_t<T>>::device_value(object);
};

// An owning argument of which a share can be taken, so that the caller keeps the object.
template <class T>
concept shareable_argument = owning_argument<T> && requires(std::remove_const_t<T> const& object) {
  kernel_argument_traits<std::remove_const_t<T>>::owner(object);
};

// An owning argument whose end waits for all work with it, so that only graphs take a share.
template <class T>
concept outlasting_argument = owning_argument<T> && requires(std::remove_const_t<T> const& object) {
  kernel_argument_traits<std::remove_const_t<T>>::owner_in_graph(object);
};

// An owning argument that tracks its own use: it is told of each launch, as a lease is.
template <class T>
concept self_keeping_argument = owning_argument<T> &&
    requires(std::remove_const_t<T>& object, stream_ref stream) {
  kernel_argument_traits<std::remove_const_t<T>>::before_launch(object, stream);
};

// An owning argument that knows how many bytes its memory has.
template <class T>
concept sized_argument = owning_argument<T> && requires(std::remove_const_t<T> const& object) {
  {
    kernel_argument_traits<std::remove_const_t<T>>::bytes(object)
    } -> std::convertible_to<std::size_t>;
};

namespace detail {

// The kernel's value for a host pointer: that of its object if that is an owning argument, else the
// pointer, which must point to device memory.
template <class T, class Pointer>
auto device_value_through(Pointer const& pointer) {
  if constexpr (owning_argument<T>) {
    if (pointer == nullptr) {
      throw usage_error("launch", "an argument is a null pointer to an owner",
                        "pass a pointer to one, or the device address itself");
    }
    return kernel_argument_traits<std::remove_const_t<T>>::device_value(*pointer);
  } else {
    return pointer.get();
  }
}

template <class T>
concept pointee_of_argument =
    owning_argument<T> || std::is_void_v<T> || std::is_trivially_copyable_v<T>;

}  // namespace detail

// Keeps the share, or the pointee's owner(); a pointee that tracks its own use is notified.
template <detail::pointee_of_argument T>
struct kernel_argument_traits<std::shared_ptr<T>> {
  static auto device_value(std::shared_ptr<T> const& pointer) {
    return detail::device_value_through<T>(pointer);
  }
  static auto owner(std::shared_ptr<T> const& pointer) requires(!self_keeping_argument<T>) {
    if constexpr (shareable_argument<T>) {
      return kernel_argument_traits<std::remove_const_t<T>>::owner(*pointer);
    } else {
      return pointer;
    }
  }
  static void before_launch(std::shared_ptr<T> const& pointer,
                            stream_ref stream) requires(self_keeping_argument<T>) {
    kernel_argument_traits<std::remove_const_t<T>>::before_launch(*pointer, stream);
  }
  static auto owner_for_node(std::shared_ptr<T> const& pointer) requires(self_keeping_argument<T>) {
    return kernel_argument_traits<std::remove_const_t<T>>::owner_for_node(*pointer);
  }
  static std::size_t bytes(std::shared_ptr<T> const& pointer) requires(sized_argument<T>) {
    return kernel_argument_traits<std::remove_const_t<T>>::bytes(*pointer);
  }
};

// Must be moved into the launch.
template <detail::pointee_of_argument T, class Delete>
requires(!self_keeping_argument<T>) struct kernel_argument_traits<std::unique_ptr<T, Delete>> {
  static auto device_value(std::unique_ptr<T, Delete> const& pointer) {
    return detail::device_value_through<T>(pointer);
  }
  static std::size_t bytes(std::unique_ptr<T, Delete> const& pointer) requires(sized_argument<T>) {
    return kernel_argument_traits<std::remove_const_t<T>>::bytes(*pointer);
  }
};

}  // namespace escrow::inline v0_2
