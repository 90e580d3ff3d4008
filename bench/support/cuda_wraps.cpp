// The CUDA calls of Escrow's steady state, and of building a graph, wrapped by the linker (--wrap),
// so that what a CUDA runtime allocates is not taken for Escrow's. bench/CMakeLists.txt has the
// same list.
#include <cuda_runtime_api.h>

#include "heap_count.hpp"

using escrow::bench::inside_cuda;

extern "C" {

cudaError_t __real_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  inside_cuda const inside;
  return __real_cudaEventCreateWithFlags(event, flags);
}

cudaError_t __real_cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  inside_cuda const inside;
  return __real_cudaEventRecord(event, stream);
}

cudaError_t __real_cudaEventQuery(cudaEvent_t event);
cudaError_t __wrap_cudaEventQuery(cudaEvent_t event) {
  inside_cuda const inside;
  return __real_cudaEventQuery(event);
}

cudaError_t __real_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t __wrap_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  inside_cuda const inside;
  return __real_cudaStreamWaitEvent(stream, event, flags);
}

cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  inside_cuda const inside;
  return __real_cudaStreamSynchronize(stream);
}

cudaError_t __real_cudaStreamGetId(cudaStream_t stream, unsigned long long* id);
cudaError_t __wrap_cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  inside_cuda const inside;
  return __real_cudaStreamGetId(stream, id);
}

cudaError_t __real_cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t __wrap_cudaStreamGetDevice(cudaStream_t stream, int* device) {
  inside_cuda const inside;
  return __real_cudaStreamGetDevice(stream, device);
}

cudaError_t __real_cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  inside_cuda const inside;
  return __real_cudaStreamIsCapturing(stream, status);
}

cudaError_t __real_cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            cudaGraphNode_t const** nodes,
                                            cudaGraphEdgeData const** edges, size_t* count);
cudaError_t __wrap_cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            cudaGraphNode_t const** nodes,
                                            cudaGraphEdgeData const** edges, size_t* count) {
  inside_cuda const inside;
  return __real_cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, edges, count);
}

cudaError_t __real_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t __wrap_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  inside_cuda const inside;
  return __real_cudaThreadExchangeStreamCaptureMode(mode);
}

cudaError_t __real_cudaGetDevice(int* device);
cudaError_t __wrap_cudaGetDevice(int* device) {
  inside_cuda const inside;
  return __real_cudaGetDevice(device);
}

cudaError_t __real_cudaSetDevice(int device);
cudaError_t __wrap_cudaSetDevice(int device) {
  inside_cuda const inside;
  return __real_cudaSetDevice(device);
}

cudaError_t __real_cudaGetLastError();
cudaError_t __wrap_cudaGetLastError() {
  inside_cuda const inside;
  return __real_cudaGetLastError();
}

cudaError_t __real_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                 cudaGraphNode_t const* after,
                                                 cudaGraphEdgeData const* edges, size_t count,
                                                 cudaStreamCaptureMode mode);
cudaError_t __wrap_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                 cudaGraphNode_t const* after,
                                                 cudaGraphEdgeData const* edges, size_t count,
                                                 cudaStreamCaptureMode mode) {
  inside_cuda const inside;
  return __real_cudaStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode);
}

cudaError_t __real_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  inside_cuda const inside;
  return __real_cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t __real_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  inside_cuda const inside;
  return __real_cudaStreamEndCapture(stream, graph);
}

cudaError_t __real_cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                    cudaGraphNode_t const* after, cudaGraphEdgeData const* edges,
                                    size_t count, cudaGraphNodeParams* params);
cudaError_t __wrap_cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                    cudaGraphNode_t const* after, cudaGraphEdgeData const* edges,
                                    size_t count, cudaGraphNodeParams* params) {
  inside_cuda const inside;
  return __real_cudaGraphAddNode(node, graph, after, edges, count, params);
}

cudaError_t __real_cudaUserObjectCreate(cudaUserObject_t* object, void* held, cudaHostFn_t destroy,
                                        unsigned count, unsigned flags);
cudaError_t __wrap_cudaUserObjectCreate(cudaUserObject_t* object, void* held, cudaHostFn_t destroy,
                                        unsigned count, unsigned flags) {
  inside_cuda const inside;
  return __real_cudaUserObjectCreate(object, held, destroy, count, flags);
}

cudaError_t __real_cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                             unsigned count, unsigned flags);
cudaError_t __wrap_cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                             unsigned count, unsigned flags) {
  inside_cuda const inside;
  return __real_cudaGraphRetainUserObject(graph, object, count, flags);
}

}  // extern "C"
