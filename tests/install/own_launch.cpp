// The example of docs/lifetimes.md: a framework that captures, instantiates and launches with plain
// CUDA calls, and makes its execs bare in two lines.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

namespace {

constexpr std::size_t bytes = 1 << 20;

void must(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(status));
  std::exit(1);
}

void library_work(escrow::scratch_pool& scratch, cudaStream_t stream) {
  auto block = scratch.claim(stream, bytes);
  must(cudaMemsetAsync(block->data(), 0, bytes, stream));
}

void run(escrow::scratch_pool& scratch, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  library_work(scratch, stream);
  must(cudaStreamEndCapture(stream, &graph));
  escrow::hoisted held = escrow::hoist(graph);  // one: the graph is bare, `held` keeps the block
  held.release_at_end(stream);  // two: the block comes back after the work that is enqueued then
  must(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 1000; ++i) must(cudaGraphLaunch(exec, stream));
  must(cudaGraphExecDestroy(exec));
  must(cudaGraphDestroy(graph));
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  escrow::scratch_pool scratch;
  run(scratch, stream);
  must(cudaStreamSynchronize(stream));
  bool const all_back = scratch.close_for(std::chrono::seconds(10)).empty();
  must(cudaStreamDestroy(stream));
  std::printf("everything came back: %s\n", all_back ? "yes" : "no");
  return all_back ? 0 : 1;
}
