// SPDX-License-Identifier: Apache-2.0
// A worker thread with a stream of its own: claims through a claimer record no event, until another
// stream needs what was released.
#include <cstdio>
#include <escrow/core.hpp>
#include <escrow/pool.hpp>

// [example]
void serve(escrow::scratch_pool& scratch, cudaStream_t stream, int requests) {
  escrow::scratch_claimer local = scratch.on(stream);  // ends before the stream is destroyed
  for (int i = 0; i < requests; ++i) {
    auto block =
        local.claim<float>(1024);  // the block of the request before: the stream orders both
    cudaMemsetAsync(block.data(), 0, 1024 * sizeof(float), stream);
  }
  local.flush();  // before a pause: one event, and other streams may use the block
}
// [example]

int main() {
  cudaStream_t stream = nullptr, other = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::scratch_pool scratch;
  serve(scratch, stream, 1000);
  escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  static_cast<void>(scratch.claim<float>(other, 1024));
  bool const is_one_block = scratch.stats().grown == 1;
  escrow::check(cudaStreamSynchronize(other), "cudaStreamSynchronize");
  escrow::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  escrow::check(cudaStreamDestroy(other), "cudaStreamDestroy");
  std::printf("one block served all requests: %s\n", is_one_block ? "yes" : "no");
  return is_one_block ? 0 : 1;
}
