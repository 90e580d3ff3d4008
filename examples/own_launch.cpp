// SPDX-License-Identifier: Apache-2.0
// A framework that captures, instantiates and launches with plain CUDA calls. Two lines take what
// the graph holds off it, so that launches do not pay for user objects, and release it after them.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

namespace {

using escrow::check;

constexpr std::size_t bytes = 1 << 16;

void library_work(escrow::scratch_pool& scratch, cudaStream_t stream) {
  auto block = scratch.claim(stream, bytes);
  check(cudaMemsetAsync(block->data(), 0, bytes, stream), "cudaMemsetAsync");
}

// Returns whether the exec was bare, and the block held while it was launched.
bool run(escrow::scratch_pool& scratch, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  library_work(scratch, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  escrow::hoisted held = escrow::hoist(graph);  // one: the graph is bare, `held` keeps the block
  held.release_at_end(stream);  // two: the block comes back after the work that is enqueued then
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 1000; ++i) check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return held.is_bare() && scratch.stats().bytes_in_graphs >= bytes;
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::scratch_pool scratch;
  bool const was_held = run(scratch, stream);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  bool const all_back = scratch.close_for(std::chrono::seconds(10)).empty();
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("the exec was bare, and the block held: %s; everything came back: %s\n",
              was_held ? "yes" : "no", all_back ? "yes" : "no");
  return was_held && all_back ? 0 : 1;
}
