// SPDX-License-Identifier: Apache-2.0
// A reclaimable that stores an owner of any type.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "escrow/core/event.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/use_clock.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// An owner: its destructor frees what it owns. Moved once, destroyed on the worker.
template <class T>
concept retirable =
    !std::is_reference_v<T> && std::is_move_constructible_v<T> && std::is_nothrow_destructible_v<T>;

// Refuses, in one line of error, an argument that no owner can be moved or copied from, or whose
// destructor frees nothing: a pointer, a handle, a stream.
template <class T>
inline constexpr bool is_weak = false;
template <class T>
inline constexpr bool is_weak<std::weak_ptr<T>> = true;
template <class Argument>
constexpr void require_owner() {
  using owner = std::remove_cvref_t<Argument>;
  static_assert(!is_weak<owner>, "a std::weak_ptr keeps nothing alive: pass its lock()");
  static_assert(
      !std::is_trivially_destructible_v<owner>,
      "the owner frees nothing: it is a pointer, a CUDA handle, a stream or the like; pass "
      "(stream, owner), where the owner's destructor frees, e.g. a std::unique_ptr");
  constexpr bool may_throw = !std::is_nothrow_destructible_v<owner>;
  static_assert(!may_throw, "the owner's destructor must not throw");
  static_assert(
      may_throw || std::is_trivially_destructible_v<owner> ||
          std::constructible_from<owner, Argument>,
      "the owner cannot be copied, or is const: std::move one that is not const into the call");
  static_assert(!std::invocable<owner&>,
                "the owner is destroyed, and not called: pass an object whose destructor frees, "
                "e.g. a std::unique_ptr with a deleter of your own");
}

template <class Argument>
concept makes_owner = retirable<std::remove_cvref_t<Argument>> &&
                      !std::is_trivially_destructible_v<std::remove_cvref_t<Argument>> &&
                      std::constructible_from<std::remove_cvref_t<Argument>, Argument>;

// Whether an owner of type T only shares something. The graph may write what is moved in, so
// launches of execs that hold it are serialized; sharers must order shared objects themselves.
// Composite types of Escrow define T::is_shared.
template <class T>
inline constexpr bool is_shared_owner = [] {
  if constexpr (requires { T::is_shared; }) {
    return T::is_shared;
  } else {
    return false;
  }
}();
template <class T>
inline constexpr bool is_shared_owner<std::shared_ptr<T>> = true;
template <class T>
inline constexpr bool is_shared_owner<ref<T>> = true;

// What a retired_object knows of its owner's type.
struct owner_type {
  void (*destroy)(void* owner) noexcept;
  // Whether the object is a part of the owner, or of what the owner points to; or, if `or_points`,
  // a pointer to it is.
  bool (*owns)(void const* owner, void const* object, bool or_points) noexcept;
};

namespace detail {

template <class T>
bool is_part_of(T const& whole, void const* object) noexcept {
  auto const offset = reinterpret_cast<std::uintptr_t>(object) -
                      reinterpret_cast<std::uintptr_t>(std::addressof(whole));
  if constexpr (requires { whole.object_bytes(); }) {
    return offset < whole.object_bytes();
  } else {
    return offset < sizeof(T);
  }
}

// Whether one of these bytes' words is the object's address. Another thread may write them.
[[nodiscard]] ESCROW_API bool has_pointer_to(void const* object, void const* in,
                                             std::size_t bytes) noexcept;

template <class T>
bool owns(T const& owner, void const* object, bool or_points) noexcept {
  if (is_part_of(owner, object)) return true;
  // Nothing is known of a type that is incomplete where its pointer is retired.
  if constexpr (requires { sizeof(*owner.get()); }) {
    if constexpr (std::is_pointer_v<decltype(owner.get())>) {
      if (owner.get() == nullptr) return false;
      return is_part_of(*owner.get(), object) ||
             (or_points && has_pointer_to(object, owner.get(), sizeof(*owner.get())));
    }
  }
  return false;
}

}  // namespace detail

