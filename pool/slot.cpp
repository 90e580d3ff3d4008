// A slot's own event comes from the cache, and goes back there.
#include "escrow/pool/slot.hpp"

#include "escrow/detail/ready_event.hpp"
#include "escrow/pool/slot_pool.hpp"

namespace escrow {

std::string_view graph_hold::label() const noexcept {
  return held_.pool().label();
}

std::size_t graph_hold::bytes() const noexcept {
  return held_.bytes_;
}

slot::slot(slot_pool& pool)
    : reclaimable(pool.core(), release_lane::destroy, pool.device(), &slot_pool::destroy_slot),
      pool_(pool),
      ready_(event_cache::take(pool.device())),
      first_hold_(pool.core(), pool.device(), *this) {}

slot::~slot() {
  event_cache::put(pool_.device(), std::move(ready_));
}

}  // namespace escrow
