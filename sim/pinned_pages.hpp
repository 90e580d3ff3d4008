// SPDX-License-Identifier: Apache-2.0
// Pinned memory that work has yet to read or to write, or that is free in its pool, if memory is
// apart: whoever uses it on the host gets a text.
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
  void remove(std::uintptr_t begin);

  // Bytes that a copy or a kernel has yet to read, or to write.
  struct pending {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool writes;
    bool is_kernels;

    bool operator==(pending const&) const = default;
  };
  // From the first to the second call the pages of that may not be written, or, if the work writes
  // them, not be used.
  void begin(pending const& its);
  void end(pending const& its);
  // The pages may not be used.
  void set_idle(std::uintptr_t begin, std::size_t bytes, bool is_idle);

  [[nodiscard]] bool has(std::uintptr_t address) const;
  // What has yet to use that byte, one that writes it if there is one; null: nothing.
  [[nodiscard]] pending const* pending_at(std::uintptr_t address) const;
  [[nodiscard]] bool is_idle(std::uintptr_t address) const;
  // All may use the page, until that of one of its bytes changes. Allocates nothing.
  static void open(std::uintptr_t address);

 private:
  using ranges = std::map<std::uintptr_t, std::size_t>;  // bytes, by their begin

  [[nodiscard]] static ranges::const_iterator around(ranges const& all, std::uintptr_t address);
  [[nodiscard]] int rights_of(std::uintptr_t page) const;
  void set_rights(std::uintptr_t begin, std::uintptr_t end) const;  // of the pages there

  ranges all_;
  ranges idle_;
  std::vector<pending> pending_;
};

}  // namespace escrow::sim::model
