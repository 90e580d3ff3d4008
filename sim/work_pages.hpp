// SPDX-License-Identifier: Apache-2.0
// Memory of the device in pages, if it is apart, and which of them no work has written since their
// memory was allocated or claimed. Who reads such a page gets a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace escrow::sim::model {

// Thread safety: under the lock of the device's pages.
class work_pages {
 public:
  // Whole pages; they are written. False: they are known.
  bool add(std::uintptr_t begin, std::size_t bytes);
  void remove(std::uintptr_t begin) { all_.erase(begin); }
  [[nodiscard]] bool has(std::uintptr_t address) const noexcept;

  // At work all are open but the unwritten ones; else none is.
  void set_rights(bool at_work) const noexcept;
  // All bytes of that memory there are 0xff, and its whole pages are unwritten, and closed. `of`:
  // the pool's name; empty: the memory is new. At work.
  void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of);

  // Whether an address is in an unwritten page; then whose that is.
  [[nodiscard]] char const* name_at(std::uintptr_t address) const noexcept;
  [[nodiscard]] bool are_unwritten(std::uintptr_t begin, std::size_t bytes) const noexcept;  // all
  // The pages there count as written, and are open. Allocates nothing.
  void open(std::uintptr_t begin, std::size_t bytes) noexcept;

 private:
  struct pages {
    std::vector<bool> are_unwritten;
    std::size_t unwritten = 0;  // so many
    std::array<char, 64> of{};
  };
  using all = std::map<std::uintptr_t, pages>;

  [[nodiscard]] static std::uintptr_t end_of(all::value_type const& its);
  static void make_new(all::value_type& in, std::uintptr_t first, std::uintptr_t end);
  static void close_unwritten(all::value_type const& of, std::size_t first, std::size_t end);
  [[nodiscard]] all::const_iterator around(std::uintptr_t address) const noexcept;

  all all_;  // by their begin; they do not overlap
};

}  // namespace escrow::sim::model
