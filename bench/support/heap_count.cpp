// malloc and its like in the C library's place: each counts and forwards, so that all memory is the
// C library's own. And the CUDA calls of Escrow's steady state, and of building a graph, wrapped by
// the linker (--wrap), so that what a CUDA runtime allocates is not taken for Escrow's.
#include "heap_count.hpp"

#include <cuda_runtime_api.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

// The C library's own names for its functions.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* memory, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);
extern "C" void __libc_free(void* memory);

namespace escrow::bench {
namespace {

// Plain integers: a thread-local object with a constructor could itself allocate.
thread_local bool is_counting = false;
thread_local int cuda_depth = 0;
// Relaxed, both: read after the threads have been waited for.
std::atomic<std::uint64_t> total{0};
std::atomic<std::int64_t> bytes_taken{0};

bool counts_now() noexcept {
  return is_counting && cuda_depth == 0;
}

void* counted(void* memory) noexcept {
  if (counts_now()) {
    total.fetch_add(1, std::memory_order_relaxed);
    bytes_taken.fetch_add(static_cast<std::int64_t>(malloc_usable_size(memory)),
                          std::memory_order_relaxed);
  }
  return memory;
}

void count_given_back(void* memory) noexcept {
  if (!counts_now()) return;
  bytes_taken.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)),
                        std::memory_order_relaxed);
}

}  // namespace

void count_on_this_thread(bool counts) noexcept {
  is_counting = counts;
}

std::uint64_t allocations_counted() noexcept {
  return total.load(std::memory_order_relaxed);
}

std::int64_t bytes_counted() noexcept {
  return bytes_taken.load(std::memory_order_relaxed);
}

inside_cuda::inside_cuda() noexcept {
  ++cuda_depth;
}

inside_cuda::~inside_cuda() {
  --cuda_depth;
}

namespace {

template <class Call, class... Arguments>
auto inside(Call* call, Arguments... arguments) {
  inside_cuda const scope;
  return call(arguments...);
}

}  // namespace
}  // namespace escrow::bench

using escrow::bench::count_given_back;
using escrow::bench::counted;
using escrow::bench::inside;

extern "C" void* malloc(std::size_t bytes) noexcept {
  return counted(__libc_malloc(bytes));
}

extern "C" void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return counted(__libc_calloc(count, bytes));
}

extern "C" void* realloc(void* memory, std::size_t bytes) noexcept {
  count_given_back(memory);
  return counted(__libc_realloc(memory, bytes));
}

extern "C" void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return counted(__libc_memalign(alignment, bytes));
}

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return counted(__libc_memalign(alignment, bytes));
}

extern "C" int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  *memory = counted(__libc_memalign(alignment, bytes));
  return *memory != nullptr ? 0 : ENOMEM;
}

extern "C" void free(void* memory) noexcept {
  count_given_back(memory);
  __libc_free(memory);
}

// What is wrapped: bench/CMakeLists.txt reads this list.
extern "C" {

decltype(cudaEventCreateWithFlags) __real_cudaEventCreateWithFlags;
decltype(cudaEventRecord) __real_cudaEventRecord;
decltype(cudaEventQuery) __real_cudaEventQuery;
decltype(cudaStreamWaitEvent) __real_cudaStreamWaitEvent;
decltype(cudaStreamSynchronize) __real_cudaStreamSynchronize;
decltype(cudaStreamGetId) __real_cudaStreamGetId;
decltype(cudaStreamGetDevice) __real_cudaStreamGetDevice;
decltype(cudaStreamIsCapturing) __real_cudaStreamIsCapturing;
decltype(cudaStreamGetCaptureInfo) __real_cudaStreamGetCaptureInfo;
decltype(cudaThreadExchangeStreamCaptureMode) __real_cudaThreadExchangeStreamCaptureMode;
decltype(cudaGetDevice) __real_cudaGetDevice;
decltype(cudaSetDevice) __real_cudaSetDevice;
decltype(cudaGetLastError) __real_cudaGetLastError;
decltype(cudaStreamBeginCaptureToGraph) __real_cudaStreamBeginCaptureToGraph;
decltype(cudaStreamCreateWithFlags) __real_cudaStreamCreateWithFlags;
decltype(cudaStreamEndCapture) __real_cudaStreamEndCapture;
decltype(cudaGraphAddNode) __real_cudaGraphAddNode;
decltype(cudaUserObjectCreate) __real_cudaUserObjectCreate;
decltype(cudaGraphRetainUserObject) __real_cudaGraphRetainUserObject;

cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return inside(&__real_cudaEventCreateWithFlags, event, flags);
}
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return inside(&__real_cudaEventRecord, event, stream);
}
cudaError_t __wrap_cudaEventQuery(cudaEvent_t event) {
  return inside(&__real_cudaEventQuery, event);
}
cudaError_t __wrap_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return inside(&__real_cudaStreamWaitEvent, stream, event, flags);
}
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  return inside(&__real_cudaStreamSynchronize, stream);
}
cudaError_t __wrap_cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return inside(&__real_cudaStreamGetId, stream, id);
}
cudaError_t __wrap_cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return inside(&__real_cudaStreamGetDevice, stream, device);
}
cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return inside(&__real_cudaStreamIsCapturing, stream, status);
}
cudaError_t __wrap_cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            cudaGraphNode_t const** nodes,
                                            cudaGraphEdgeData const** edges, size_t* count) {
  return inside(&__real_cudaStreamGetCaptureInfo, stream, status, id, graph, nodes, edges, count);
}
cudaError_t __wrap_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return inside(&__real_cudaThreadExchangeStreamCaptureMode, mode);
}
cudaError_t __wrap_cudaGetDevice(int* device) {
  return inside(&__real_cudaGetDevice, device);
}
cudaError_t __wrap_cudaSetDevice(int device) {
  return inside(&__real_cudaSetDevice, device);
}
cudaError_t __wrap_cudaGetLastError() {
  return inside(&__real_cudaGetLastError);
}
cudaError_t __wrap_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                 cudaGraphNode_t const* after,
                                                 cudaGraphEdgeData const* edges, size_t count,
                                                 cudaStreamCaptureMode mode) {
  return inside(&__real_cudaStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode);
}
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return inside(&__real_cudaStreamCreateWithFlags, stream, flags);
}
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return inside(&__real_cudaStreamEndCapture, stream, graph);
}
cudaError_t __wrap_cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                    cudaGraphNode_t const* after, cudaGraphEdgeData const* edges,
                                    size_t count, cudaGraphNodeParams* params) {
  return inside(&__real_cudaGraphAddNode, node, graph, after, edges, count, params);
}
cudaError_t __wrap_cudaUserObjectCreate(cudaUserObject_t* object, void* held, cudaHostFn_t destroy,
                                        unsigned count, unsigned flags) {
  return inside(&__real_cudaUserObjectCreate, object, held, destroy, count, flags);
}
cudaError_t __wrap_cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                             unsigned count, unsigned flags) {
  return inside(&__real_cudaGraphRetainUserObject, graph, object, count, flags);
}

}  // extern "C"
