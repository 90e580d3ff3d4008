// A slot with its resource, and the maker of such slots.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/pool/slot.hpp"
#include "escrow/pool/slot_pool.hpp"

namespace escrow {

// What: the functions that a resource_pool<T> was given, shared by its slots.
// Thread safety: the functions may be called by several threads at a time.
// Memory ordering: none.
// Lifetime: owned by the slot_pool, which outlives its slots.
// Capture: make is called in Relaxed mode; recycle may enqueue into a capture; destroy runs on the
//   worker.
// Errors: make and recycle may throw; destroy must not.
template <class T>
struct resource_functions final : slot_maker {
  std::function<T()> make_resource;
  std::function<void(T&, stream_ref)> recycle;  // may be empty
  std::function<void(T&)> destroy;              // may be empty

  [[nodiscard]] slot* make(slot_pool& pool) override;
};

// A resource whose size in bytes can be asked, as a device_block's.
template <class T>
concept block_of_bytes = requires(T const& resource) {
  { resource.data() } -> std::same_as<void*>;
  { resource.size() } -> std::same_as<std::size_t>;
};

// What: one resource in its slot.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as slot.
template <class T>
class typed_slot final : public slot {
 public:
  typed_slot(slot_pool& pool, resource_functions<T>& functions)
      : slot(pool), functions_(functions), resource_(functions.make_resource()) {
    if constexpr (block_of_bytes<T>) bytes_ = resource_.size();
  }

  [[nodiscard]] T& resource() noexcept { return resource_; }

 private:
  ~typed_slot() override {
    if (functions_.destroy) functions_.destroy(resource_);
  }

  resource_functions<T>& functions_;
  T resource_;
};

template <class T>
slot* resource_functions<T>::make(slot_pool& pool) {
  return new typed_slot<T>(pool, *this);
}

}  // namespace escrow
