// SPDX-License-Identifier: Apache-2.0
// Libraries: code loaded while the program runs.
#include "api.hpp"
#include "captures.hpp"
#include "libraries.hpp"

#include <algorithm>
#include <span>
#include <string_view>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

// Loading may take memory on the device and unloading give it back: neither is safe in a capture.
cudaError_t load(api_call& c, cudaLibrary_t* out, void const* code) {
  if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
  *out = load_library(code).get();
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaLibraryLoadData(cudaLibrary_t* out, void const* code, cudaJitOption*,
                                          void**, unsigned int, cudaLibraryOption*, void**,
                                          unsigned int) {
  return call(__func__, ordinary, [&](api_call& c) {
    return out == nullptr || code == nullptr ? cudaErrorInvalidValue : load(c, out, code);
  });
}

cudaError_t CUDARTAPI cudaLibraryLoadFromFile(cudaLibrary_t* out, char const* name, cudaJitOption*,
                                              void**, unsigned int, cudaLibraryOption* options,
                                              void**, unsigned int option_count) {
  return call(__func__, ordinary, [&](api_call& c) {
    if (out == nullptr || name == nullptr) return cudaErrorInvalidValue;
    std::span const all(options, options == nullptr ? 0 : option_count);
    if (std::ranges::find(all, cudaLibraryBinaryIsPreserved) != all.end())
      return cudaErrorInvalidValue;
    auto const found = c.s.image_files.find(std::string_view(name));
    return found == c.s.image_files.end() ? cudaErrorFileNotFound : load(c, out, found->second);
  });
}

cudaError_t CUDARTAPI cudaLibraryUnload(cudaLibrary_t handle) {
  return call(__func__, frees, [&](api_call& c) {
    auto const library = find_library(handle);
    if (library == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    unload_library(*library);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaLibraryGetKernel(cudaKernel_t* out, cudaLibrary_t handle,
                                           char const* name) {
  return call(__func__, ordinary, [&](api_call&) {
    if (out == nullptr || name == nullptr) return cudaErrorInvalidValue;
    auto const library = find_library(handle);
    if (library == nullptr) return cudaErrorInvalidResourceHandle;
    if (!library->is_code) return cudaErrorInvalidKernelImage;
    auto const found = std::ranges::find(library->kernels, std::string_view(name),
                                         [](auto const& each) { return each->code.name; });
    if (found == library->kernels.end()) return cudaErrorSymbolNotFound;
    *out = found->get();
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaLibraryGetKernelCount(unsigned int* out, cudaLibrary_t handle) {
  return call(__func__, ordinary, [&](api_call&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    auto const library = find_library(handle);
    if (library == nullptr) return cudaErrorInvalidResourceHandle;
    *out = static_cast<unsigned int>(library->kernels.size());
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaLibraryEnumerateKernels(cudaKernel_t* out, unsigned int count,
                                                  cudaLibrary_t handle) {
  return call(__func__, ordinary, [&](api_call&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    auto const library = find_library(handle);
    if (library == nullptr) return cudaErrorInvalidResourceHandle;
    auto const fitting = std::min<std::size_t>(count, library->kernels.size());
    for (std::size_t i = 0; i < fitting; ++i) out[i] = library->kernels[i].get();
    return cudaSuccess;
  });
}
}
