// SPDX-License-Identifier: Apache-2.0
// What is known of a kernel: its name and its limits.
#include "api.hpp"
#include "kernels.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

// `use` gets the code of a kernel, or of a library's that is loaded.
template <class Use>
cudaError_t with_code(char const* name, void const* func, bool has_out, Use use) {
  return call(name, ordinary, [&](api_call&) {
    if (!has_out) return cudaErrorInvalidValue;
    auto const* const code = find_code(func);
    if (code == nullptr) return cudaErrorInvalidResourceHandle;
    if (code->unloaded) return cudaErrorInvalidDeviceFunction;
    use(*code);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaFuncGetName(char const** out, void const* func) {
  return with_code(__func__, func, out != nullptr,
                   [&](kernel_code const& code) { *out = code.name.c_str(); });
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* out, void const* func) {
  return with_code(__func__, func, out != nullptr, [&](kernel_code const&) {
    *out = {};
    // As a small kernel has them on an H200.
    out->maxThreadsPerBlock = max_threads_per_block;
    out->numRegs = 16;
    out->ptxVersion = 90;
    out->binaryVersion = 90;
    out->maxDynamicSharedSizeBytes = max_shared_bytes;
  });
}
}
