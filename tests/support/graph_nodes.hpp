// SPDX-License-Identifier: Apache-2.0
// What tests of CUDA itself share, which use nothing of the library: nodes of each kind, adding
// them, and running what was built. What is included here is there for the tests, too.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "owners.hpp"
#include "status.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

[[nodiscard]] inline cudaMemsetParams fill_params(void* to, unsigned value, unsigned element_size,
                                                  std::size_t width, std::size_t height = 1,
                                                  std::size_t pitch = 0) {
  cudaMemsetParams result{};
  result.dst = to;
  result.value = value;
  result.elementSize = element_size;
  result.width = width;
  result.height = height;
  result.pitch = pitch;
  return result;
}

/// A copy of `height` rows of `width` bytes.
[[nodiscard]] inline cudaMemcpy3DParms copy_params(void* to, std::size_t to_pitch, void* from,
                                                   std::size_t from_pitch, std::size_t width,
                                                   std::size_t height) {
  cudaMemcpy3DParms result{};
  result.dstPtr = {to, to_pitch, to_pitch, height};
  result.srcPtr = {from, from_pitch, from_pitch, height};
  result.extent = {width, height, 1};
  result.kind = cudaMemcpyDefault;
  return result;
}

[[nodiscard]] inline cudaMemAllocNodeParams alloc_params(std::size_t bytes) {
  cudaMemAllocNodeParams result{};
  result.poolProps.allocType = cudaMemAllocationTypePinned;
  result.poolProps.location.type = cudaMemLocationTypeDevice;
  result.bytesize = bytes;
  return result;
}

/// What the calls for all kinds take.
[[nodiscard]] inline cudaGraphNodeParams params_of(cudaGraphNodeType type) {
  cudaGraphNodeParams result{};
  result.type = type;
  return result;
}

[[nodiscard]] inline cudaGraphNodeParams any_kernel(cudaKernelNodeParams const& kernel) {
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeKernel);
  result.kernel.func = kernel.func;
  result.kernel.gridDim = kernel.gridDim;
  result.kernel.blockDim = kernel.blockDim;
  result.kernel.kernelParams = kernel.kernelParams;
  return result;
}

[[nodiscard]] inline cudaGraphNodeParams any_alloc(std::size_t bytes) {
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeMemAlloc);
  result.alloc.poolProps = alloc_params(bytes).poolProps;
  result.alloc.bytesize = bytes;
  return result;
}

/// Calls `add`, CUDA's function for a kind of node, with what comes behind the number of
/// dependencies; the node is behind `behind`, or a root.
template <class Add, class... Rest>
cudaGraphNode_t add_node(Add add, cudaGraph_t graph, cudaGraphNode_t behind, Rest... rest) {
  cudaGraphNode_t node = nullptr;
  must(
      add(&node, graph, behind == nullptr ? nullptr : &behind, behind == nullptr ? 0 : 1, rest...));
  return node;
}

inline cudaGraphNode_t add_fill(cudaGraph_t graph, cudaMemsetParams const& params,
                                cudaGraphNode_t behind = nullptr) {
  return add_node(cudaGraphAddMemsetNode, graph, behind, &params);
}

inline cudaGraphNode_t add_copy(cudaGraph_t graph, void* to, void const* from, std::size_t bytes,
                                cudaGraphNode_t behind = nullptr,
                                cudaMemcpyKind kind = cudaMemcpyDefault) {
  return add_node(cudaGraphAddMemcpyNode1D, graph, behind, to, from, bytes, kind);
}

inline cudaGraphNode_t add_host(cudaGraph_t graph, cudaHostFn_t function, void* argument,
                                cudaGraphNode_t behind = nullptr) {
  cudaHostNodeParams const params{function, argument};
  return add_node(cudaGraphAddHostNode, graph, behind, &params);
}

inline cudaGraphNode_t add_record(cudaGraph_t graph, cudaEvent_t event,
                                  cudaGraphNode_t behind = nullptr) {
  return add_node(cudaGraphAddEventRecordNode, graph, behind, event);
}

inline cudaGraphNode_t add_wait(cudaGraph_t graph, cudaEvent_t event,
                                cudaGraphNode_t behind = nullptr) {
  return add_node(cudaGraphAddEventWaitNode, graph, behind, event);
}

