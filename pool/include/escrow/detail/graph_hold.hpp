// One graph's hold on a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "escrow/detail/reclaimable.hpp"

namespace escrow {

class slot;

// One graph's hold on a slot, released by the user object that the graph keeps, or by the share
// that a node keeps. Thread safety and lifetime: as reclaimable.
class graph_hold final : public slot_reference {
 public:
  graph_hold(deleter_core& core, int device, escrow::slot& held)
      : slot_reference(core, device, &graph_is_gone), held_(held) {}

  [[nodiscard]] std::string_view label() const noexcept override;
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  friend class slot_pool;

  static void graph_is_gone(reclaimable& thing) noexcept;

  escrow::slot& held_;
  std::uint64_t capture_id_ = 0;
};

}  // namespace escrow
