// SPDX-License-Identifier: Apache-2.0
// Texts of errors for callers of an adapter, who know no lines of its files.
#pragma once

#include <cstring>
#include <exception>
#include <string_view>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

// The text without the line of these files that called the library, which says nothing to
// who called it.
[[nodiscard]] inline char const* without_place(std::exception const& error) noexcept {
  source_location where;
  if (auto const* const located = dynamic_cast<located_error const*>(&error)) {
    where = located->where();
  } else if (auto const* const failed = dynamic_cast<cuda_error const*>(&error)) {
    where = failed->where();
  }
  std::string_view const file(where.file_name());
  if (where.line() == 0 || !std::string_view(error.what()).starts_with(file)) return error.what();
  char const* const behind = std::strstr(error.what() + file.size(), ": ");
  return behind == nullptr ? error.what() : behind + 2;
}

}  // namespace escrow::inline v0_2
