// Kernels that keep the code they are in, and that code: loaded at run time, unloaded when nothing
// needs it any more.
#pragma once

#include <cuda_runtime_api.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "escrow/api.hpp"
#include "escrow/deleter/deleter.hpp"

namespace escrow::inline v0_1 {

// What: a kernel, with a share of the library that it was found in, if it was.
// Lifetime: the library stays loaded as long as a kernel of it is there, and launches and graphs
//   that launch() made.
//   One that was moved from is null, and is not launched.
class kernel {
 public:
  // A __global__ function that is linked into the program, which stays.
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
  // A share of the library that the kernel keeps; null for one that is linked in.
  [[nodiscard]] std::shared_ptr<void const> const& library() const noexcept { return library_; }

  friend bool operator==(kernel const& one, kernel const& other) noexcept {
    return one.function_ == other.function_;
  }

 private:
  friend class library;

  kernel(void const* function, std::shared_ptr<void const> from) noexcept
      : function_(function), library_(std::move(from)) {}

  void const* function_;
  std::shared_ptr<void const> library_;
};

// What: a share of loaded code: a cubin, PTX or fatbin.
// Lifetime: the code is unloaded by the deleter's worker, once, when this and its copies, the
//   kernels found in it, their launches, and the graphs that have them are destroyed.
// Capture: loading is capture-safe: it runs in Relaxed mode.
// Errors: cuda_error, std::bad_alloc. What is no code may be noticed by find() only: CUDA loads
//   lazily, and load() of anything succeeds then.
class ESCROW_API library {
 public:
  // Loads the code at `image`, which need not stay. Any thread. Bad code may be noticed by find()
  // only. Source: cudaLibraryLoadData.
  [[nodiscard]] static library load(void const* image, deleter& its = deleter::global());
  // Loads a file. Any thread. Source: cudaLibraryLoadFromFile.
  [[nodiscard]] static library load_file(std::filesystem::path const& file,
                                         deleter& its = deleter::global());

  // The kernel of that (mangled) name, which keeps the library. Throws cuda_error:
  // cudaErrorSymbolNotFound if there is none, cudaErrorInvalidKernelImage if what was loaded is no
  // code; usage_error if this was moved from. Any thread. Source: cudaLibraryGetKernel.
  [[nodiscard]] kernel find(std::string const& name) const;

  // The CUDA handle. Never owning; null if moved from.
  [[nodiscard]] cudaLibrary_t get() const noexcept;

 private:
  class loaded_code;
  explicit library(std::shared_ptr<loaded_code const> loaded) noexcept
      : loaded_(std::move(loaded)) {}

  std::shared_ptr<loaded_code const> loaded_;
};

}  // namespace escrow::inline v0_1
