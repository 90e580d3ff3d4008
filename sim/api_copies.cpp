// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include "api.hpp"
#include "captures.hpp"
#include "nodes.hpp"
#include "operands.hpp"
#include "runner.hpp"
#include "streams.hpp"

#include <concepts>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

cudaError_t make_for(api_call&, cudaStream_t, cudaMemcpy3DParms const& params, work& what) {
  return make_work(params, what);
}

cudaError_t make_for(api_call& c, cudaStream_t stream, cudaMemsetParams const& params, work& what) {
  auto const found = find_stream(c, stream);
  bool const is_captured = found != nullptr && found->capturing != nullptr;
  return is_captured ? make_fill(params, what) : make_work(params, what);
}

template <class Params>
cudaError_t enqueue_with(api_call& c, cudaStream_t stream, cudaGraphNodeType type,
                         Params const& params) {
  work what;
  if (auto const error = make_for(c, stream, params, what); error != cudaSuccess) {
    // What has no memory now, as where a group is parked, is no place to copy from or to.
    if constexpr (std::same_as<Params, cudaMemcpy3DParms>)
      static_cast<void>(refuse_operands(c.name, copy_work{params, {}, {}}));
    return error;
  }
  return enqueue(c, stream, type, std::move(what));
}

// Returns when the work is done.
template <class Params>
cudaError_t run_and_wait(char const* name, cudaGraphNodeType type, Params const& params) {
  return call(name, ordinary, [&](api_call& c) {
    if (auto const error = enqueue_with(c, cudaStreamLegacy, type, params); error != cudaSuccess)
      return error;
    if (auto const last = find_stream(c, cudaStreamLegacy)->tail) block_on(c.lock, {last}, c.name);
    return fault();
  });
}

template <class Params>
cudaError_t run_on(char const* name, cudaStream_t stream, cudaGraphNodeType type,
                   Params const& params) {
  return call(name, ordinary, [&](api_call& c) { return enqueue_with(c, stream, type, params); });
}

cudaMemsetParams bytes_to_fill(void* to, std::size_t pitch, int value, std::size_t width,
                               std::size_t height) {
  return {to, pitch, static_cast<unsigned int>(value), 1, width, height};
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMemcpy(void* to, void const* from, std::size_t bytes,
                                 cudaMemcpyKind kind) {
  return run_and_wait(__func__, cudaGraphNodeTypeMemcpy, linear(to, from, bytes, kind));
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, void const* from, std::size_t bytes,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return run_on(__func__, stream, cudaGraphNodeTypeMemcpy, linear(to, from, bytes, kind));
}

cudaError_t CUDARTAPI cudaMemcpy2D(void* to, std::size_t to_pitch, void const* from,
                                   std::size_t from_pitch, std::size_t width, std::size_t height,
                                   cudaMemcpyKind kind) {
  return run_and_wait(
      __func__, cudaGraphNodeTypeMemcpy,
      rows({to, to_pitch, width, height}, {const_cast<void*>(from), from_pitch, width, height},
           width, height, kind));
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, std::size_t to_pitch, void const* from,
                                        std::size_t from_pitch, std::size_t width,
                                        std::size_t height, cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  return run_on(__func__, stream, cudaGraphNodeTypeMemcpy,
                rows({to, to_pitch, width, height},
                     {const_cast<void*>(from), from_pitch, width, height}, width, height, kind));
}

cudaError_t CUDARTAPI cudaMemset(void* to, int value, std::size_t bytes) {
  return run_and_wait(__func__, cudaGraphNodeTypeMemset, bytes_to_fill(to, bytes, value, bytes, 1));
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return run_on(__func__, stream, cudaGraphNodeTypeMemset,
                bytes_to_fill(to, bytes, value, bytes, 1));
}

cudaError_t CUDARTAPI cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                                        std::size_t height, cudaStream_t stream) {
  return run_on(__func__, stream, cudaGraphNodeTypeMemset,
                bytes_to_fill(to, pitch, value, width, height));
}
}
