// The node that carries an owner of any type to the worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "escrow/core/event.hpp"
#include "escrow/deleter/graph_reference.hpp"

namespace escrow {

// An owner: anything whose destruction frees what it owns. Moved once, destroyed on the worker.
template <class T>
concept retirable =
    !std::is_reference_v<T> && std::is_move_constructible_v<T> && std::is_nothrow_destructible_v<T>;

// What: storage for one owner, with the event that says when it may be destroyed. What is to come
//   back past a busy worker goes along with it (take_along()). Nodes are kept and reused, so that
//   retiring allocates nothing in steady state.
// Thread safety: exclusive access; push() as release_node.
// Memory ordering: as release_node.
// Lifetime: belongs to the hub that made it; empty while it is in the hub's store.
// Capture: none.
// Errors: emplace() throws what the owner's move constructor throws, and std::bad_alloc for an
//   owner that does not fit in `capacity` bytes; the node is empty then.
class alignas(64) retired_owner final : public graph_reference {
 public:
  // Bytes of an owner that is stored in the node itself. Larger ones are boxed on the heap.
  static constexpr std::size_t capacity = 32;

  // Returns the owner in its place.
  template <class Owner>
  requires retirable<std::remove_cvref_t<Owner>>
  auto emplace(Owner&& owner) -> std::remove_cvref_t<Owner>& {
    using stored = std::remove_cvref_t<Owner>;
    if constexpr (fits<stored>) {
      auto* const placed = ::new (static_cast<void*>(storage_)) stored(std::forward<Owner>(owner));
      destroy_ = [](void* at) noexcept { std::destroy_at(static_cast<stored*>(at)); };
      return *placed;
    } else {
      using box = std::unique_ptr<stored>;
      auto* const placed = ::new (static_cast<void*>(storage_))
          box(std::make_unique<stored>(std::forward<Owner>(owner)));
      destroy_ = [](void* at) noexcept { std::destroy_at(static_cast<box*>(at)); };
      return **placed;
    }
  }

  // From now on a graph or an exec holds it, until it is reclaimed: counted in
  // deleter_stats::in_graphs.
  void enter_graph() noexcept;

  // Destroys the owner, if there is one.
  void clear() noexcept {
    if (auto* const destroy = std::exchange(destroy_, nullptr)) destroy(storage_);
  }

 private:
  friend class deleter;
  friend class owner_block;
  friend class release_hub;

  template <class T>
  static constexpr bool fits =
      // NOLINTNEXTLINE(misc-redundant-expression): not for every T
      sizeof(T) <= capacity && alignof(T) <= alignof(std::max_align_t);

  // In that place of its block.
  retired_owner(place_is_reserved reserved, release_hub& hub, std::size_t place) noexcept;
  ~retired_owner();

  // Starts to fetch the node into the cache, to be written.
  void prefetch() const noexcept {
    for (std::size_t line = 0; line < sizeof(retired_owner); line += 64) {
      __builtin_prefetch(reinterpret_cast<std::byte const*>(this) + line, 1);
    }
  }

  // Worker: destroys the owner and goes back to the store.
  static void reclaim_owner(release_node& node) noexcept;

  using destroy_function = void (*)(void*) noexcept;

  // Small, for the size below.
  std::uint8_t shelf_ : 5 = 0;  // where in the hub's store it goes back to
  std::uint8_t place_ : 3;      // in its block
  bool in_graph_ = false;       // held by a graph or an exec: counted in deleter_stats::in_graphs
  std::int16_t event_device_ = -1;      // small, for the size below
  event own_event_ = event::none();     // of event_device_; kept for the next use
  destroy_function destroy_ = nullptr;  // null: empty
  alignas(std::max_align_t) std::byte storage_[capacity];
};

// Two cache lines, because the worker's core and the retiring one hand it to and fro.
static_assert(sizeof(retired_owner) == 128);

}  // namespace escrow
