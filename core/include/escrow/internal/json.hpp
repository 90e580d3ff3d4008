// SPDX-License-Identifier: Apache-2.0
// The JSON text of statistics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// A member of an object. Its name needs no escapes.
struct json_member {
  json_member(char const* its, std::string json) : name(its), value(std::move(json)) {}
  json_member(char const* its, std::uint64_t number) : json_member(its, std::to_string(number)) {}

  char const* name;
  std::string value;
};

// An object with these members, in this order, on one line. Any thread. Throws std::bad_alloc.
[[nodiscard]] inline std::string json_of(std::initializer_list<json_member> members) {
  std::string text;
  for (auto const& [name, value] : members) {
    text += (text.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + value;
  }
  return text + "}";
}

// How many bytes, of more than one, encode the first character in UTF-8; 0: none do.
[[nodiscard]] inline std::size_t encoded_length(std::string_view text) noexcept {
  auto const byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  auto const lead = byte(0);
  std::size_t const length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) / 0x40 != 2) return 0;
  }
  // Not the shortest form, a surrogate, or no character.
  bool const is_wrong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) ||
                        (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90);
  return is_wrong ? 0 : length;
}

// A text in quotes, with what JSON escapes; what is not UTF-8 becomes U+FFFD. Any thread. Throws
// std::bad_alloc.
[[nodiscard]] inline std::string json_text(std::string_view of) {
  constexpr char const* digits = "0123456789abcdef";
  std::string text = "\"";
  for (std::size_t at = 0; at < of.size(); ++at) {
    char const each = of[at];
    auto const code = static_cast<unsigned char>(each);
    if (code >= 0x80) {
      std::size_t const length = encoded_length(of.substr(at));
      text += length == 0 ? "\\ufffd" : of.substr(at, length);
      at += std::max<std::size_t>(length, 1) - 1;
      continue;
    }
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
