// SPDX-License-Identifier: Apache-2.0
// Memory of the device in pages, if it is apart: which of them no work has written since their
// memory was allocated or claimed, and what is free in its pool. Who reads a page of the first, or
// uses one of the second, gets a text. Of memory that is small it is known in parts of a page what
// is written: its pages stay closed until all is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace escrow::sim::model {

// Thread safety: under the lock of the device's pages.
class work_pages {
 public:
  // Whole pages, of which so many bytes are used; they are written. False: they are known.
  bool add(std::uintptr_t begin, std::size_t bytes, std::size_t used);
  void remove(std::uintptr_t begin) { all_.erase(begin); }
  [[nodiscard]] bool has(std::uintptr_t address) const noexcept;

  // At work all are open but the unwritten and the idle ones; else none is.
  void set_rights(bool at_work) const noexcept;
  // All bytes of that memory there are 0xff, and its whole pages are unwritten, and closed. `of`:
  // the pool's name; empty: the memory is new. At work.
  void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of);

  // Whether an address is in an unwritten page, or part of one; then whose that is.
  [[nodiscard]] char const* name_at(std::uintptr_t address) const noexcept;
  [[nodiscard]] bool are_unwritten(std::uintptr_t begin, std::size_t bytes) const noexcept;  // all
  // Whether it is in a page that is closed since a part of it, at least, is unwritten.
  [[nodiscard]] bool is_in_closed(std::uintptr_t address) const noexcept;
  // These bytes are written, and their pages count as written, but for small memory's. Allocates
  // nothing.
  void write(std::uintptr_t begin, std::size_t bytes) noexcept;
  // The pages there count as written, and are open. Allocates nothing.
  void open(std::uintptr_t begin, std::size_t bytes) noexcept;
  // A page that is in closed is open, and closed again. False: it has been so too often, and counts
  // as written.
  [[nodiscard]] bool lift(std::uintptr_t address) noexcept;
  void close_again(std::uintptr_t address) const noexcept;

  // All of the memory that begins there is free in the pool `of`, for work of later calls than
  // `since`; as the first of that begins, the pages are closed. No effect on other memory.
  void set_idle(std::uintptr_t begin, std::uint64_t since, std::string const& of);
  // The same of what a lease has, with what earlier ones have left there.
  void set_left(std::uintptr_t begin, std::uint64_t since, std::string const& of);
  void close_idle(std::uint64_t call) noexcept;
  // It is claimed, or used by work of before. Allocates nothing.
  void end_idle(std::uintptr_t address, bool at_work) noexcept;
  struct idle_memory {
    std::uint64_t since;
    char const* of;
    bool is_left;
  };
  // Whether an address is in idle memory that is closed.
  [[nodiscard]] std::optional<idle_memory> idle_at(std::uintptr_t address) const noexcept;

 private:
  enum class idle : std::uint8_t { no, soon, closed };
  static constexpr std::size_t small_max = 4;  // pages
  struct pages {
    std::vector<bool> are_unwritten;  // or in part
    std::size_t unwritten = 0;        // so many
    // Of small memory: a bit for each 64th of a page; if all up to `used_end` are set, the page is
    // not unwritten.
    std::array<std::uint64_t, small_max> written{};
    std::uintptr_t used_end = 0;
    unsigned lifts = 0;  // so far
    std::array<char, 64> of{};
    idle is_idle = idle::no;
    std::uint64_t idle_since = 0;
    bool is_left = false;
  };
  using all = std::map<std::uintptr_t, pages>;

  [[nodiscard]] static std::uintptr_t end_of(all::value_type const& its);
  [[nodiscard]] static bool is_small(pages const& its) noexcept;
  [[nodiscard]] static std::uint64_t parts_of(std::uintptr_t page, std::uintptr_t begin,
                                              std::uintptr_t end) noexcept;
  [[nodiscard]] static std::uint64_t parts_behind(std::uintptr_t page, std::uintptr_t end) noexcept;
  static void make_new(all::value_type& in, std::uintptr_t first, std::uintptr_t end);
  static void close_unwritten(all::value_type const& of, std::size_t first, std::size_t end);
  [[nodiscard]] all::const_iterator around(std::uintptr_t address) const noexcept;

  all all_;                                // by their begin; they do not overlap
  std::vector<std::uintptr_t> soon_idle_;  // where such memory begins, or began
  unsigned lifts_ = 0;                     // so far
};

}  // namespace escrow::sim::model
