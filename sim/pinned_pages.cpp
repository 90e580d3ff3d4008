// SPDX-License-Identifier: Apache-2.0
// Counts the copies of each page that are pending, and sets what the host may do with it.
#include "pinned_pages.hpp"

#include <sys/mman.h>

#include <iterator>

#include "pages.hpp"

namespace escrow::sim::model {

void pinned_pages::add(std::uintptr_t begin, std::size_t bytes) {
  all_[begin].assign(bytes / page_bytes(), {});
}

pinned_pages::all::value_type const* pinned_pages::around(std::uintptr_t address) const {
  auto const after = all_.upper_bound(address);
  if (after == all_.begin()) return nullptr;
  auto const& found = *std::prev(after);
  return address - found.first < found.second.size() * page_bytes() ? &found : nullptr;
}

template <class Change>
void pinned_pages::for_each(std::uintptr_t begin, std::size_t bytes, Change change) {
  auto const* const found = around(begin);
  if (found == nullptr) return;
  auto& counts = all_[found->first];
  std::size_t const first = (begin - found->first + page_bytes() - 1) / page_bytes();
  std::size_t const end = (begin + bytes - found->first) / page_bytes();
  for (std::size_t i = first; i < end && i < counts.size(); ++i)
    change(found->first + i * page_bytes(), counts[i]);
}

void pinned_pages::set_rights(std::uintptr_t page, copies const& its) {
  int const when_read = its.reading != 0 ? PROT_READ : PROT_READ | PROT_WRITE;
  protect(page, page_bytes(), its.writing != 0 ? PROT_NONE : when_read);
}

void pinned_pages::begin_copy(std::uintptr_t begin, std::size_t bytes, bool writes) {
  for_each(begin, bytes, [writes](std::uintptr_t page, copies& its) {
    if ((writes ? its.writing : its.reading)++ == 0) set_rights(page, its);
  });
}

void pinned_pages::end_copy(std::uintptr_t begin, std::size_t bytes, bool writes) {
  for_each(begin, bytes, [writes](std::uintptr_t page, copies& its) {
    std::uint32_t& count = writes ? its.writing : its.reading;
    if (count != 0 && --count == 0) set_rights(page, its);
  });
}

pinned_pages::copies pinned_pages::pending_at(std::uintptr_t address) const {
  auto const* const found = around(address);
  return found != nullptr ? found->second[(address - found->first) / page_bytes()] : copies{};
}

void pinned_pages::open(std::uintptr_t address) {
  auto const* const found = around(address);
  if (found == nullptr) return;
  std::size_t const nth = (address - found->first) / page_bytes();
  all_[found->first][nth] = {};
  protect(found->first + nth * page_bytes(), page_bytes(), PROT_READ | PROT_WRITE);
}

}  // namespace escrow::sim::model
