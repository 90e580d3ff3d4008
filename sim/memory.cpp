// Device and pinned host memory: plain host memory that AddressSanitizer watches.
#include "memory.hpp"

#include "graph_memory.hpp"

#include <iterator>
#include <new>

namespace escrow::sim::model {

memory_place place_of(void const* address) {
  if (auto const block = find_block_around(address))
    return {cudaMemoryTypeDevice, block->params.poolProps.location.id};
  auto& s = the();
  auto const after = s.allocations.upper_bound(address);
  if (after == s.allocations.begin()) return {};
  auto const& [start, what] = *std::prev(after);
  if (static_cast<char const*>(address) >= static_cast<char const*>(start) + what.bytes) return {};
  return {what.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice, what.device};
}

void* allocate_memory(std::size_t bytes, int device, bool host) {
  void* const address = ::operator new(bytes, as_cuda_aligns, std::nothrow);
  if (address == nullptr) return nullptr;
  auto& s = the();
  auto const place = s.allocations.emplace(address, allocation{bytes, device, host}).first;
  s.allocated.add(place->second);
  return address;
}

bool free_memory(void* address) {
  auto& s = the();
  auto const found = s.allocations.find(address);
  if (found == s.allocations.end()) return false;
  s.allocated.subtract(found->second);
  s.allocations.erase(found);
  ::operator delete(address, as_cuda_aligns);
  return true;
}

}  // namespace escrow::sim::model
