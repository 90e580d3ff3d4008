// Device and pinned host memory: plain host memory that AddressSanitizer watches.
#include "memory.hpp"

#include "graph_memory.hpp"

#include <iterator>
#include <new>

namespace escrow::sim::model {
namespace {

// In stream order its memory is free for what comes behind.
std::size_t bytes_freed_on(stream_state const& stream, int device) {
  std::size_t bytes = 0;
  for (auto const& [address, what] : the().allocations) {
    if (!what.host && what.device == device && what.freed_on == stream.id) bytes += what.bytes;
  }
  return bytes;
}

bool is_room_for(std::size_t bytes, int device, stream_state const* stream) {
  auto& s = the();
  auto const total = s.how.device_memory;
  auto used = s.devices[static_cast<std::size_t>(device)].bytes_in_use;
  auto const fits = [&] { return used <= total && bytes <= total - used; };
  if (!fits() && stream != nullptr) used -= bytes_freed_on(*stream, device);
  return fits();
}

}  // namespace

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

void uncount(state& s, allocation const& what) {
  s.allocated.subtract(what);
  if (!what.host) s.devices[static_cast<std::size_t>(what.device)].bytes_in_use -= what.bytes;
}

void* allocate_memory(std::size_t bytes, int device, bool host, stream_state const* stream) {
  if (!host && !is_room_for(bytes, device, stream)) return nullptr;
  void* const address = ::operator new(bytes, as_cuda_aligns, std::nothrow);
  if (address == nullptr) return nullptr;
  auto& s = the();
  auto const place = s.allocations.emplace(address, allocation{bytes, device, host}).first;
  s.allocated.add(place->second);
  if (!host) s.devices[static_cast<std::size_t>(device)].bytes_in_use += bytes;
  return address;
}

bool free_memory(void* address) {
  auto& s = the();
  auto const found = s.allocations.find(address);
  if (found == s.allocations.end()) return false;
  uncount(s, found->second);
  s.allocations.erase(found);
  ::operator delete(address, as_cuda_aligns);
  return true;
}

}  // namespace escrow::sim::model
