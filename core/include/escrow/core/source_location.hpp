// Where in the source a call was made.
#pragma once

#include <cstdint>

namespace escrow {

// What: source_location, for compilers whose standard library lacks it (clang 14 with libstdc++),
//   and one type for all of them, since it is part of function signatures.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: points to string literals.
// Capture: none.
// Errors: none.
class source_location {
 public:
  // Nowhere.
  constexpr source_location() noexcept = default;

  // The place of the call, also as a default argument. Pass no arguments.
  [[nodiscard]] static constexpr source_location current(
      char const* file = __builtin_FILE(), char const* function = __builtin_FUNCTION(),
      std::uint_least32_t line = __builtin_LINE()) noexcept {
    source_location here;
    here.file_ = file;
    here.function_ = function;
    here.line_ = line;
    return here;
  }

  [[nodiscard]] constexpr char const* file_name() const noexcept { return file_; }
  [[nodiscard]] constexpr char const* function_name() const noexcept { return function_; }
  [[nodiscard]] constexpr std::uint_least32_t line() const noexcept { return line_; }

 private:
  char const* file_ = "";
  char const* function_ = "";
  std::uint_least32_t line_ = 0;
};

}  // namespace escrow