inline cudaGraphNode_t add_empty(cudaGraph_t graph, cudaGraphNode_t behind = nullptr) {
  return add_node(cudaGraphAddEmptyNode, graph, behind);
}

/// Adds a node by the call that takes all kinds.
inline cudaGraphNode_t add_any(cudaGraph_t graph, cudaGraphNodeParams params,
                               cudaGraphNode_t behind = nullptr) {
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddNode(&node, graph, behind == nullptr ? nullptr : &behind, nullptr,
                        behind == nullptr ? 0 : 1, &params));
  return node;
}

/// A node that allocates, and its memory.
struct allocation {
  cudaGraphNode_t node = nullptr;
  int* data = nullptr;
};

[[nodiscard]] inline allocation add_alloc(cudaGraph_t graph, std::size_t ints = 4) {
  cudaMemAllocNodeParams params = alloc_params(ints * sizeof(int));
  cudaGraphNode_t const node = add_node(cudaGraphAddMemAllocNode, graph, nullptr, &params);
  return {node, static_cast<int*>(params.dptr)};
}

inline cudaGraphNode_t add_free(cudaGraph_t graph, allocation const& memory,
                                cudaGraphNode_t behind) {
  return add_node(cudaGraphAddMemFreeNode, graph, behind, memory.data);
}

[[nodiscard]] inline cudaGraphConditionalHandle make_condition(
    cudaGraph_t graph, unsigned value, unsigned flags = cudaGraphCondAssignDefault) {
  cudaGraphConditionalHandle result{};
  must(cudaGraphConditionalHandleCreate(&result, graph, value, flags));
  return result;
}

[[nodiscard]] inline cudaGraphNodeParams conditional_params(cudaGraphConditionalHandle condition,
                                                            cudaGraphConditionalNodeType type,
                                                            unsigned bodies) {
  cudaGraphNodeParams result = params_of(cudaGraphNodeTypeConditional);
  result.conditional.handle = condition;
  result.conditional.type = type;
  result.conditional.size = bodies;
  return result;
}

struct conditional_node {
  cudaGraphNode_t node = nullptr;
  std::vector<cudaGraph_t> bodies;
};

/// Adds a conditional node behind `behind` (or as a root).
[[nodiscard]] inline conditional_node add_conditional_node(cudaGraph_t graph,
                                                           cudaGraphConditionalHandle condition,
                                                           cudaGraphConditionalNodeType type,
                                                           unsigned bodies = 1,
                                                           cudaGraphNode_t behind = nullptr) {
  cudaGraphNodeParams params = conditional_params(condition, type, bodies);
  conditional_node result;
  must(cudaGraphAddNode(&result.node, graph, behind == nullptr ? nullptr : &behind, nullptr,
                        behind == nullptr ? 0 : 1, &params));
  cudaGraph_t const* const made = params.conditional.phGraph_out;
  result.bodies.assign(made, made + bodies);
  return result;
}

/// Its major number. From 9 on there are clusters, and launches that begin early.
[[nodiscard]] inline int compute_capability() {
  int major = 0;
  must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major;
}

/// Launches once and waits.
inline void run(cudaGraphExec_t exec, cudaStream_t stream) {
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
}

inline void run(cudaGraph_t graph, cudaStream_t stream) {
  owned_exec const exec = instantiate(graph);
  run(exec, stream);
}

[[nodiscard]] inline cudaError_t update(cudaGraphExec_t exec, cudaGraph_t graph) {
  cudaGraphExecUpdateResultInfo info{};
  return cudaGraphExecUpdate(exec, graph, &info);
}

/// The status of a call that may fail, with the thread's last error cleared.
[[nodiscard]] inline cudaError_t tried(cudaError_t status) {
  static_cast<void>(cudaGetLastError());
  return status;
}

[[nodiscard]] inline cudaError_t status_of_instantiation(cudaGraph_t graph) {
  owned_exec exec;
  return tried(cudaGraphInstantiate(exec.out(), graph, 0));
}

#ifdef ESCROW_TEST_RUNTIME_SIM
/// A runtime without a past for each test of the simulator, and none of the test's left behind.
class fresh_runtime : public testing::Test {
 protected:
  fresh_runtime() { sim::reset(); }
  ~fresh_runtime() override { sim::reset(); }
};
#endif

}  // namespace escrow::test
