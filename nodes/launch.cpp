// SPDX-License-Identifier: Apache-2.0
// Loading and unloading code.
#include "escrow/nodes/launch.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "escrow/deleter/shared_object.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/never_destroyed.hpp"
#include "escrow/internal/retry_cleanup.hpp"

// Of the simulated runtime, where that is linked: what it knows of a kernel; false: nothing.
extern "C" [[gnu::weak, gnu::visibility("hidden")]] bool escrow_simulated_parameters(
    void const* kernel, char const** name, std::size_t const** sizes, std::size_t* count) noexcept;

namespace escrow::inline v0_2 {

namespace {

// What: the kernels that library::find() has returned, of libraries that are loaded.
// Thread safety: any thread.
// Lifetime: of the process.
// Errors: note() throws std::bad_alloc, and has noted nothing then.
class known_kernels {
 public:
  static known_kernels& global() {
    static never_destroyed<known_kernels> its;
    return *its;
  }
  // `of`: its library's list.
  void note(cudaKernel_t kernel, std::weak_ptr<void const> its, std::vector<cudaKernel_t>& of) {
    std::lock_guard const lock(mutex_);
    if (all_.contains(kernel)) return;
    of.push_back(kernel);  // to forget what is not there does no harm
    all_.emplace(kernel, std::move(its));
  }
  [[nodiscard]] std::shared_ptr<void const> library_of(cudaKernel_t kernel) const {
    std::lock_guard const lock(mutex_);
    auto const known = all_.find(kernel);
    return known == all_.end() ? nullptr : known->second.lock();
  }
  void forget(std::vector<cudaKernel_t> const& kernels) noexcept {
    std::lock_guard const lock(mutex_);
    for (cudaKernel_t const each : kernels) all_.erase(each);
  }

 private:
  mutable std::mutex mutex_;  // guards the map, and each library's list
  std::unordered_map<cudaKernel_t, std::weak_ptr<void const>> all_;
};

}  // namespace

// Shared by a `library`, its kernels, and the launches and graphs of those. It ends on the
// deleter's worker, whichever thread drops the last share; an error of cudaLibraryUnload goes to
// the deleter's on_error.
struct ESCROW_LOCAL library::loaded_code {
  explicit loaded_code(deleter_core& its) noexcept : core(its) {}
  loaded_code(loaded_code&&) = delete;
  ~loaded_code() {
    known_kernels::global().forget(found);
    if (handle == nullptr) return;
    cudaError_t const status = retry_cleanup([this] { return cudaLibraryUnload(handle); });
    if (status != cudaSuccess) core.report(status, "cudaLibraryUnload");
  }

