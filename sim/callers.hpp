// SPDX-License-Identifier: Apache-2.0
// Which functions called, for messages.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace escrow::sim::model {

struct callers {
  std::array<void*, 48> frames{};  // innermost first
  std::size_t count = 0;
};

[[nodiscard]] callers callers_here();

// While one lives, this thread does work that these enqueued; null: nobody has asked who did.
class [[nodiscard]] work_of_callers {
 public:
  explicit work_of_callers(callers const* by) noexcept;
  work_of_callers(work_of_callers&&) = delete;
  ~work_of_callers();

 private:
  bool const was_at_work_;
  callers const* const outer_;
};

// Prints who called this function, and who enqueued the work that this thread does, as far as the
// dynamic linker knows their names. It allocates.
void print_callers();

}  // namespace escrow::sim::model
