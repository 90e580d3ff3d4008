// README's example: a library function that works the same whether its stream is captured or not.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <escrow/version.hpp>

// [example]
escrow::scratch_pool& scratch() {
  static escrow::scratch_pool pool;
  return pool;
}

void library_work(cudaStream_t stream) {          // does not know whether `stream` is captured
  auto block = scratch().claim(stream, 1 << 20);  // blocks neither the host nor the stream
  cudaMemsetAsync(block->data(), 0, 1 << 20, stream);
}  // released here, in stream order

void run(cudaStream_t stream) {
  escrow::graph_exec exec(escrow::capture(stream, [](auto s) { library_work(s.get()); }));
  for (int i = 0; i < 1000; ++i) exec.launch(stream);
}  // the block comes back after the last launch
// [example]

int main() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  run(stream);
  library_work(stream);
  bool const done = cudaStreamSynchronize(stream) == cudaSuccess;
  bool const all_back = scratch().close_for(std::chrono::seconds(10)).empty();
  std::printf("escrow %d.%d: %s; everything came back: %s\n", ESCROW_VERSION_MAJOR,
              ESCROW_VERSION_MINOR, done ? "done" : "failed", all_back ? "yes" : "no");
  return done && all_back ? 0 : 1;
}
