// SPDX-License-Identifier: Apache-2.0
// The functions of libescrow_torch, which PyTorch and the Python module escrow_torch call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {

// For torch.cuda.memory.CUDAPluggableAllocator. Each device has one escrow::stream_allocator, which
// is made when it is first used, and never destroyed. Any thread.

// Memory for use in `stream`'s order; null for no bytes. Throws, which PyTorch turns into a
// RuntimeError: PyTorch would use null as an address. The text of an error for lack of memory
// contains "out of memory".
void* escrow_torch_allocate(std::size_t bytes, int device, cudaStream_t stream);
// Frees it after the work on `stream`, that of its allocation, and on the recorded ones. Errors go
// to stderr: PyTorch calls this in destructors. Also in CUDA callbacks.
void escrow_torch_free(void* memory, std::size_t bytes, int device, cudaStream_t stream) noexcept;
// The memory is used on `stream` too: its work after this call comes after the memory's earlier
// users, and the free waits for it. If `stream` captures, the graph keeps memory of before. Does
// nothing for memory that is not from here. A default stream is taken for that of the current
// device and for that of the memory's, since PyTorch does not say which it is. Throws for the
// legacy stream while a blocking stream captures, which CUDA lets nobody use, for an invalidated
// capture, for memory of a capture that goes on, if `stream` is not part of it, and where
// `streams_outlive` needs a record on the stream of the allocation, which captures.
void escrow_torch_record_stream(void* memory, cudaStream_t stream);
// torch.cuda.empty_cache(): trims all devices. Throws.
void escrow_torch_empty_cache();

// The same for torch.cuda.MemPool, which caches and splits what it gets.

// Null if there is no memory: PyTorch then frees what it caches, tries again, and throws
// torch.OutOfMemoryError. Other errors are thrown.
void* escrow_torch_allocate_segment(std::size_t bytes, int device, cudaStream_t stream);
// Waits on the host for all work on the device, as cudaFree does. PyTorch relies on that when
// graphs end, which share the pool's segments. The stream may have ended.
void escrow_torch_free_segment(void* memory, std::size_t bytes, int device,
                               cudaStream_t stream) noexcept;

// For the Python module. They throw nothing: null or -1 is a failure, which escrow_torch_error()
// describes until the next one on the same thread. Any thread.
char const* escrow_torch_error() noexcept;

// How the device's allocator will be made. Fails if it is made already. `bytes_max`: see
// scratch_policy. `group`: null, or the label of a sharing_group for all graphs of the device.
// `streams_outlive`: see pool_options::streams_outlive_pool.
int escrow_torch_configure(int device, std::size_t bytes_max, char const* label, char const* group,
                           int streams_outlive) noexcept;
// Whether what escrow_torch_allocate() gives this thread from now on is kept, as by
// scratch_pool::claim_kept(). Returns whether it was.
int escrow_torch_keep(int is_kept) noexcept;
// Statistics as JSON, valid until the thread's next call: "memory" (scratch_stats), "deleter"
// (deleter_stats) and, if the device has a group, "group" (sharing_stats).
char const* escrow_torch_stats(int device) noexcept;
// scratch_pool::trim(). Returns the bytes freed.
long long escrow_torch_trim(int device, std::size_t keep_bytes) noexcept;
// sharing_group::park() and unpark() of the device's group. Return the bytes. Fail without a group.
long long escrow_torch_park(int device, int keep_contents, double wait_max_s) noexcept;
long long escrow_torch_unpark(int device) noexcept;

// escrow::hoist(): takes what the graph of the current device holds off it, before it is
// instantiated.
void* escrow_torch_hoist(cudaGraph_t graph) noexcept;
// The two halves of hoisted::launch(), around each launch on `stream`. If the launch or leave
// fails, the graph may be entered again, or released.
int escrow_torch_enter(void* held, cudaStream_t stream) noexcept;
int escrow_torch_leave(void* held) noexcept;
// Releases it after its launches. If the end of one is not known, waits on the host for all work on
// the device. On failure it is still held: try again.
int escrow_torch_release(void* held) noexcept;
}
#pragma GCC visibility pop
