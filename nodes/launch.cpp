// Loading and unloading code.
#include "escrow/nodes/launch.hpp"

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

library library::load(void const* image, deleter& its) {
  relaxed_capture_scope const relaxed;
  // Its place comes first, so that nothing that was loaded can be lost.
  auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
  check(cudaLibraryLoadData(&loaded->handle_, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData");
  return library(loaded);
}

library library::load_file(std::filesystem::path const& file, deleter& its) {
  relaxed_capture_scope const relaxed;
  auto const loaded = make_stream_shared_by<loaded_code>(its, its.core());
  check(cudaLibraryLoadFromFile(&loaded->handle_, file.c_str(), nullptr, nullptr, 0, nullptr,
                                nullptr, 0),
        "cudaLibraryLoadFromFile");
  return library(loaded);
}

kernel library::find(std::string const& name) const {
  if (loaded_ == nullptr) {
    throw usage_error("library::find", "the library was moved from", "load it again, or copy it");
  }
  cudaKernel_t found = nullptr;
  check(cudaLibraryGetKernel(&found, loaded_->get(), name.c_str()), "cudaLibraryGetKernel");
  return kernel(std::shared_ptr<void const>(loaded_, reinterpret_cast<void const*>(found)));
}

cudaLibrary_t library::get() const noexcept {
  return loaded_ == nullptr ? nullptr : loaded_->get();
}

}  // namespace escrow::inline v0_1