  deleter_core& core;  // alive as long as what it is to destroy
  cudaLibrary_t handle = nullptr;
  mutable std::vector<cudaKernel_t> found;  // by find(); guarded by known_kernels
};

namespace {

std::string text_of(dim3 const& size) {
  std::string text("{");
  text.append(std::to_string(size.x)).append(", ").append(std::to_string(size.y)).append(", ");
  return text.append(std::to_string(size.z)).append("}");
}

bool has_zero(dim3 const& size) noexcept {
  return size.x == 0 || size.y == 0 || size.z == 0;
}

int device_limit(cudaDeviceAttr which) noexcept {
  int device = 0;
  int limit = 0;
  bool const is_known =
      succeeded(cudaGetDevice(&device)) && succeeded(cudaDeviceGetAttribute(&limit, which, device));
  return is_known ? limit : std::numeric_limits<int>::max();
}

bool exceeds(dim3 const& size, cudaDeviceAttr x, cudaDeviceAttr y, cudaDeviceAttr z) noexcept {
  auto const is_over = [](unsigned given, cudaDeviceAttr which) {
    return std::int64_t{given} > device_limit(which);
  };
  return is_over(size.x, x) || is_over(size.y, y) || is_over(size.z, z);
}

// What of the shape does not fit, and what to do; empty if Escrow does not know.
std::string misfit_of(kernel const& launched, launch_config const& config) {
  if (has_zero(config.grid)) return "`grid` has a 0: give at least 1, or do not launch";
  if (has_zero(config.block)) return "`block` has a 0: give at least 1";
  if (exceeds(config.grid, cudaDevAttrMaxGridDimX, cudaDevAttrMaxGridDimY,
              cudaDevAttrMaxGridDimZ)) {
    return "`grid` is above the device's limit, at most " +
           std::to_string(device_limit(cudaDevAttrMaxGridDimX)) + " in x and " +
           std::to_string(device_limit(cudaDevAttrMaxGridDimY)) +
           " in y: launch fewer blocks, each of which does more";
  }
  if (exceeds(config.block, cudaDevAttrMaxBlockDimX, cudaDevAttrMaxBlockDimY,
              cudaDevAttrMaxBlockDimZ)) {
    return "`block` is above the device's limit: use smaller blocks, and more";
  }
  cudaFuncAttributes its{};
  if (!succeeded(cudaFuncGetAttributes(&its, launched.get()))) return "";
  std::uint64_t const threads = std::uint64_t{config.block.x} * config.block.y * config.block.z;
  if (threads > static_cast<std::uint64_t>(its.maxThreadsPerBlock)) {
    return "`block` has " + std::to_string(threads) + " threads, the kernel allows " +
           std::to_string(its.maxThreadsPerBlock) + ": use smaller blocks, and more";
  }
  if (config.shared_bytes > static_cast<std::size_t>(its.maxDynamicSharedSizeBytes)) {
    return "the kernel allows " + std::to_string(its.maxDynamicSharedSizeBytes) +
           " `shared_bytes`: raise cudaFuncAttributeMaxDynamicSharedMemorySize, or use fewer";
  }
  return "";
}

// Whether the current device has the kernel.
bool is_known(kernel const& launched) noexcept {
  cudaFuncAttributes its{};
  return succeeded(cudaFuncGetAttributes(&its, launched.get()));
}

constexpr char const* no_such_kernel =
    "the program has no such kernel for the current device: compile for the device's "
    "architecture; on the simulated runtime, register it by sim::register_kernel()";

bool may_be_of_shape(cudaError_t status) noexcept {
  return status == cudaErrorInvalidConfiguration || status == cudaErrorInvalidValue ||
         status == cudaErrorLaunchOutOfResources || status == cudaErrorCooperativeLaunchTooLarge;
}

std::string shape_of(launch_config const& config) {
  return "launched with grid " + text_of(config.grid) + ", block " + text_of(config.block) +
         ", shared_bytes " + std::to_string(config.shared_bytes) + ", " +
         std::to_string(config.attributes.size()) + " attributes";
}

constexpr char const* what_is_code = "a cubin, a fatbin or PTX text for the current device";

bool is_no_code(cudaError_t status) noexcept {
  return status == cudaErrorInvalidKernelImage || status == cudaErrorInvalidSource ||
         status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidPtx ||
         status == cudaErrorUnsupportedPtxVersion;
}

// For the status of a call that loads `from`, a file or a parameter.
[[gnu::cold, gnu::noinline]] void refuse_code(cudaError_t status, char const* api,
                                              std::string_view from) {
  std::string note("loading ");
  note.append(from);
  if (status == cudaErrorFileNotFound) {
    note.append(": give the path of a file that can be read");
  } else if (is_no_code(status)) {
    note.append(": give ").append(what_is_code);
  }
  check(status, api, source_location::current(), note);
}

// For the status of a call that looks for a kernel of this name.
[[gnu::cold, gnu::noinline]] void refuse_name(cudaError_t status, std::string_view name) {
  std::string note("looking for the kernel \"");
  note.append(name);
  if (status == cudaErrorSymbolNotFound || status == cudaErrorInvalidValue) {
    note.append("\": declare it extern \"C\", or give its mangled name (cuobjdump -symbols)");
  } else if (is_no_code(status)) {
    note.append("\": load ").append(what_is_code).append("; load_file() loads a file");
  } else {
    note.append("\"");
  }
  check(status, "cudaLibraryGetKernel", source_location::current(), note);
}

}  // namespace

std::string detail::misfit_note(cudaError_t status, kernel const& launched,
                                launch_config const& config) {
  if (status == cudaErrorInvalidResourceHandle || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorNoKernelImageForDevice) {
    return is_known(launched) ? "" : no_such_kernel;
  }
  if (!may_be_of_shape(status)) return "";
  std::string text = misfit_of(launched, config);
  if (!text.empty()) text.append("; ").append(shape_of(config));
  return text;
}

void detail::refuse_launch(cudaError_t status, kernel const& launched,
                           launch_config const& config) {
  std::string text = misfit_note(status, launched, config);
  if (text.empty() && may_be_of_shape(status)) text = shape_of(config);
  throw_cuda_error(status, "cudaLaunchKernelExC", source_location::current(), text);
}

void detail::require_sizes(char const* call, kernel const& launched,
                           std::span<std::size_t const> given) {
  if (&escrow_simulated_parameters == nullptr) return;
  char const* name = nullptr;
  std::size_t const* sizes = nullptr;
  std::size_t count = 0;
  if (!escrow_simulated_parameters(launched.get(), &name, &sizes, &count)) return;
  std::span<std::size_t const> const known(sizes, count);
  if (std::ranges::equal(known, given)) return;
  auto const text_of_sizes = [](std::span<std::size_t const> all) {
    std::string text = std::to_string(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      text.append(i == 0 ? " (of " : ", ").append(std::to_string(all[i]));
    }
    return text.append(all.empty() ? "" : " bytes)");
  };
  throw usage_error(call,
                    "the kernel \"" + std::string(name) + "\" has other parameters, " +
                        text_of_sizes(known) + ", than the arguments given, " +
                        text_of_sizes(given),
                    "give each in its parameter's type, or pass the __global__ function, which "
                    "converts them");
}

library library::load(void const* image, deleter& its, source_location where) {
  constexpr char const* call = "library::load";
  return detail::called_at(call, where, [&] {
    if (image == nullptr) {
      throw usage_error(call, "`image` is null", "pass a cubin, a fatbin or PTX text");
    }
    relaxed_capture_scope const relaxed;
    // Its place comes first, so that nothing that was loaded can be lost.
    auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
    cudaError_t const status =
        cudaLibraryLoadData(&loaded->handle, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status != cudaSuccess) refuse_code(status, "cudaLibraryLoadData", "`image`");
    return library(loaded);
  });
}

library library::load_file(std::filesystem::path const& file, deleter& its, source_location where) {
  return detail::called_at("library::load_file", where, [&] {
    relaxed_capture_scope const relaxed;
    auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
    cudaError_t const status = cudaLibraryLoadFromFile(&loaded->handle, file.c_str(), nullptr,
                                                       nullptr, 0, nullptr, nullptr, 0);
    if (status != cudaSuccess) refuse_code(status, "cudaLibraryLoadFromFile", file.c_str());
    return library(loaded);
  });
}

kernel library::find(std::string const& name, source_location where) const {
  constexpr char const* call = "library::find";
  return detail::called_at(call, where, [&] {
    if (loaded_ == nullptr) {
      throw usage_error(call, "the library was moved from", "load it again, or copy it");
    }
    cudaKernel_t found = nullptr;
    cudaError_t const status = cudaLibraryGetKernel(&found, loaded_->handle, name.c_str());
    if (status != cudaSuccess) refuse_name(status, name);
    std::shared_ptr<void const> its(loaded_, reinterpret_cast<void const*>(found));
    known_kernels::global().note(found, its, loaded_->found);
    return kernel(std::move(its));
  });
}

std::shared_ptr<void const> detail::known_kernel(cudaKernel_t found) {
  std::shared_ptr<void const> its = known_kernels::global().library_of(found);
  if (its != nullptr) return its;
  throw usage_error("kernel::from",
                    "no library::find() has returned the kernel, or its library ends",
                    "pass what keeps it loaded: kernel(handle, owner)");
}

cudaLibrary_t library::get() const noexcept {
  return loaded_ == nullptr ? nullptr : loaded_->handle;
}

}  // namespace escrow::inline v0_2
