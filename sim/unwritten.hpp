// SPDX-License-Identifier: Apache-2.0
// Pages of scratch that no work has written since its claim, if memory is apart. Each is closed
// until it is written; who reads it before gets a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace escrow::sim::model {

// Thread safety: under the lock of the device's pages.
class unwritten_pages {
 public:
  // The pages that are whole in there are unwritten, and closed. `of`: the pool's name.
  void add(std::uintptr_t begin, std::size_t bytes, std::string const& of);
  // No page there is, and all are open.
  void remove(std::uintptr_t begin, std::size_t bytes);
  // Closes those of all, after others were opened.
  void close() const noexcept;

  // Whether an address is in one; then whose it is.
  [[nodiscard]] char const* name_at(std::uintptr_t address) const noexcept;
  // The page is none any more, and open. Allocates nothing.
  void open(std::uintptr_t address) noexcept;

 private:
  struct pages {
    std::vector<bool> are_unwritten;
    std::array<char, 64> of{};
  };
  using all = std::map<std::uintptr_t, pages>;

  [[nodiscard]] static std::uintptr_t end_of(all::value_type const& its);
  [[nodiscard]] all::const_iterator around(std::uintptr_t address) const noexcept;

  all all_;  // by their begin
};

// What a signal handler is given says whether the fault was a write; true where nobody knows.
[[nodiscard]] bool was_write(void const* context) noexcept;

}  // namespace escrow::sim::model
