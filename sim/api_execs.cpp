// SPDX-License-Identifier: Apache-2.0
// Execs: instantiate, launch, update, destroy.
#include "api.hpp"
#include "captures.hpp"
#include "execs.hpp"
#include "families.hpp"
#include "graphs.hpp"
#include "launch.hpp"
#include "streams.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

constexpr unsigned long long known_flags =
    cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority;

cudaError_t instantiate_call(char const* name, cudaGraphExec_t* out, cudaGraph_t handle,
                             unsigned long long flags) {
  return call(name, ordinary, [&](api_call& c) {
    auto const graph = find_graph(handle);
    if (out == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    if ((flags & ~known_flags) != 0) return cudaErrorInvalidValue;
    if (graph->body || graph->moved) return cudaErrorNotSupported;
    auto const error = instantiate(*graph, c.me.device, flags, c.reclaimed, out);
    if (error == cudaSuccess) enter_links(c, *find_exec(*out)->graph);
    return error;
  });
}

// What launching and uploading check alike; a graph cannot be launched into a capture.
cudaError_t get_launch(api_call& c, cudaGraphExec_t handle, cudaStream_t on,
                       std::shared_ptr<exec_state>& exec, std::shared_ptr<stream_state>& stream) {
  exec = find_exec(handle);
  if (exec == nullptr) return cudaErrorInvalidValue;
  if (auto const error = get_stream(c, on, stream); error != cudaSuccess) return error;
  if (stream->capturing != nullptr) {
    invalidate(c, *stream->capturing);
    return cudaErrorStreamCaptureUnsupported;
  }
  return forbid_legacy(c, *stream);
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph,
                                           unsigned long long flags) {
  return instantiate_call(__func__, out, graph, flags);
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                                    unsigned long long flags) {
  return instantiate_call(__func__, out, graph, flags);
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<exec_state> exec;
    std::shared_ptr<stream_state> stream;
    wait_for_frees(c, on);
    if (auto const error = get_launch(c, handle, on, exec, stream); error != cudaSuccess)
      return error;
    return launch(c, exec, stream);
  });
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t on) {
  return call(__func__, ordinary, [&](api_call& c) {
    std::shared_ptr<exec_state> exec;
    std::shared_ptr<stream_state> stream;
    auto const error = get_launch(c, handle, on, exec, stream);
    if (error == cudaSuccess) upload(*exec, stream);
    return error;
  });
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const exec = find_exec(handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    destroy_exec(c, exec);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t source,
                                          cudaGraphExecUpdateResultInfo* result) {
  return call(__func__, ordinary, [&](api_call& c) {
    auto const exec = find_exec(handle);
    auto const graph = find_graph(source);
    if (exec == nullptr || graph == nullptr || graph->moved) return cudaErrorInvalidValue;
    cudaGraphExecUpdateResultInfo unused{};
    auto& info = result != nullptr ? *result : unused;
    info = {};
    enter_own(c, *graph);
    enter_links(c, *exec->graph);
    return update(*exec, *graph, info, c.reclaimed);
  });
}
}
