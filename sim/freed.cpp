// SPDX-License-Identifier: Apache-2.0
// Memory that was freed lately, the oldest first to go.
#include "freed.hpp"

#include "apart.hpp"
#include "memory_faults.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <new>

namespace escrow::sim::model {
namespace {

constexpr std::size_t count_max = 1024;
constexpr std::size_t bytes_max = std::size_t{1} << 30;  // of addresses: large ones have no memory

// Gives the pages back, and keeps the addresses.
void empty(void* address, std::size_t bytes) noexcept {
  static auto const page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto const begin =
      (reinterpret_cast<std::uintptr_t>(address) + page_size - 1) / page_size * page_size;
  auto const end = (reinterpret_cast<std::uintptr_t>(address) + bytes) / page_size * page_size;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void drop_oldest(freed_memory& freed) noexcept {
  auto const found = freed.all.find(freed.in_turn.front());
  freed.in_turn.pop_front();
  freed.bytes -= found->second.bytes;
  delete_memory(const_cast<void*>(found->first), found->second);
  freed.all.erase(found);
}

}  // namespace

void delete_memory(void* address, allocation const& what) noexcept {
  if (!what.host) return delete_device_memory(address, what.bytes);
  delete_pinned_memory(address, what.bytes);
}

void end_memory(state& s, void* address, allocation const& what) {
  freed_memory& freed = s.freed;
  if (has_sanitizer() || what.bytes > bytes_max) return delete_memory(address, what);
  empty(address, what.bytes);
  freed.all.emplace(address, what);
  freed.in_turn.push_back(address);
  freed.bytes += what.bytes;
  while (freed.in_turn.size() > count_max || freed.bytes > bytes_max) drop_oldest(freed);
}

void forget_freed(state& s) noexcept {
  while (!s.freed.in_turn.empty()) drop_oldest(s.freed);
}

bool is_freed(void const* address) {
  auto const& all = the().freed.all;
  auto const after = all.upper_bound(address);
  if (after == all.begin()) return false;
  auto const& [begin, what] = *std::prev(after);
  return static_cast<char const*>(address) < static_cast<char const*>(begin) + what.bytes;
}

}  // namespace escrow::sim::model
