// The calls of the CUDA runtime that the library makes, for a device whose work is done at once, or
// as soon as it was asked about: what is explored is what happens between the library's threads.
#include <cuda_runtime_api.h>

#include <cstdlib>

// Plain: only passes ask, one at a time.
static int questions_before_done = 0;

namespace escrow::model {

// From now on the device answers so many questions about events by "not ready". For a setup.
void have_work_that_outlasts(int questions) {
  questions_before_done = questions;
}

}  // namespace escrow::model

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(&questions_before_done);  // nothing is behind a handle
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  if (questions_before_done == 0) return cudaSuccess;
  --questions_before_done;
  return cudaErrorNotReady;
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** block, size_t size) {
  *block = std::malloc(size);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t /*graph*/, char const* /*path*/,
                                   unsigned int /*flags*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGetDriverEntryPointByVersion(char const* /*symbol*/, void** function,
                                             unsigned int /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* /*result*/) {
  *function = nullptr;
  return cudaErrorSymbolNotFound;
}
char const* cudaGetErrorName(cudaError_t /*error*/) {
  return "no name";
}
char const* cudaGetErrorString(cudaError_t /*error*/) {
  return "no text";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t /*stream*/, int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<unsigned long long>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                     unsigned long long* /*id*/, cudaGraph_t* /*graph*/,
                                     cudaGraphNode_t const** /*nodes*/,
                                     cudaGraphEdgeData const** /*edges*/, size_t* /*count*/) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/, unsigned int) {
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = cudaStreamCaptureModeGlobal;
  return cudaSuccess;
}

// What only captures need: no program here captures.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned int) {
  std::abort();
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  std::abort();
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, cudaGraphNode_t const*,
                                          cudaGraphEdgeData const*, size_t, cudaStreamCaptureMode) {
  std::abort();
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  std::abort();
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*,
                                                cudaGraphEdgeData const*, size_t, unsigned int) {
  std::abort();
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t*) {
  std::abort();
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t*) {
  std::abort();
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType*) {
  std::abort();
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int) {
  std::abort();
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned int,
                                 unsigned int) {
  std::abort();
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned int) {
  std::abort();
}

}  // extern "C"
