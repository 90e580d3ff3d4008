// SPDX-License-Identifier: Apache-2.0
// The objects under test are linked as a shared library, *model_parts, so that its statics lie
// together.
#include "library_data.hpp"

#include <link.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace escrow::model {

namespace {

struct segment {
  std::uintptr_t where;
  std::vector<char> bytes;
};

std::uintptr_t next_page(std::uintptr_t address) {
  constexpr std::uintptr_t page = 4096;
  return (address + page - 1) / page * page;
}

// The writable segment, less what the loader makes read-only after relocation.
int note_segments(dl_phdr_info* info, std::size_t /*size*/, void* segments) {
  if (std::string_view(info->dlpi_name).find("model_parts") == std::string_view::npos) {
    return 0;
  }
  std::uintptr_t readable_only_until = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    ElfW(Phdr) const& each = info->dlpi_phdr[i];
    if (each.p_type == PT_GNU_RELRO) {
      readable_only_until = next_page(info->dlpi_addr + each.p_vaddr + each.p_memsz);
    }
  }
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    ElfW(Phdr) const& each = info->dlpi_phdr[i];
    if (each.p_type != PT_LOAD || (each.p_flags & PF_W) == 0) continue;
    std::uintptr_t begin = info->dlpi_addr + each.p_vaddr;
    std::uintptr_t const end = begin + each.p_memsz;
    if (begin < readable_only_until) begin = readable_only_until;
    if (begin >= end) continue;
    char const* const first = reinterpret_cast<char const*>(begin);
    static_cast<std::vector<segment>*>(segments)->push_back(
        {begin, {first, first + (end - begin)}});
  }
  return 0;
}

using segments = std::vector<segment>;

// At first.
segments const& original() {
  static segments const& noted = [] {
    auto& found = *new segments;
    dl_iterate_phdr(&note_segments, &found);
    return found;
  }();
  return noted;
}

segments& after_setup() {
  static segments& kept = *new segments;
  return kept;
}

void put_back(segments const& noted) {
  for (segment const& each : noted) {
    std::memcpy(reinterpret_cast<void*>(each.where), each.bytes.data(), each.bytes.size());
  }
}

}  // namespace

void reset_library_data() {
  put_back(original());
}

void keep_library_data() {
  after_setup() = original();
  for (segment& each : after_setup()) {
    std::memcpy(each.bytes.data(), reinterpret_cast<void const*>(each.where), each.bytes.size());
  }
}

bool is_library_data(std::uintptr_t address) noexcept {
  for (segment const& each : original()) {
    if (address - each.where < each.bytes.size()) return true;
  }
  return false;
}

void restore_library_data() {
  put_back(after_setup());
}

}  // namespace escrow::model
