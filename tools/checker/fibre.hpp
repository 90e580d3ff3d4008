// SPDX-License-Identifier: Apache-2.0
// Threads of the model: stacks of their own, of which one runs at a time.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace escrow::model {

class fibre {
 public:
  fibre();
  fibre(fibre&&) = delete;
  ~fibre();

  // Makes it ready to run `body`, which must never return. What it ran before is dropped.
  void prepare(std::function<void()> const* body) noexcept;
  // Leaves `from` where it is and goes on with this one.
  void resume_from(fibre& from) noexcept;
  [[nodiscard]] bool has(std::uintptr_t address) const noexcept {
    return address - reinterpret_cast<std::uintptr_t>(stack_) < stack_bytes;
  }

  // The program's own thread, which needs no stack.
  struct of_the_program {};
  explicit fibre(of_the_program) noexcept : stack_(nullptr) {}

 private:
  static constexpr std::size_t stack_bytes = std::size_t{128} << 10U;
  // What the C++ run time keeps of exceptions in flight, for each thread: its layout is part of the
  // ABI.
  struct exceptions_in_flight {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  void begin() noexcept;
  static void enter(unsigned int low, unsigned int high);

  std::byte* stack_;
  std::function<void()> const* body_ = nullptr;
  bool is_fresh_ = false;
  bool was_entered_ = false;
  std::jmp_buf origin_{};  // where its stack begins
  std::jmp_buf state_{};
  exceptions_in_flight exceptions_;
};

}  // namespace escrow::model
