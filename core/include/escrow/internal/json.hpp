// SPDX-License-Identifier: Apache-2.0
// The JSON text of statistics.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

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

// A text in quotes, with what JSON escapes. Any thread. Throws std::bad_alloc.
[[nodiscard]] inline std::string json_text(std::string_view of) {
  constexpr char const* digits = "0123456789abcdef";
  std::string text = "\"";
  for (char const each : of) {
    auto const code = static_cast<unsigned char>(each);
    if (code < 0x20) {
      text += {'\\', 'u', '0', '0', digits[code / 16], digits[code % 16]};
      continue;
    }
    if (std::string_view("\"\\").find(each) != std::string_view::npos) text += '\\';
    text += each;
  }
  return text + "\"";
}

// An array of what `json` makes of each. Any thread. Throws std::bad_alloc, and what `json` does.
template <class Range, class Json>
[[nodiscard]] std::string json_array(Range const& all, Json json) {
  std::string text = "[";
  for (auto const& each : all) text += (text.size() == 1 ? "" : ", ") + json(each);
  return text + "]";
}

}  // namespace escrow::inline v0_2
