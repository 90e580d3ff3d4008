// SPDX-License-Identifier: Apache-2.0
// A server with a graph for each batch size, on two streams. The graphs share their scratch: all of
// them need what the largest needs, and their launches run one after another.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <vector>

namespace {

using escrow::check;

constexpr int batch_max = 8;
constexpr std::size_t row = 1 << 20;  // bytes of a request

// Fills scratch with the batch size and copies it to the result, which is not shared.
escrow::graph captured(escrow::scratch_pool& scratch, cudaStream_t stream, int batch,
                       escrow::device_block& result) {
  return escrow::capture(stream, [&](escrow::stream_ref on) {
    auto const block = scratch.claim(on, row * static_cast<std::size_t>(batch));
    check(cudaMemsetAsync(block->data(), batch, row, on.get()), "cudaMemsetAsync");
    check(cudaMemcpyAsync(result.data(), block->data(), 1, cudaMemcpyDefault, on.get()),
          "cudaMemcpyAsync");
  });
}

bool has_result(escrow::device_block& result, int batch) {
  unsigned char value = 0;
  check(cudaMemcpy(&value, result.data(), 1, cudaMemcpyDefault), "cudaMemcpy");
  return value == batch;
}

bool run(escrow::sharing_group const& group, escrow::scratch_pool& scratch, cudaStream_t first,
         cudaStream_t second) {
  std::vector<escrow::device_block> results;
  for (int batch = 0; batch <= batch_max; ++batch) results.emplace_back(row);
  std::vector<escrow::graph_exec> execs;
  for (int batch = 2; batch <= batch_max; ++batch) {  // in any order
    execs.emplace_back(captured(scratch, first, batch, results[static_cast<std::size_t>(batch)]));
  }
  // A graph with launches of the program's own.
  escrow::graph const own = captured(scratch, first, 1, results[1]);
  escrow::hoisted held = escrow::hoist(own);
  held.release_at_end(second);
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, own.get(), 0), "cudaGraphInstantiate");

  for (int i = 0; i < 1000; ++i) {
    execs[static_cast<std::size_t>(i) % execs.size()].launch(i % 2 == 0 ? first : second);
    // Waits, on the stream, for the launch before; the next launch waits for this one.
    held.launch(second, [&] { return cudaGraphLaunch(exec, second); });
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  bool are_right = group.stats().bytes <= (batch_max + 2) * row;  // mapped in steps of 2 MiB
  for (int batch = 1; batch <= batch_max; ++batch) {
    are_right &= has_result(results[static_cast<std::size_t>(batch)], batch);
  }
  return are_right;
}

}  // namespace

int main() {
  cudaStream_t streams[2]{};
  for (auto& each : streams) {
    check(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  escrow::sharing_group const group({.label = "decode"});
  escrow::scratch_pool scratch({.label = "scratch", .group = group});
  bool const are_right = run(group, scratch, streams[0], streams[1]);
  std::printf("%s\nresults and bytes are right: %s\n", group.describe().c_str(),
              are_right ? "yes" : "no");
  bool const all_back = scratch.close_for(std::chrono::seconds(10)).empty();
  for (auto const& each : streams) check(cudaStreamDestroy(each), "cudaStreamDestroy");
  return are_right && all_back ? 0 : 1;
}
