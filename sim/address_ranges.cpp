// SPDX-License-Identifier: Apache-2.0
// The memory of ranges: host memory that cannot be touched where nothing is mapped.
#include "address_ranges.hpp"

#include "apart.hpp"
#include "memory.hpp"

#include <sys/mman.h>

namespace escrow::sim::model {

physical_memory* make_physical(std::size_t bytes, int device) {
  if (!take_room(bytes, device)) return nullptr;
  auto& s = the();
  auto const handle = ++s.last_physical;
  return &s.physical.emplace(handle, physical_memory{handle, bytes, device}).first->second;
}

void drop_physical(CUmemGenericAllocationHandle handle) {
  auto& s = the();
  auto const found = s.physical.find(handle);
  if (found->second.is_held || found->second.maps != 0) return;
  s.devices[static_cast<std::size_t>(found->second.device)].bytes_in_use -= found->second.bytes;
  s.physical.erase(found);
}

void free_ranges(state& s) {
  for (auto const& [begin, range] : s.ranges) {
    for (auto const& each : range.pieces) remove_device_pages(reinterpret_cast<void*>(each.first));
    ::munmap(reinterpret_cast<void*>(begin), range.bytes);
  }
  s.ranges.clear();
  s.physical.clear();
}

}  // namespace escrow::sim::model
