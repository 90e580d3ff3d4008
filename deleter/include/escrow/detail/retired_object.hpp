// A reclaimable that carries an owner of any type to the worker.
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

namespace escrow {

// An owner: anything whose destruction frees what it owns. Moved once, destroyed on the worker.
template <class T>
concept retirable =
    !std::is_reference_v<T> && std::is_move_constructible_v<T> && std::is_nothrow_destructible_v<T>;

// What an owner is made from: one to be moved or copied.
template <class T>
concept makes_owner =
    retirable<std::remove_cvref_t<T>> && std::constructible_from<std::remove_cvref_t<T>, T>;

// Whether an owner of type T only keeps something alive that others share. What is moved in may be
// written by the graph, so launches of execs that hold it are serialized; what is shared is not
// ordered: its sharers do that. A type of Escrow's that is made of others says so as T::is_shared.
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

// What: storage for one owner, with the event that says when it may be destroyed. Objects are kept
//   and reused, so that retiring allocates nothing in steady state.
// Thread safety: exclusive access; reference count and push() as reclaimable.
// Lifetime: belongs to the deleter_core that made it; empty while it is in the store.
// Errors: emplace() throws what the owner's move constructor throws, and std::bad_alloc for an
//   owner that does not fit in `capacity` bytes; the object is empty then.
class alignas(64) retired_object final : public reclaimable {
 public:
  // Bytes of an owner that is stored in place. Larger ones are on the heap.
  static constexpr std::size_t capacity = 32;

  template <class Owner>
  requires retirable<std::remove_cvref_t<Owner>>
  auto emplace(Owner&& owner) -> std::remove_cvref_t<Owner>& {
    using stored = std::remove_cvref_t<Owner>;
    if constexpr (fits<stored>) {
      auto* const placed = ::new (static_cast<void*>(storage_)) stored(std::forward<Owner>(owner));
      destroy_ = [](void* at) noexcept { std::destroy_at(static_cast<stored*>(at)); };
      is_written_ = !is_shared_owner<stored>;
      return *placed;
    } else {
      stored& placed = *emplace(std::make_unique<stored>(std::forward<Owner>(owner)));
      is_written_ = !is_shared_owner<stored>;
      return placed;
    }
  }

  // See is_shared_owner.
  [[nodiscard]] bool is_written() const noexcept { return is_written_; }

  // From now on a graph or an exec holds it, until it is reclaimed: counted in
  // deleter_stats::in_graphs.
  void enter_graph() noexcept;

  void clear() noexcept {
    if (auto* const destroy = std::exchange(destroy_, nullptr)) destroy(storage_);
  }

 private:
  friend class deleter;
  friend class deleter_core;
  friend class object_store;
  friend class object_block;

  template <class T>
  static constexpr bool fits =
      // NOLINTNEXTLINE(misc-redundant-expression): not for every T
      sizeof(T) <= capacity && alignof(T) <= alignof(std::max_align_t);

  // In that place of its block.
  retired_object(place_is_reserved reserved, deleter_core& core, std::size_t place) noexcept;
  ~retired_object();

  // Worker: destroys the owner and returns the object to the store.
  static void reclaim_owner(reclaimable& thing) noexcept;

  using destroy_function = void (*)(void*) noexcept;

  // Small, for the size below.
  std::uint8_t shelf_ : 5 = 0;  // where in the store it belongs
  std::uint8_t place_ : 3;      // in its block
  bool in_graph_ : 1 = false;   // counted in deleter_stats::in_graphs
  bool is_written_ : 1 = true;  // see is_written()
  std::int16_t event_device_ = -1;
  event own_event_ = event::none();     // of event_device_; kept for the next use
  destroy_function destroy_ = nullptr;  // null: empty
  alignas(std::max_align_t) std::byte storage_[capacity];
};

// Two cache lines, because the worker's core and the retiring one hand it to and fro.
static_assert(sizeof(retired_object) == 128);

}  // namespace escrow
