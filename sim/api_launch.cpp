// SPDX-License-Identifier: Apache-2.0
// Launching kernels and host functions on streams.
#include "api.hpp"
#include "captures.hpp"
#include "ends.hpp"
#include "kernels.hpp"
#include "nodes.hpp"
#include "streams.hpp"

#include <map>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

using attribute_values = std::map<int, cudaLaunchAttributeValue>;

cudaError_t launch_kernel(char const* name, cudaKernelNodeParams const& params, cudaStream_t stream,
                          bool is_programmatic = false, attribute_values attributes = {}) {
  return call(name, ordinary, [&](api_call& c) {
    auto const on = find_stream(c, stream);
    bool const is_captured = on != nullptr && on->capturing != nullptr;
    kernel_work made;
    made.attributes = std::move(attributes);
    auto error = make_kernel_work(params, made);
    work what = std::move(made);
    if (error == cudaSuccess && !has_whole_clusters(what)) error = cudaErrorInvalidClusterSize;
    if (error != cudaSuccess) {
      if (is_captured) invalidate(c, *on->capturing);  // measured; a copy that is refused does not
      return error;
    }
    wait_for_frees(c, stream);
    if (is_programmatic && is_captured) expect_triggers(*on);
    return enqueue(c, stream, cudaGraphNodeTypeKernel, std::move(what));
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaLaunchKernel(void const* func, dim3 grid, dim3 block, void** args,
                                       std::size_t shared, cudaStream_t stream) {
  cudaKernelNodeParams const params{const_cast<void*>(func),           grid, block,
                                    static_cast<unsigned int>(shared), args, nullptr};
  return launch_kernel(__func__, params, stream);
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* func,
                                          void** args) {
  if (config == nullptr) return launch_kernel(__func__, {}, nullptr);
  bool is_programmatic = false;  // outside of captures it need not begin early
  attribute_values attributes;
  for (unsigned int i = 0; i < config->numAttrs; ++i) {
    cudaLaunchAttribute const& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      is_programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
    else
      attributes[attribute.id] = attribute.val;
    // A kernel's own events are not simulated. Of the others only clusters do something.
    if (attribute.id == cudaLaunchAttributeProgrammaticEvent ||
        attribute.id == cudaLaunchAttributeLaunchCompletionEvent)
      return call(__func__, ordinary, [](api_call&) { return cudaErrorNotSupported; });
  }
  cudaKernelNodeParams const params{const_cast<void*>(func),
                                    config->gridDim,
                                    config->blockDim,
                                    static_cast<unsigned int>(config->dynamicSmemBytes),
                                    args,
                                    nullptr};
  return launch_kernel(__func__, params, config->stream, is_programmatic, std::move(attributes));
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* argument) {
  return call(__func__, ordinary, [&](api_call& c) {
    if (fn == nullptr) return cudaErrorInvalidValue;
    return enqueue(c, stream, cudaGraphNodeTypeHost, host_work{fn, argument});
  });
}
}
