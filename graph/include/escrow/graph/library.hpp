// Code that is loaded at run time and unloaded when nothing needs it any more.
#pragma once

#include <cuda_runtime_api.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/graph/kernel.hpp"

namespace escrow {

// What: a library's handle, which is unloaded at the end. Shared by a `library`, its kernels, and
//   the launches and graphs of those.
// Thread safety: immutable.
// Memory ordering: none.
// Lifetime: ends on the deleter's worker, whoever drops the last share.
// Capture: the worker harms none.
// Errors: one of cudaLibraryUnload goes to the deleter's on_error.
class loaded_library {
 public:
  explicit loaded_library(deleter_core& core) noexcept : core_(core) {}
  loaded_library(loaded_library&&) = delete;
  ~loaded_library();

  [[nodiscard]] cudaLibrary_t get() const noexcept { return handle_; }

 private:
  friend class library;

  deleter_core& core_;  // alive as long as what it is to destroy
  cudaLibrary_t handle_ = nullptr;
};

// What: a share of loaded code: a cubin, PTX or fatbin.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: the code is unloaded by the deleter's worker, once, when this and its copies, the
//   kernels found in it, their launches, and the graphs that have them are gone.
// Capture: loading is capture-safe: it runs in Relaxed mode.
// Errors: cuda_error, std::bad_alloc. What is no code may be noticed by find() only: CUDA loads
//   lazily, and load() of anything succeeds then.
class library {
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
  // The kernel that has this handle, as a node's or a launch's parameters have it, with its
  // library: if find() has given it, and the library is still loaded. Any thread.
  [[nodiscard]] static std::optional<kernel> kernel_of(void const* handle);

  // The CUDA handle. Never owning; null if moved from.
  [[nodiscard]] cudaLibrary_t get() const noexcept {
    return loaded_ == nullptr ? nullptr : loaded_->get();
  }

 private:
  explicit library(std::shared_ptr<loaded_library const> loaded) noexcept
      : loaded_(std::move(loaded)) {}

  std::shared_ptr<loaded_library const> loaded_;
};

}  // namespace escrow
