// SPDX-License-Identifier: Apache-2.0
// Marks whole pages, and finds out whether a fault was a write.
#include "unwritten.hpp"

#include <signal.h>  // with what <ucontext.h> of aarch64 leaves out
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "pages.hpp"

namespace escrow::sim::model {

std::uintptr_t unwritten_pages::end_of(all::value_type const& its) {
  return its.first + its.second.are_unwritten.size() * page_bytes();
}

unwritten_pages::all::const_iterator unwritten_pages::around(
    std::uintptr_t address) const noexcept {
  auto const after = all_.upper_bound(address);
  if (after == all_.begin()) return all_.end();
  auto const found = std::prev(after);
  return address < end_of(*found) ? found : all_.end();
}

void unwritten_pages::add(std::uintptr_t begin, std::size_t bytes, std::string const& of) {
  std::uintptr_t const first = (begin + page_bytes() - 1) / page_bytes() * page_bytes();
  std::uintptr_t const end = (begin + bytes) / page_bytes() * page_bytes();
  if (first >= end) return;
  pages& added = all_[first];
  added.are_unwritten.assign((end - first) / page_bytes(), true);
  std::strncpy(added.of.data(), of.c_str(), added.of.size() - 1);
  protect(first, end - first, PROT_NONE);
}

void unwritten_pages::remove(std::uintptr_t begin, std::size_t bytes) {
  auto first = all_.upper_bound(begin);
  if (first != all_.begin() && end_of(*std::prev(first)) > begin) --first;
  while (first != all_.end() && first->first < begin + bytes) {
    protect(first->first, end_of(*first) - first->first, PROT_READ | PROT_WRITE);
    first = all_.erase(first);
  }
}

void unwritten_pages::close() const noexcept {
  for (auto const& [begin, its] : all_) {
    std::size_t at = 0;
    while (at < its.are_unwritten.size()) {  // a run of pages by one call
      auto const of_run = its.are_unwritten.begin() + static_cast<std::ptrdiff_t>(at);
      bool const is_unwritten = *of_run;
      auto const count = static_cast<std::size_t>(
          std::find(of_run, its.are_unwritten.end(), !is_unwritten) - of_run);
      if (is_unwritten) protect(begin + at * page_bytes(), count * page_bytes(), PROT_NONE);
      at += count;
    }
  }
}

char const* unwritten_pages::name_at(std::uintptr_t address) const noexcept {
  auto const found = around(address);
  if (found == all_.end()) return nullptr;
  bool const is_it = found->second.are_unwritten[(address - found->first) / page_bytes()];
  return is_it ? found->second.of.data() : nullptr;
}

void unwritten_pages::open(std::uintptr_t address) noexcept {
  auto const found = around(address);
  if (found == all_.end()) return;
  std::size_t const nth = (address - found->first) / page_bytes();
  const_cast<pages&>(found->second).are_unwritten[nth] = false;
  protect(found->first + nth * page_bytes(), page_bytes(), PROT_READ | PROT_WRITE);
}

bool was_write(void const* context) noexcept {
  [[maybe_unused]] auto const& machine = static_cast<ucontext_t const*>(context)->uc_mcontext;
#if defined(__x86_64__)
  constexpr greg_t write = 2;
  return (machine.gregs[REG_ERR] & write) != 0;
#elif defined(__aarch64__)
  constexpr std::uint64_t write = 1U << 6U;
  for (unsigned char const* at = machine.__reserved;;) {
    auto const* const part = reinterpret_cast<_aarch64_ctx const*>(at);
    if (part->magic == ESR_MAGIC)
      return (reinterpret_cast<esr_context const*>(at)->esr & write) != 0;
    if (part->magic == 0 || part->size == 0) return true;
    at += part->size;
  }
#else
  return true;
#endif
}

}  // namespace escrow::sim::model
