// SPDX-License-Identifier: Apache-2.0
// Pinned memory that copies have yet to read or to write, if memory is apart: whoever writes it
// before, or looks at it, gets a text.
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
  // From the first to the second call the pages that are whole in there may not be written, or, if
  // the copy writes them, not be used.
  void begin_copy(std::uintptr_t begin, std::size_t bytes, bool writes);
  void end_copy(std::uintptr_t begin, std::size_t bytes, bool writes);

  [[nodiscard]] bool has(std::uintptr_t address) const { return around(address) != nullptr; }
  // Whether copies have yet to read, or to write, the page.
  struct copies {
    std::uint32_t reading = 0;
    std::uint32_t writing = 0;
  };
  [[nodiscard]] copies pending_at(std::uintptr_t address) const;
  // The page may be written from now on. Allocates nothing.
  void open(std::uintptr_t address);

 private:
  using all = std::map<std::uintptr_t, std::vector<copies>>;  // of each page
  static void set_rights(std::uintptr_t page, copies const& its);
  [[nodiscard]] all::value_type const* around(std::uintptr_t address) const;
  // Calls `change(address, count)` for the pages that are whole in there.
  template <class Change>
  void for_each(std::uintptr_t begin, std::size_t bytes, Change change);

  all all_;  // by their begin
};

}  // namespace escrow::sim::model
