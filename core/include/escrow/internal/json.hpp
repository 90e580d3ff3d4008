// The JSON text of statistics.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// An object with these members, in this order, on one line. Names need no escapes. Any thread.
// Throws std::bad_alloc.
[[nodiscard]] inline std::string json_of(
    std::initializer_list<std::pair<char const*, std::uint64_t>> members) {
  std::string text;
  for (auto const& [name, value] : members) {
    text += (text.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + std::to_string(value);
  }
  return text + "}";
}

}  // namespace escrow::inline v0_1
