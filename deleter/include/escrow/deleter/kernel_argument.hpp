// What a kernel gets for an object that owns something, and what has to stay alive meanwhile.
#pragma once

#include <memory>
#include <type_traits>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow {

// The customisation for kernel arguments. Specialise it for a type whose objects own what a kernel
// uses; an argument of any other type is passed to the kernel as it is. A specialisation has
//
//   static V device_value(T const& object);
//
// which gives what the kernel receives, of a trivially copyable type, and one of these, or none:
//
//   static O owner(T const& object);
//   static void before_launch(T& object, stream_ref stream);
//
// owner() gives a share of what has to stay alive until the kernel is done: of the allocation, not
// of its wrapper, so that a reset() of the wrapper frees nothing early. before_launch() is for
// types that track their own use; it is called before the launch, and the caller keeps the object.
// A type with neither function must be moved into the launch, which then owns it. With
// before_launch(),
//
//   static O owner_for_node(T& object);
//
// gives the share that a node of a graph keeps, which is on no stream. A slot_share is dropped as
// soon as nothing keeps the node's version any more, other owners when the worker destroys them.
template <class T>
struct kernel_argument_traits {};

// Whether a kernel gets something else for a T than the T itself. Const does not matter here.
template <class T>
concept owning_argument = requires(std::remove_const_t<T> const& object) {
  kernel_argument_traits<std::remove_const_t<T>>::device_value(object);
};

template <class T>
concept shareable_argument = owning_argument<T> && requires(std::remove_const_t<T> const& object) {
  { kernel_argument_traits<std::remove_const_t<T>>::owner(object) } -> retirable;
};

template <class T>
concept self_keeping_argument = owning_argument<T> &&
    requires(std::remove_const_t<T>& object, stream_ref stream) {
  kernel_argument_traits<std::remove_const_t<T>>::before_launch(object, stream);
};

namespace detail {

// What a kernel gets for a pointer of the host: what the pointer's object passes if that is an
// owning argument, else the pointer, which must be one to device memory.
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

// The share is kept, or what the object shares; an object that keeps itself is told.
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
};

// Has to be moved into the launch.
template <detail::pointee_of_argument T, class Delete>
requires(!self_keeping_argument<T>) struct kernel_argument_traits<std::unique_ptr<T, Delete>> {
  static auto device_value(std::unique_ptr<T, Delete> const& pointer) {
    return detail::device_value_through<T>(pointer);
  }
};

}  // namespace escrow
