// SPDX-License-Identifier: Apache-2.0
// Knows what is pending and what is idle, and sets what the host may do with their pages.
#include "pinned_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "pages.hpp"

namespace escrow::sim::model {

pinned_pages::ranges::const_iterator pinned_pages::around(ranges const& all,
                                                          std::uintptr_t address) {
  auto const after = all.upper_bound(address);
  if (after == all.begin()) return all.end();
  auto const found = std::prev(after);
  return address - found->first < found->second ? found : all.end();
}

bool pinned_pages::has(std::uintptr_t address) const {
  return around(all_, address) != all_.end();
}

bool pinned_pages::is_idle(std::uintptr_t address) const {
  return around(idle_, address) != idle_.end();
}

void pinned_pages::remove(std::uintptr_t begin) {
  auto const found = all_.find(begin);
  if (found == all_.end()) return;
  idle_.erase(idle_.lower_bound(begin), idle_.lower_bound(begin + found->second));
  all_.erase(found);
}

int pinned_pages::rights_of(std::uintptr_t page) const {
  int rights = PROT_READ | PROT_WRITE;
  for (pending const& each : pending_) {
    if (each.end <= page || each.begin >= page + page_bytes()) continue;
    rights &= each.writes ? PROT_NONE : PROT_READ;
  }
  auto const next = idle_.lower_bound(page);
  bool const is_any_idle =
      is_idle(page) || (next != idle_.end() && next->first < page + page_bytes());
  return is_any_idle ? PROT_NONE : rights;
}

void pinned_pages::set_rights(std::uintptr_t begin, std::uintptr_t last) const {
  std::uintptr_t page = begin / page_bytes() * page_bytes();
  while (page < last) {  // a run of pages by one call
    int const rights = rights_of(page);
    std::uintptr_t end = page + page_bytes();
    while (end < last && rights_of(end) == rights) end += page_bytes();
    protect(page, end - page, rights);
    page = end;
  }
}

void pinned_pages::begin(pending const& its) {
  if (!has(its.begin) || !has(its.end - 1)) return;
  pending_.push_back(its);
  set_rights(its.begin, its.end);
}

void pinned_pages::end(pending const& its) {
  auto const found = std::ranges::find(pending_, its);
  if (found == pending_.end()) return;
  pending const ended = *found;
  pending_.erase(found);
  if (has(ended.begin)) set_rights(ended.begin, ended.end);
}

void pinned_pages::set_idle(std::uintptr_t begin, std::size_t bytes, bool is_idle) {
  if (!has(begin) || !has(begin + bytes - 1)) return;
  if (is_idle) {
    idle_[begin] = bytes;
  } else if (idle_.erase(begin) == 0) {
    return;
  }
  set_rights(begin, begin + bytes);
}

pinned_pages::pending const* pinned_pages::pending_at(std::uintptr_t address) const {
  pending const* found = nullptr;
  for (pending const& each : pending_) {
    if (address < each.begin || address >= each.end) continue;
    if (found == nullptr || each.writes) found = &each;
  }
  return found;
}

void pinned_pages::open(std::uintptr_t address) {
  protect(address / page_bytes() * page_bytes(), page_bytes(), PROT_READ | PROT_WRITE);
}

}  // namespace escrow::sim::model
