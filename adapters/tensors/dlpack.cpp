// SPDX-License-Identifier: Apache-2.0
// Tensors of DLPack.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/tensor_allocator.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* call = "make_dlpack_tensor";

// A tensor, and all that its deleter needs.
struct tensor {
  DLManagedTensorVersioned managed{};
  stream_allocator memory;
  cudaStream_t stream;
  std::uint64_t capture_id;
  std::vector<std::int64_t> shape_and_strides{};

  ~tensor() {
    std::optional<device_scope> current;
    for (int tries = 2; is_ambiguous(stream) && !current && tries != 0; --tries) {
      try {
        current.emplace(memory.device());
      } catch (cuda_error const&) {  // may not repeat; a CUDA callback needs none
      }
    }
    memory.deallocate_or_report(stream, managed.dl_tensor.data);
  }
};

void delete_tensor(DLManagedTensorVersioned* managed) {
  std::unique_ptr<tensor> its(static_cast<tensor*>(managed->manager_ctx));
  if (is_reclaiming()) return;  // what the stream captures now is not asked
  try {
    // Work before this capture may use the tensor, and cannot be recorded now: the free is
    // postponed until the graph, which may use it, too, is gone.
    capture_info const capture = capture_of(its->stream);
    if (capture.is_active() && capture.id != its->capture_id) {
      deleter::global().retire(its->stream, std::move(its));
    }
  } catch (std::exception const&) {  // freed now, with a deferred record, unless it was taken
  }
}

[[noreturn]] void refuse_shape() {
  throw usage_error(call, "`prototype.shape` is negative or too large",
                    "allocate at most scratch_pool::bytes_max");
}

// The size in bytes; DLPack packs elements that are smaller than a byte. A shape with a 0 has none,
// whatever else is in it.
std::size_t bytes_of(DLTensor const& shaped) {
  std::span const shape(shaped.shape, static_cast<std::size_t>(shaped.ndim));
  if (std::ranges::any_of(shape, [](std::int64_t each) { return each < 0; })) refuse_shape();
  if (std::ranges::count(shape, 0) != 0) return 0;
  std::uint64_t bits = std::uint64_t{shaped.dtype.bits} * shaped.dtype.lanes;
  for (std::int64_t const each : shape) {
    bool const fits = !__builtin_mul_overflow(bits, static_cast<std::uint64_t>(each), &bits) &&
                      bits <= 8 * std::uint64_t{scratch_pool::bytes_max};
    if (!fits) refuse_shape();
  }
  return static_cast<std::size_t>((bits + 7) / 8);
}

void require_pinned(void const* memory) {
  relaxed_capture_scope const relaxed;
  cudaPointerAttributes its{};
  check(cudaPointerGetAttributes(&its, memory), "cudaPointerGetAttributes");
  if (its.type == cudaMemoryTypeHost) return;
  throw usage_error(call, "`prototype.device` is pinned memory, and `memory` has none",
                    "pass a stream_allocator with memory_source::pinned_host()");
}

DLManagedTensorVersioned* make_tensor(stream_allocator memory, stream_ref stream,
                                      DLTensor const& prototype, source_location where) {
  if (prototype.ndim < 0 || (prototype.ndim > 0 && prototype.shape == nullptr)) {
    throw usage_error(call, "`prototype.ndim` is not that of its shape", "pass a shape");
  }
  int const device = memory.device();
  bool const is_pinned = prototype.device.device_type == kDLCUDAHost;
  if (is_pinned ? prototype.device.device_id != 0
                : prototype.device.device_type != kDLCUDA || prototype.device.device_id != device) {
    throw usage_error(call, "`prototype.device` is not CUDA device " + std::to_string(device),
                      "pass the allocator's device, or {kDLCUDAHost, 0} for pinned memory");
  }
  if (stream.get() == cudaStreamPerThread) {
    throw usage_error(call,
                      "`stream` is cudaStreamPerThread, which is another stream on the thread "
                      "that deletes the tensor",
                      "pass a stream that is the same on all threads");
  }
  std::size_t const bytes = bytes_of(prototype);
  std::optional<device_scope> current;
  if (is_ambiguous(stream.get())) current.emplace(device);  // whose stream it is
  auto const dimensions = static_cast<std::size_t>(prototype.ndim);
  std::unique_ptr<tensor> made(new tensor{.memory = std::move(memory),
                                          .stream = stream.get(),
                                          .capture_id = usable_capture_of(call, stream).id});
  made->shape_and_strides.assign(2 * dimensions, 1);
  std::span const shape(made->shape_and_strides.data(), dimensions);
  std::span const strides(made->shape_and_strides.data() + dimensions, dimensions);
  std::copy_n(prototype.shape, dimensions, shape.begin());
  for (std::size_t i = dimensions; i-- > 1;) {
    // Of an empty tensor they mean nothing, and may be too large: as numpy, a 0 counts as 1.
    std::int64_t const extent = std::max<std::int64_t>(shape[i], 1);
    if (__builtin_mul_overflow(strides[i], extent, &strides[i - 1])) strides[i - 1] = 0;
  }

  DLTensor& its = made->managed.dl_tensor;
  its.device = prototype.device;
  its.dtype = prototype.dtype;
  its.ndim = prototype.ndim;
  its.shape = shape.data();
  its.strides = strides.data();
  if (bytes != 0) {  // else DLPack wants null
    constexpr std::size_t alignment = stream_allocator::default_alignment;
    its.data = is_pinned ? made->memory.allocate_for_host(stream, bytes, alignment, where)
                         : made->memory.allocate(stream, bytes, alignment, where);
    if (is_pinned) require_pinned(its.data);
  }
  made->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  made->managed.manager_ctx = made.get();
  made->managed.deleter = &delete_tensor;
  return &made.release()->managed;
}

}  // namespace

DLManagedTensorVersioned* make_dlpack_tensor(stream_allocator memory, stream_ref stream,
                                             DLTensor const& prototype, source_location where) {
  return detail::called_at(
      call, where, [&] { return make_tensor(std::move(memory), stream, prototype, where); });
}

}  // namespace escrow::inline v0_2
