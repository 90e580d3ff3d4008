// A kernel that keeps the code it is in.
#pragma once

#include <memory>
#include <utility>

namespace escrow {

class loaded_library;

// What: a kernel, with a share of the library that it was found in, if it was.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: the library stays loaded as long as a kernel of it is there, and launches and graphs
//   that launch() made.
// Capture: none.
// Errors: none. One that was moved from is null, and is not launched.
class kernel {
 public:
  // A __global__ function that is linked into the program, which does not go away.
  template <class... Parameters>
  // NOLINTNEXTLINE(google-explicit-constructor): a function is a kernel.
  kernel(void (*function)(Parameters...)) noexcept
      : function_(reinterpret_cast<void const*>(function)) {}
  // The same, by the address that cudaLaunchKernel takes.
  explicit kernel(void const* function) noexcept : function_(function) {}
  explicit kernel(char const* name) = delete;  // a name is looked up in a library
  kernel(kernel const& other) noexcept = default;
  kernel& operator=(kernel const& other) noexcept = default;
  kernel(kernel&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)), library_(std::move(other.library_)) {}
  kernel& operator=(kernel&& other) noexcept {
    kernel taken(std::move(other));
    std::swap(function_, taken.function_);
    std::swap(library_, taken.library_);
    return *this;
  }
  ~kernel() = default;

  // What cudaLaunchKernel and kernel nodes take.
  [[nodiscard]] void const* get() const noexcept { return function_; }
  // The library that the kernel keeps; null for one that is linked in.
  [[nodiscard]] std::shared_ptr<loaded_library const> const& library() const noexcept {
    return library_;
  }

  friend bool operator==(kernel const& one, kernel const& other) noexcept {
    return one.function_ == other.function_;
  }

 private:
  friend class library;

  kernel(void const* function, std::shared_ptr<loaded_library const> from) noexcept
      : function_(function), library_(std::move(from)) {}

  void const* function_;
  std::shared_ptr<loaded_library const> library_;
};

}  // namespace escrow
