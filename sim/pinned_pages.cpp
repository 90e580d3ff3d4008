// SPDX-License-Identifier: Apache-2.0
// Knows the copies that are pending, and sets what the host may do with their pages.
#include "pinned_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "pages.hpp"

namespace escrow::sim::model {

bool pinned_pages::has(std::uintptr_t address) const {
  auto const after = all_.upper_bound(address);
  return after != all_.begin() && address - std::prev(after)->first < std::prev(after)->second;
}

int pinned_pages::rights_of(std::uintptr_t page) const {
  int rights = PROT_READ | PROT_WRITE;
  for (copy const& each : pending_) {
    if (each.end <= page || each.begin >= page + page_bytes()) continue;
    rights &= each.writes ? PROT_NONE : PROT_READ;
  }
  return rights;
}

void pinned_pages::set_rights(copy const& of) const {
  std::uintptr_t page = of.begin / page_bytes() * page_bytes();
  while (page < of.end) {  // a run of pages by one call
    int const rights = rights_of(page);
    std::uintptr_t end = page + page_bytes();
    while (end < of.end && rights_of(end) == rights) end += page_bytes();
    protect(page, end - page, rights);
    page = end;
  }
}

void pinned_pages::begin_copy(std::uintptr_t begin, std::size_t bytes, bool writes) {
  if (!has(begin) || !has(begin + bytes - 1)) return;
  pending_.push_back({begin, begin + bytes, writes});
  set_rights(pending_.back());
}

void pinned_pages::end_copy(std::uintptr_t begin, std::size_t bytes, bool writes) {
  copy const ended{begin, begin + bytes, writes};
  auto const found = std::ranges::find(pending_, ended);
  if (found == pending_.end()) return;
  pending_.erase(found);
  if (has(begin)) set_rights(ended);
}

pinned_pages::use pinned_pages::pending_at(std::uintptr_t address) const {
  use found = use::none;
  for (copy const& each : pending_) {
    if (address < each.begin || address >= each.end) continue;
    found = std::max(found, each.writes ? use::write : use::read);
  }
  return found;
}

void pinned_pages::open(std::uintptr_t address) {
  protect(address / page_bytes() * page_bytes(), page_bytes(), PROT_READ | PROT_WRITE);
}

}  // namespace escrow::sim::model
