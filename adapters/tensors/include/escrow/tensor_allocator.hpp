// SPDX-License-Identifier: Apache-2.0
// Tensors of DLPack whose memory graphs keep, also for libraries that allocate through TVM-FFI.
#pragma once

#include <dlpack/dlpack.h>

#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/stream_allocator.hpp"

namespace escrow::inline v0_2 {

// A contiguous tensor of the prototype's `shape` and `dtype` in memory of `memory`, not
// initialized, for use in `stream`'s order. If the prototype's device is {kDLCUDAHost, 0}, pinned
// memory, no GPU work uses it any more: the host writes it, as in allocate_for_host(). The
// prototype's other members are ignored.
//   Thread safety: any thread. While a tensor is deleted, no other thread may begin or end a
//     capture of `stream`, unless the worker or a CUDA callback deletes it.
//   Lifetime: the tensor's deleter, on any thread, frees the memory after the work on `stream` so
//     far: `stream` must be alive then, and other streams' work on the tensor ordered before. In a
//     capture of `stream` that the tensor is not of, on the worker, or in a CUDA callback, the
//     record is deferred (see lease). The memory is then free once `memory` is next given `stream`
//     outside of captures, and once that graph is gone. Keep both until then. The tensor keeps a
//     copy of `memory`.
//   Capture: as stream_allocator. In a capture, the graph keeps the memory of the tensor until it,
//     its clones and execs are destroyed and their launches done, also if the tensor was deleted
//     before. Each later capture that uses the same tensor holds it by
//     memory.record_stream(stream, data), or by a copy of a reference in deleter::retire(stream,
//     reference).
//   Errors: usage_error for a negative or too large shape, for a prototype of another device or of
//     pinned memory that `memory` does not have, and
//     for cudaStreamPerThread, which the deleter's thread may not have; as stream_allocator. The
//     deleter reports to on_error.
[[nodiscard]] DLManagedTensorVersioned* make_dlpack_tensor(
    stream_allocator memory, stream_ref stream, DLTensor const& prototype,
    source_location where = source_location::current());

struct tvm_ffi_memory;

// What: while it exists, TVM-FFI's environment allocates tensors of CUDA devices
//   (TVMFFIEnvTensorAlloc, ffi::Tensor::FromEnvAlloc) by make_dlpack_tensor(), on the stream that
//   TVMFFIEnvGetStream() has for the device. Tensors of other devices come from the allocator that
//   was set before, if any.
//     It is set for all threads and for this one. A thread that set one of its own keeps that; so
//   does TVM-FFI's Python binding during a call with tensors of a framework that has an allocator,
//   as PyTorch: memory is PyTorch's then.
// Thread safety: tensors may be allocated and deleted on any thread. Create and destroy it on one
//   thread, while no other allocates or sets an allocator, since TVM-FFI does not lock.
// Lifetime: one at a time. Tensors may outlive it; each has a share of its memory.
// Capture: see make_dlpack_tensor().
// Errors: usage_error if there is another one; std::runtime_error if TVM-FFI refuses. What an
//   allocation throws goes to its caller as TVM-FFI's error: kind MemoryError if memory lacks,
//   RuntimeError otherwise.
class use_for_tvm_ffi {
 public:
  // For each device an allocator with these options; the options' device is ignored.
  explicit use_for_tvm_ffi(pool_options const& options = {}, scratch_policy const& policy = {});
  use_for_tvm_ffi(use_for_tvm_ffi&&) = delete;
  ~use_for_tvm_ffi();

  // The device's memory, for its statistics, for trim() or close_for(). Throws cuda_error.
  [[nodiscard]] stream_allocator memory(int device) const;

 private:
  std::shared_ptr<tvm_ffi_memory> memory_;
  DLPackManagedTensorAllocator previous_of_all_ = nullptr;
  DLPackManagedTensorAllocator previous_here_ = nullptr;
};

}  // namespace escrow::inline v0_2
