// Loading and unloading code.
#include "escrow/graph/library.hpp"

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/insist.hpp"
#include "escrow/core/relaxed_capture_scope.hpp"
#include "escrow/core/usage_error.hpp"
#include "escrow/deleter/stream_shared.hpp"

namespace escrow {

loaded_library::~loaded_library() {
  if (handle_ == nullptr) return;
  cudaError_t status = cudaSuccess;
  bool const is_unloaded = insist([&] { return status = cudaLibraryUnload(handle_); });
  if (!is_unloaded) hub_.report(status, "cudaLibraryUnload");
}

library library::load(void const* image, deleter& its) {
  relaxed_capture_scope const relaxed;
  // Its place comes first, so that nothing that was loaded can be lost.
  auto const loaded = make_stream_shared_by<loaded_library>(its, its.hub());
  check(cudaLibraryLoadData(&loaded->handle_, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData");
  return library(loaded);
}

library library::load_file(std::filesystem::path const& file, deleter& its) {
  relaxed_capture_scope const relaxed;
  auto const loaded = make_stream_shared_by<loaded_library>(its, its.hub());
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
  return kernel(reinterpret_cast<void const*>(found), loaded_);
}

}  // namespace escrow
