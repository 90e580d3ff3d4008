// SPDX-License-Identifier: Apache-2.0
// A simulation whose step is a small graph with scratch: a thousand steps by one call. The exec's
// copies save the time that a GPU needs between two small graphs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>

#include "kernels.hpp"

namespace {

using escrow::check;

constexpr int cells = 256;
constexpr int steps = 1000;

// One step: it knows nothing of graphs.
void advance(escrow::scratch_pool& scratch, int* state, cudaStream_t stream) {
  auto block = scratch.claim(stream, cells * sizeof(int));
  check(cudaMemsetAsync(block->data(), 0, cells * sizeof(int), stream), "cudaMemsetAsync");
  escrow::launch(stream, add, {.block = 64}, state, 1, cells);
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::scratch_pool scratch;
  void* memory = nullptr;
  check(cudaMallocHost(&memory, cells * sizeof(int)), "cudaMallocHost");  // the GPU reaches it, too
  auto* const state = static_cast<int*>(memory);
  std::fill_n(state, cells, 0);
  {
    escrow::graph_exec step(
        escrow::capture(stream, [&](escrow::stream_ref s) { advance(scratch, state, s.get()); }),
        {.copies = 32});
    for (int i = 0; i < 10; ++i) step.launch_many(stream, steps);  // 31 calls of 32, and 8 of one
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  bool const is_right = state[0] == 10 * steps && state[cells - 1] == 10 * steps;
  bool const all_back = scratch.close_for(std::chrono::seconds(10)).empty();
  check(cudaFreeHost(memory), "cudaFreeHost");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("after %d steps all cells are right: %s; everything came back: %s\n", 10 * steps,
              is_right ? "yes" : "no", all_back ? "yes" : "no");
  return is_right && all_back ? 0 : 1;
}