// What: storage for one owner, with its ready event. Objects are reused, so that retiring allocates
//   nothing in steady state.
// Thread safety: exclusive access; reference count and push() as reclaimable.
// Lifetime: belongs to the deleter_core that created it; empty while in the store.
// Errors: emplace() throws what the owner's move constructor throws, and std::bad_alloc for an
//   owner larger than `capacity` bytes; the object is empty then.
class alignas(64) retired_object final : public reclaimable {
 public:
  // Largest owner, in bytes, that is stored in place. Larger ones are on the heap.
  static constexpr std::size_t capacity = 32;

  // One that returns to the store, emptied, unless it is released.
  struct give_back {
    ESCROW_API void operator()(retired_object* unused) const noexcept;
  };
  using loan = std::unique_ptr<retired_object, give_back>;

  template <class Owner>
  requires retirable<std::remove_cvref_t<Owner>>
  auto emplace(Owner&& owner) -> std::remove_cvref_t<Owner>& {
    using stored = std::remove_cvref_t<Owner>;
    pin_this_module();
    stored* placed = nullptr;
    if constexpr (fits<stored>) {
      placed = ::new (static_cast<void*>(storage_)) stored(std::forward<Owner>(owner));
      type_ = &type_of<stored>;
    } else {
      placed = emplace(std::make_unique<stored>(std::forward<Owner>(owner))).get();
    }
    is_written_ = !is_shared_owner<stored>;
    return *placed;
  }

  [[nodiscard]] member_use use() const noexcept {  // see is_shared_owner
    return is_written_ ? member_use::exclusive : member_use::read;
  }

  // Before the record of its event: what its owner, and nobody else, accessed before is done then.
  void cover_uses(std::uint64_t stream) noexcept {
    covers_ = is_written_ ? use_clock::advance(stream) : 0;
  }

  // From now until it is reclaimed, a graph or exec holds it: counted in deleter_stats::in_graphs.
  ESCROW_API void enter_graph() noexcept;

  void clear() noexcept {
    if (auto const* const its = std::exchange(type_, nullptr)) its->destroy(storage_);
  }

 private:
  friend class deleter;
  friend class deleter_core;
  friend class object_store;
  friend class object_block;
  friend class reference_set;

  template <class T>
  static constexpr owner_type type_of{
      .destroy = [](void* owner) noexcept { std::destroy_at(static_cast<T*>(owner)); },
      .owns =
          [](void const* owner, void const* object, bool or_points) noexcept {
            return detail::owns(*static_cast<T const*>(owner), object, or_points);
          }};

  template <class T>
  static constexpr bool fits =
      // NOLINTNEXTLINE(misc-redundant-expression): not for every T
      sizeof(T) <= capacity && alignof(T) <= alignof(std::max_align_t);

  // In that place of its block.
  retired_object(place_is_reserved reserved, deleter_core& core, std::size_t place) noexcept;
  ~retired_object();

  // Worker: destroys the owner and returns the object to the store.
  static void reclaim_owner(reclaimable& thing) noexcept;

  std::uint8_t shelf_ : 5 = 0;  // its shelf in the store; small, for the size below
  std::uint8_t place_ : 3;      // in its block
  bool in_graph_ : 1 = false;   // counted in deleter_stats::in_graphs
  bool is_written_ : 1 = true;  // see use()
  std::int16_t event_device_ = -1;
  event own_event_ = event::none();   // of event_device_; kept for the next use
  owner_type const* type_ = nullptr;  // null: empty
  std::uint64_t covers_ = 0;          // see cover_uses(); 0: nothing
  alignas(std::max_align_t) std::byte storage_[capacity];
};

// Two cache lines, since it moves between the cores of the worker and of the retiring thread.
static_assert(sizeof(retired_object) == 128);

}  // namespace escrow::inline v0_2
