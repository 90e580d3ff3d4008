// SPDX-License-Identifier: Apache-2.0
// Plain memory: who accessed which bytes, to find data races and the use of what was freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "clocks.hpp"
#include "table.hpp"

namespace escrow::model {

enum class access_kind : std::uint8_t { read, write, atomic, speculative };

// What went wrong with an access.
enum class fault : std::uint8_t { none, race, freed };

// Eight bytes of plain memory.
struct granule {
  struct access {
    moment by;
    std::uint8_t bytes;
    access_kind kind;
  };
  void begin(std::uintptr_t address) noexcept {
    where = address;
    accesses.clear();
    is_freed = false;
  }
  std::uintptr_t where = 0;  // in granules
  std::vector<access> accesses;
  bool is_freed = false;
};

class shadow {
 public:
  static constexpr std::uintptr_t granule_bytes = 8;

  void clear() noexcept { granules_.clear(); }
  // All that was touched.
  [[nodiscard]] table<granule>& granules() noexcept { return granules_; }

  // Notes an access by a thread that knows `known`. `next` has the number of each thread's next
  // operation, `mistaken` gets the threads that read speculatively what another writes, and have
  // done nothing since: that value must not be used.
  fault access(std::uintptr_t address, std::size_t size, access_kind kind, moment by,
               clock const& known, clock const& next, std::uint32_t& mistaken);
  // Notes that the bytes are gone; all that was done with them must be known.
  fault end(std::uintptr_t address, std::size_t size, std::uint32_t thread, clock const& known);

 private:
  fault access_granule(granule& cell, std::uint8_t bytes, access_kind kind, moment by,
                       clock const& known, clock const& next, std::uint32_t& mistaken);

  table<granule> granules_;
};

}  // namespace escrow::model
