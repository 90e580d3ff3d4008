// SPDX-License-Identifier: Apache-2.0
// An allocator that frees by address, as C and many frameworks want it, behind Escrow's rules:
// memory that a graph uses is not given to anybody else while the graph lives.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

// [example]
escrow::stream_allocator memory;

extern "C" void* framework_allocate(std::size_t bytes, cudaStream_t stream) {
  return memory.allocate(stream, bytes);
}
extern "C" void framework_free(void* address, cudaStream_t stream) {
  memory.deallocate(stream, address);
}

void library_work(cudaStream_t stream) {  // does not know whether `stream` is captured
  void* const scratch = framework_allocate(1 << 20, stream);
  cudaMemsetAsync(scratch, 0, 1 << 20, stream);
  framework_free(scratch, stream);
}
// [example]

int main() {
  cudaStream_t stream = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  {
    escrow::graph_exec exec(escrow::capture(stream, [](auto s) { library_work(s.get()); }));
    for (int i = 0; i < 1000; ++i) exec.launch(stream);
    library_work(stream);  // gets other memory
  }
  escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  bool const all_back = memory.pool().close_for(std::chrono::seconds(10)).empty();
  escrow::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("everything came back: %s\n", all_back ? "yes" : "no");
  return all_back ? 0 : 1;
}
