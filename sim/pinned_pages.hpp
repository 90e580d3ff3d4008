// SPDX-License-Identifier: Apache-2.0
// Pinned memory that copies have yet to read, if memory is apart: whoever writes it before gets a
// text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace escrow::sim::model {

// Thread safety: under the lock of the device's pages.
class pinned_pages {
 public:
  void add(std::uintptr_t begin, std::size_t bytes);  // whole pages
  void remove(std::uintptr_t begin) { all_.erase(begin); }
  // From the first to the second call the pages that are whole in there may not be written.
  void begin_copy(std::uintptr_t begin, std::size_t bytes);
  void end_copy(std::uintptr_t begin, std::size_t bytes);

  [[nodiscard]] bool has(std::uintptr_t address) const { return around(address) != nullptr; }
  // Whether a copy has yet to read the page.
  [[nodiscard]] bool is_awaited(std::uintptr_t address) const;
  // The page may be written from now on. Allocates nothing.
  void open(std::uintptr_t address);

 private:
  using copies = std::vector<std::uint32_t>;  // of each page, so many
  using all = std::map<std::uintptr_t, copies>;
  [[nodiscard]] all::value_type const* around(std::uintptr_t address) const;
  // Calls `change(address, count)` for the pages that are whole in there.
  template <class Change>
  void for_each(std::uintptr_t begin, std::size_t bytes, Change change);

  all all_;  // by their begin
};

}  // namespace escrow::sim::model
