// SPDX-License-Identifier: Apache-2.0
// Races by vector clocks: two accesses, one a write, neither of which happened before the other.
#include "shadow.hpp"

#include <algorithm>

namespace escrow::model {

namespace {

bool conflict(access_kind one, access_kind other) noexcept {
  if (one == access_kind::write || other == access_kind::write) return true;
  return false;  // reads with reads, and atomic operations with atomic ones or plain reads
}

}  // namespace

fault shadow::access(std::uintptr_t address, std::size_t size, access_kind kind, moment by,
                     clock const& known, clock const& next, std::uint32_t& mistaken) {
  std::uintptr_t const end = address + size;
  while (address < end) {
    std::uintptr_t const first = address % granule_bytes;
    std::uintptr_t const last = std::min(granule_bytes, first + (end - address));
    auto const bytes = static_cast<std::uint8_t>((0xffU << first) & (0xffU >> (8U - last)));
    fault const found = access_granule(granules_.at(address / granule_bytes), bytes, kind, by,
                                       known, next, mistaken);
    if (found != fault::none) return found;
    address += last - first;
  }
  return fault::none;
}

fault shadow::access_granule(granule& cell, std::uint8_t bytes, access_kind kind, moment by,
                             clock const& known, clock const& next, std::uint32_t& mistaken) {
  if (cell.is_freed) return fault::freed;
  bool is_noted = false;
  for (granule::access& other : cell.accesses) {
    if (other.by.thread == by.thread) {
      if (other.kind == kind && other.bytes == bytes) {
        other.by = by;
        is_noted = true;
      }
      continue;
    }
    if ((other.bytes & bytes) == 0 || !conflict(kind, other.kind)) continue;
    if (other.by.is_in(known)) continue;
    if (kind == access_kind::speculative) {
      mistaken |= 1U << by.thread;
    } else if (other.kind == access_kind::speculative) {
      if (other.by.when == next.at[other.by.thread]) mistaken |= 1U << other.by.thread;
    } else {
      return fault::race;
    }
  }
  if (!is_noted) cell.accesses.push_back({by, bytes, kind});
  return fault::none;
}

fault shadow::end(std::uintptr_t address, std::size_t size, std::uint32_t thread,
                  clock const& known) {
  for (std::uintptr_t at = address; at < address + size; at += granule_bytes) {
    granule& cell = granules_.at(at / granule_bytes);
    if (cell.is_freed) return fault::freed;
    for (granule::access const& each : cell.accesses) {
      if (each.by.thread != thread && !each.by.is_in(known)) return fault::race;
    }
    cell.is_freed = true;
  }
  return fault::none;
}

}  // namespace escrow::model
