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
  void add(std::uintptr_t begin, std::size_t bytes) { all_[begin] = bytes; }  // whole pages
  void remove(std::uintptr_t begin) { all_.erase(begin); }
  // From the first to the second call the pages of that may not be written, or, if the copy writes
  // them, not be used.
  void begin_copy(std::uintptr_t begin, std::size_t bytes, bool writes);
  void end_copy(std::uintptr_t begin, std::size_t bytes, bool writes);

  [[nodiscard]] bool has(std::uintptr_t address) const;
  // What a copy has yet to do with that byte.
  enum class use : std::uint8_t { none, read, write };
  [[nodiscard]] use pending_at(std::uintptr_t address) const;
  // All may use the page, until a copy with it begins or ends. Allocates nothing.
  static void open(std::uintptr_t address);

 private:
  struct copy {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool writes;

    bool operator==(copy const&) const = default;
  };
  [[nodiscard]] int rights_of(std::uintptr_t page) const;
  void set_rights(copy const& of) const;  // of its pages

  std::map<std::uintptr_t, std::size_t> all_;  // by their begin
  std::vector<copy> pending_;
};

}  // namespace escrow::sim::model
