// SPDX-License-Identifier: Apache-2.0
// Scratch memory in a library function that does not know whether its stream is captured. A plain
// stream gets the block back when the work is done, a graph keeps it until its last launch is done.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

// [example]
escrow::scratch_pool& scratch() {
  static escrow::scratch_pool pool;
  return pool;
}

void library_work(cudaStream_t stream) {          // does not know whether `stream` is captured
  auto block = scratch().claim(stream, 1 << 20);  // blocks the host only at a limit
  cudaMemsetAsync(block->data(), 0, 1 << 20, stream);
}  // released here, in stream order

void run(cudaStream_t stream) {
  escrow::graph_exec exec(escrow::capture(stream, [](auto s) { library_work(s.get()); }));
  for (int i = 0; i < 1000; ++i) exec.launch(stream);
}  // the block comes back after the last launch
// [example]

int main() {
  cudaStream_t stream = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  run(stream);
  library_work(stream);
  escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  bool const all_back = scratch().close_for(std::chrono::seconds(10)).empty();
  escrow::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("everything came back: %s\n", all_back ? "yes" : "no");
  return all_back ? 0 : 1;
}
