// SPDX-License-Identifier: Apache-2.0
// The calls of the CUDA runtime that the library makes, for a device whose work is done at once, or
// as soon as it was asked about: what is explored is what happens between the library's threads.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "../../sim/cuda12_names.hpp"

namespace {

// Plain: only passes ask, one at a time.
int questions_before_done = 0;

template <class T>
cudaError_t give(T* to, T value) {
  *to = value;
  return cudaSuccess;
}

}  // namespace

// From now on the device answers so many questions about events by "not ready". For a setup.
namespace escrow::model {
void have_work_that_outlasts(int questions) {
  questions_before_done = questions;
}
}  // namespace escrow::model

// A table: one line a call.
// clang-format off
using error = cudaError_t;
using status = cudaStreamCaptureStatus;
using edge = cudaGraphEdgeData;
using node = cudaGraphNode_t;

extern "C" {

// Nothing is behind a handle of an event.
error cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return give(event, reinterpret_cast<cudaEvent_t>(&questions_before_done));
}
error cudaEventQuery(cudaEvent_t) {
  if (questions_before_done == 0) return cudaSuccess;
  --questions_before_done;
  return cudaErrorNotReady;
}
error cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
error cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
error cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
error cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

error cudaMalloc(void** block, size_t size) { return give(block, std::malloc(size)); }
error cudaFree(void* block) { std::free(block); return cudaSuccess; }

error cudaPeekAtLastError() { return cudaSuccess; }
error cudaGetDevice(int* device) { return give(device, 0); }
error cudaGetDeviceCount(int* count) { return give(count, 1); }
error cudaSetDevice(int) { return cudaSuccess; }
error cudaStreamGetDevice(cudaStream_t, int* device) { return give(device, 0); }
error cudaDriverGetVersion(int* version) { return give(version, CUDART_VERSION); }
error cudaGetDriverEntryPointByVersion(char const*, void** function, unsigned, unsigned long long,
                                       cudaDriverEntryPointQueryResult*) {
  give<void*>(function, nullptr);
  return cudaErrorSymbolNotFound;
}

char const* cudaGetErrorName(error) { return "no name"; }
char const* cudaGetErrorString(error) { return "no text"; }
error cudaGetLastError() { return cudaSuccess; }

error cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return give(id, reinterpret_cast<unsigned long long>(stream));
}
error cudaStreamIsCapturing(cudaStream_t, status* is) {
  return give(is, cudaStreamCaptureStatusNone);
}
error cudaStreamGetCaptureInfo(cudaStream_t, status* is, unsigned long long*, cudaGraph_t*,
                               node const**, edge const**, size_t*) {
  return give(is, cudaStreamCaptureStatusNone);
}
error cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return give(mode, cudaStreamCaptureModeGlobal);
}
error cudaGraphDebugDotPrint(cudaGraph_t, char const*, unsigned) { return cudaErrorNotSupported; }

// No program here has memory of another source.
error cudaMallocHost(void**, size_t) { std::abort(); }
error cudaFreeHost(void*) { std::abort(); }
error cudaPointerGetAttributes(cudaPointerAttributes*, void const*) { std::abort(); }
error cudaMallocFromPoolAsync(void**, size_t, cudaMemPool_t, cudaStream_t) { std::abort(); }
error cudaFreeAsync(void*, cudaStream_t) { std::abort(); }
error cudaMemPoolCreate(cudaMemPool_t*, cudaMemPoolProps const*) { std::abort(); }
error cudaMemPoolDestroy(cudaMemPool_t) { std::abort(); }
error cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { std::abort(); }
error cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { std::abort(); }
error cudaMemPoolSetAccess(cudaMemPool_t, cudaMemAccessDesc const*, size_t) { std::abort(); }
error cudaMemPoolTrimTo(cudaMemPool_t, size_t) { std::abort(); }
error cudaDeviceCanAccessPeer(int*, int, int) { std::abort(); }
error cudaMemGetInfo(size_t*, size_t*) { std::abort(); }
error cudaStreamSynchronize(cudaStream_t) { std::abort(); }
error cudaMemcpyAsync(void*, void const*, size_t, cudaMemcpyKind, cudaStream_t) { std::abort(); }

// What only captures need: no program here captures.
error cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { std::abort(); }
error cudaStreamDestroy(cudaStream_t) { std::abort(); }
error cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, node const*, edge const*, size_t,
                                    cudaStreamCaptureMode) { std::abort(); }
error cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { std::abort(); }
error cudaStreamUpdateCaptureDependencies(cudaStream_t, node*, edge const*, size_t,
                                          unsigned) { std::abort(); }
error cudaMemsetAsync(void*, int, size_t, cudaStream_t) { std::abort(); }
error cudaGraphGetNodes(cudaGraph_t, node*, size_t*) { std::abort(); }
error cudaGraphGetEdges(cudaGraph_t, node*, node*, edge*, size_t*) { std::abort(); }
error cudaGraphNodeGetDependencies(node, node*, edge*, size_t*) { std::abort(); }
error cudaGraphNodeGetType(node, cudaGraphNodeType*) { std::abort(); }
error cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { std::abort(); }
error cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned,
                           unsigned) { std::abort(); }
error cudaUserObjectRelease(cudaUserObject_t, unsigned) { std::abort(); }

}  // extern "C"
// clang-format on
