// Loading and unloading code.
#include "escrow/nodes/launch.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/shared_object.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

// Shared by a `library`, its kernels, and the launches and graphs of those. It ends on the
// deleter's worker, whichever thread drops the last share; an error of cudaLibraryUnload goes to
// the deleter's on_error.
class ESCROW_LOCAL library::loaded_code {
 public:
  explicit loaded_code(deleter_core& core) noexcept : core_(core) {}
  loaded_code(loaded_code&&) = delete;
  ~loaded_code();

  [[nodiscard]] cudaLibrary_t get() const noexcept { return handle_; }

 private:
  friend class library;

  deleter_core& core_;  // alive as long as what it is to destroy
  cudaLibrary_t handle_ = nullptr;
};

library::loaded_code::~loaded_code() {
  if (handle_ == nullptr) return;
  cudaError_t const status = retry_cleanup([this] { return cudaLibraryUnload(handle_); });
  if (status != cudaSuccess) core_.report(status, "cudaLibraryUnload");
}

namespace {

std::string text_of(dim3 const& size) {
  return "{" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " +
         std::to_string(size.z) + "}";
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

}  // namespace

void detail::refuse_launch(cudaError_t status, kernel const& launched,
                           launch_config const& config) {
  std::string text;
  if (status == cudaErrorInvalidConfiguration || status == cudaErrorInvalidValue ||
      status == cudaErrorLaunchOutOfResources || status == cudaErrorCooperativeLaunchTooLarge) {
    text = misfit_of(launched, config);
    if (!text.empty()) text += "; ";
    text += "launched with grid " + text_of(config.grid) + ", block " + text_of(config.block) +
            ", shared_bytes " + std::to_string(config.shared_bytes) + ", " +
            std::to_string(config.attributes.size()) + " attributes";
  }
  throw_cuda_error(status, "cudaLaunchKernelExC", source_location::current(), text);
}

library library::load(void const* image, deleter& its, source_location where) {
  relaxed_capture_scope const relaxed(where);
  // Its place comes first, so that nothing that was loaded can be lost.
  auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
  check(cudaLibraryLoadData(&loaded->handle_, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData", where);
  return library(loaded);
}

library library::load_file(std::filesystem::path const& file, deleter& its, source_location where) {
  relaxed_capture_scope const relaxed(where);
  auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
  check(cudaLibraryLoadFromFile(&loaded->handle_, file.c_str(), nullptr, nullptr, 0, nullptr,
                                nullptr, 0),
        "cudaLibraryLoadFromFile", where);
  return library(loaded);
}

kernel library::find(std::string const& name, source_location where) const {
  if (loaded_ == nullptr) {
    throw usage_error(
        usage_error("library::find", "the library was moved from", "load it again, or copy it"),
        where);
  }
  cudaKernel_t found = nullptr;
  check(cudaLibraryGetKernel(&found, loaded_->get(), name.c_str()), "cudaLibraryGetKernel", where);
  return kernel(std::shared_ptr<void const>(loaded_, reinterpret_cast<void const*>(found)));
}

cudaLibrary_t library::get() const noexcept {
  return loaded_ == nullptr ? nullptr : loaded_->get();
}

}  // namespace escrow::inline v0_1
