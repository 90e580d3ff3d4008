// SPDX-License-Identifier: Apache-2.0
// Opens, closes and marks whole pages.
#include "work_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "pages.hpp"
#include "single_step.hpp"

namespace escrow::sim::model {
namespace {

// Of some microseconds each.
constexpr unsigned lifts_max = 20'000;  // of one allocation
constexpr unsigned all_lifts_max = 500'000;
constexpr std::size_t parts = 64;
constexpr std::uint64_t all_parts = ~std::uint64_t{0};

std::size_t part_bytes() noexcept {
  return page_bytes() / parts;
}

}  // namespace

bool work_pages::is_small(pages const& its) noexcept {
  return its.are_unwritten.size() <= small_max && can_step();
}

// Those that [begin, end) has a byte of.
std::uint64_t work_pages::parts_of(std::uintptr_t page, std::uintptr_t begin,
                                   std::uintptr_t end) noexcept {
  std::uintptr_t const from = std::max(begin, page);
  std::uintptr_t const to = std::min(end, page + page_bytes());
  if (from >= to) return 0;
  std::size_t const first = (from - page) / part_bytes();
  std::size_t const last = (to - 1 - page) / part_bytes();
  return (all_parts << first) & (all_parts >> (parts - 1 - last));
}

// Those that have no byte before `end`.
std::uint64_t work_pages::parts_behind(std::uintptr_t page, std::uintptr_t end) noexcept {
  return ~parts_of(page, page, std::max(page, end));
}

std::uintptr_t work_pages::end_of(all::value_type const& its) {
  return its.first + its.second.are_unwritten.size() * page_bytes();
}

work_pages::all::const_iterator work_pages::around(std::uintptr_t address) const noexcept {
  auto const after = all_.upper_bound(address);
  if (after == all_.begin()) return all_.end();
  auto const found = std::prev(after);
  return address < end_of(*found) ? found : all_.end();
}

bool work_pages::add(std::uintptr_t begin, std::size_t bytes, std::size_t used) {
  auto const [added, is_new] = all_.try_emplace(begin);
  if (!is_new) return false;
  added->second.are_unwritten.resize(bytes / page_bytes());
  added->second.used_end = begin + used;
  return true;
}

bool work_pages::has(std::uintptr_t address) const noexcept {
  return around(address) != all_.end();
}

void work_pages::close_unwritten(all::value_type const& of, std::size_t first, std::size_t end) {
  if (of.second.unwritten == 0) return;
  auto const& are_unwritten = of.second.are_unwritten;
  auto const at = [&](std::size_t nth) {
    return are_unwritten.begin() + static_cast<std::ptrdiff_t>(nth);
  };
  while (first < end) {  // a run of pages by one call
    bool const is_unwritten = are_unwritten[first];
    auto const count =
        static_cast<std::size_t>(std::find(at(first), at(end), !is_unwritten) - at(first));
    if (is_unwritten) protect(of.first + first * page_bytes(), count * page_bytes(), PROT_NONE);
    first += count;
  }
}

void work_pages::set_rights(bool at_work) const noexcept {
  for (auto each = all_.begin(); each != all_.end();) {  // what lies side by side by one call
    std::uintptr_t const begin = each->first;
    std::uintptr_t end = begin;
    for (; each != all_.end() && each->first == end; ++each) end = end_of(*each);
    protect(begin, end - begin, at_work ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  if (!at_work) return;
  for (auto const& each : all_) {
    if (each.second.is_idle == idle::closed) {
      protect(each.first, end_of(each) - each.first, PROT_NONE);
    } else {
      close_unwritten(each, 0, each.second.are_unwritten.size());
    }
  }
}

void work_pages::make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of) {
  auto each = all_.upper_bound(begin);
  if (each != all_.begin()) --each;
  for (; each != all_.end() && each->first < begin + bytes; ++each) {
    std::uintptr_t const first = std::max(begin, each->first);
    std::uintptr_t const end = std::min(begin + bytes, end_of(*each));
    if (first >= end) continue;
    make_new(*each, first, end);
    each->second.of = {};
    std::strncpy(each->second.of.data(), of.c_str(), each->second.of.size() - 1);
  }
}

void work_pages::make_new(all::value_type& in, std::uintptr_t first, std::uintptr_t end) {
  std::size_t const first_page = (first - in.first) / page_bytes();
  std::size_t const end_page = (end - 1 - in.first) / page_bytes() + 1;
  protect(in.first + first_page * page_bytes(), (end_page - first_page) * page_bytes(),
          PROT_READ | PROT_WRITE);
  for (std::size_t nth = first_page; nth < end_page; ++nth) {
    std::uintptr_t const page = in.first + nth * page_bytes();
    bool const is_as_made =
        in.second.are_unwritten[nth] && (!is_small(in.second) || in.second.written[nth] == 0);
    if (is_as_made) continue;
    std::uintptr_t const from = std::max(first, page);
    std::uintptr_t const to = std::min(end, page + page_bytes());
    std::memset(reinterpret_cast<void*>(from), 0xff, to - from);
    if (to - from != page_bytes()) continue;
    if (is_small(in.second)) in.second.written[nth] = 0;
    if (in.second.are_unwritten[nth]) continue;
    in.second.are_unwritten[nth] = true;
    ++in.second.unwritten;
  }
  close_unwritten(in, first_page, end_page);
}

bool work_pages::is_in_closed(std::uintptr_t address) const noexcept {
  auto const found = around(address);
  return found != all_.end() &&
         found->second.are_unwritten[(address - found->first) / page_bytes()];
}

char const* work_pages::name_at(std::uintptr_t address) const noexcept {
  if (!is_in_closed(address)) return nullptr;
  auto const found = around(address);
  pages const& its = found->second;
  if (!is_small(its)) return its.of.data();
  std::size_t const nth = (address - found->first) / page_bytes();
  std::uint64_t const part = parts_of(found->first + nth * page_bytes(), address, address + 1);
  return (its.written[nth] & part) == 0 ? its.of.data() : nullptr;
}

bool work_pages::are_unwritten(std::uintptr_t begin, std::size_t bytes) const noexcept {
  std::uintptr_t const end = begin + bytes;
  auto const found = around(begin);
  std::size_t const step =
      found != all_.end() && is_small(found->second) ? part_bytes() : page_bytes();
  for (std::uintptr_t at = begin; at < end; at = (at / step + 1) * step) {
    if (name_at(at) == nullptr) return false;
  }
  return true;
}

void work_pages::write(std::uintptr_t begin, std::size_t bytes) noexcept {
  auto const found = around(begin);
  if (found == all_.end() || bytes == 0) return;
  auto& its = const_cast<pages&>(found->second);
  if (its.is_left && its.is_idle == idle::closed) end_idle(begin, true);  // work of this lease's
  if (!is_small(its)) return open(begin, bytes);
  std::uintptr_t const end = begin + bytes;
  for (std::size_t nth = 0; nth < its.are_unwritten.size(); ++nth) {
    std::uintptr_t const page = found->first + nth * page_bytes();
    std::uint64_t const written = parts_of(page, begin, end);
    if (written == 0 || !its.are_unwritten[nth]) continue;
    its.written[nth] |= written;
    // Nobody writes what is behind.
    if ((its.written[nth] | parts_behind(page, its.used_end)) == all_parts) open(page, 1);
  }
}

bool work_pages::lift(std::uintptr_t address) noexcept {
  auto const found = around(address);
  auto& its = const_cast<pages&>(found->second);
  if (its.lifts >= lifts_max || lifts_ >= all_lifts_max) {
    open(found->first, end_of(*found) - found->first);
    return false;
  }
  ++its.lifts;
  ++lifts_;
  protect(address / page_bytes() * page_bytes(), page_bytes(), PROT_READ | PROT_WRITE);
  return true;
}

void work_pages::close_again(std::uintptr_t address) const noexcept {
  auto const found = around(address);
  if (found == all_.end()) return;
  bool const is_closed = found->second.is_idle == idle::closed || is_in_closed(address);
  if (is_closed) protect(address / page_bytes() * page_bytes(), page_bytes(), PROT_NONE);
}

void work_pages::open(std::uintptr_t begin, std::size_t bytes) noexcept {
  auto const found = around(begin);
  if (found == all_.end() || bytes == 0) return;
  std::size_t const first = (begin - found->first) / page_bytes();
  std::size_t const end =
      (std::min(begin + bytes, end_of(*found)) - 1 - found->first) / page_bytes() + 1;
  auto& its = const_cast<pages&>(found->second);
  for (std::size_t nth = first; nth < end; ++nth) {
    if (its.are_unwritten[nth]) --its.unwritten;
    its.are_unwritten[nth] = false;
  }
  protect(found->first + first * page_bytes(), (end - first) * page_bytes(),
          PROT_READ | PROT_WRITE);
}

void work_pages::set_idle(std::uintptr_t begin, std::uint64_t since, std::string const& of) {
  auto const found = all_.find(begin);
  if (found == all_.end()) return;
  soon_idle_.push_back(begin);
  pages& its = found->second;
  its.is_idle = idle::soon;
  its.is_left = false;
  its.idle_since = since;
  its.of = {};
  std::strncpy(its.of.data(), of.c_str(), its.of.size() - 1);
}

void work_pages::set_left(std::uintptr_t begin, std::uint64_t since, std::string const& of) {
  set_idle(begin, since, of);
  auto const found = all_.find(begin);
  if (found != all_.end()) found->second.is_left = true;
}

void work_pages::close_idle(std::uint64_t call) noexcept {
  std::erase_if(soon_idle_, [&](std::uintptr_t begin) {
    auto const found = all_.find(begin);
    if (found == all_.end() || found->second.is_idle != idle::soon) return true;
    if (found->second.idle_since >= call) return false;
    found->second.is_idle = idle::closed;
    protect(begin, end_of(*found) - begin, PROT_NONE);
    return true;
  });
}

void work_pages::end_idle(std::uintptr_t address, bool at_work) noexcept {
  auto const found = around(address);
  if (found == all_.end()) return;
  auto& its = const_cast<pages&>(found->second);
  its.is_left = false;
  if (std::exchange(its.is_idle, idle::no) != idle::closed || !at_work) return;
  protect(found->first, end_of(*found) - found->first, PROT_READ | PROT_WRITE);
  close_unwritten(*found, 0, its.are_unwritten.size());
}

std::optional<work_pages::idle_memory> work_pages::idle_at(std::uintptr_t address) const noexcept {
  auto const found = around(address);
  if (found == all_.end() || found->second.is_idle != idle::closed) return std::nullopt;
  return idle_memory{found->second.idle_since, found->second.of.data(), found->second.is_left};
}

}  // namespace escrow::sim::model
