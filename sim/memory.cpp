// SPDX-License-Identifier: Apache-2.0
// Device and pinned host memory: plain host memory that AddressSanitizer watches.
#include "memory.hpp"

#include "apart.hpp"
#include "freed.hpp"
#include "graph_memory.hpp"

#include <algorithm>
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

bool is_room_for(std::size_t bytes, int device, std::size_t more = 0) {
  auto& s = the();
  auto const total = s.how.device_memory + more;
  auto const used = s.devices[static_cast<std::size_t>(device)].bytes_in_use;
  return used <= total && bytes <= total - used;
}

// As CUDA does when memory has run out.
void trim_all(int device) {
  for (auto const& [handle, pool] : the().memory_pools) {
    if (pool->device == device) trim(*pool, 0);
  }
}

void* make(std::size_t bytes, allocation const& what) {
  void* const address = what.host ? new_pinned_memory(bytes) : new_device_memory(bytes);
  if (address == nullptr) return nullptr;
  the().allocations.emplace(address, what);
  the().allocated.add(what);
  return address;
}

// What is mapped around an address; null if nothing is.
mapped_piece const* find_piece_around(void const* address) {
  auto const asked = reinterpret_cast<std::uintptr_t>(address);
  for (auto const& [begin, range] : the().ranges) {
    if (asked < begin || asked >= begin + range.bytes) continue;
    auto const after = range.pieces.upper_bound(asked);
    if (after == range.pieces.begin()) return nullptr;
    auto const& [at, piece] = *std::prev(after);
    return asked < at + piece.bytes ? &piece : nullptr;
  }
  return nullptr;
}

}  // namespace

memory_place place_of(void const* address) {
  if (auto const block = find_block_around(address))
    return {cudaMemoryTypeDevice, block->params.poolProps.location.id};
  if (auto const* const piece = find_piece_around(address)) {
    return {cudaMemoryTypeDevice, piece->device};
  }
  auto& s = the();
  auto const after = s.allocations.upper_bound(address);
  if (after == s.allocations.begin()) return {};
  auto const& [start, what] = *std::prev(after);
  if (static_cast<char const*>(address) >= static_cast<char const*>(start) + what.bytes) return {};
  return {what.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice, what.device};
}

void const* begin_around(void const* address) {
  if (auto const block = find_block_around(address)) return block->params.dptr;
  auto const asked = reinterpret_cast<std::uintptr_t>(address);
  for (auto const& [begin, range] : the().ranges) {
    if (asked - begin < range.bytes) return reinterpret_cast<void const*>(begin);
  }
  auto const after = the().allocations.upper_bound(address);
  if (after == the().allocations.begin()) return nullptr;
  auto const& [start, what] = *std::prev(after);
  return asked - reinterpret_cast<std::uintptr_t>(start) < what.bytes ? start : nullptr;
}

bool is_beyond(void const* address, std::size_t bytes) {
  auto const& all = the().allocations;
  auto const after = all.upper_bound(address);
  if (after == all.begin()) return false;
  auto const& [start, what] = *std::prev(after);
  auto const offset =
      static_cast<std::size_t>(static_cast<char const*>(address) - static_cast<char const*>(start));
  return offset < what.bytes && bytes > what.bytes - offset;
}

void trim(CUmemPoolHandle_st& pool, std::size_t keep) {
  auto const kept = std::min(pool.reserved, std::max(keep, pool.used));
  the().devices[static_cast<std::size_t>(pool.device)].bytes_in_use -= pool.reserved - kept;
  pool.reserved = kept;
}

void uncount(state& s, allocation const& what) {
  s.allocated.subtract(what);
  if (what.host) return;
  if (what.pool == nullptr) {
    s.devices[static_cast<std::size_t>(what.device)].bytes_in_use -= what.bytes;
  } else {
    what.pool->used -= what.bytes;
    trim(*what.pool, what.pool->release_threshold);  // CUDA does so when a stream is synchronized
    if (what.pool->is_destroyed && what.pool->used == 0) s.memory_pools.erase(what.pool);
  }
}

bool take_room(std::size_t bytes, int device) {
  if (!is_room_for(bytes, device)) trim_all(device);
  if (!is_room_for(bytes, device)) return false;
  the().devices[static_cast<std::size_t>(device)].bytes_in_use += bytes;
  return true;
}

void* allocate_memory(std::size_t bytes, int device, bool host) {
  if (!host && !take_room(bytes, device)) return nullptr;
  void* const address = make(bytes, {.bytes = bytes, .device = device, .host = host});
  if (address == nullptr && !host) {
    the().devices[static_cast<std::size_t>(device)].bytes_in_use -= bytes;
  }
  return address;
}

void* allocate_memory(std::size_t bytes, CUmemPoolHandle_st& pool, stream_state const& stream) {
  auto& in_use = the().devices[static_cast<std::size_t>(pool.device)].bytes_in_use;
  auto const missing = [&] {
    auto const kept = pool.reserved - pool.used;
    return bytes - std::min(bytes, kept);
  };
  if (!is_room_for(missing(), pool.device)) {
    trim_all(pool.device);
    // Looks at all allocations.
    if (!is_room_for(missing(), pool.device, bytes_freed_on(stream, pool.device))) return nullptr;
  }
  void* const address = make(bytes, {.bytes = bytes, .device = pool.device, .pool = &pool});
  if (address == nullptr) return nullptr;
  in_use += missing();
  pool.reserved += missing();
  pool.used += bytes;
  return address;
}

bool free_memory(void* address) {
  auto& s = the();
  auto const found = s.allocations.find(address);
  if (found == s.allocations.end()) return false;
  uncount(s, found->second);
  allocation const what = found->second;
  s.allocations.erase(found);
  s.used.forget(address, what.bytes);
  end_memory(s, address, what);
  return true;
}

}  // namespace escrow::sim::model
