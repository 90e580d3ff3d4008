// SPDX-License-Identifier: Apache-2.0
// Why a graph needs so much: the layout of its scratch, as JSON for tools/arena_svg.py. The graph
// is that of a language model with 8 billion parameters, for 512 sequences, without its kernels.
#include <cstddef>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

namespace {

using escrow::check;

constexpr std::size_t batch = 512, hidden = 4096, keys = 1024, inner = 14336, words = 128256;
constexpr std::size_t heads = 32, splits = 8, of_a_split = 130;
constexpr std::size_t matrix_workspace = std::size_t{32} << 20;
constexpr int layers = 2;

// Each block is claimed when it is needed, and released after its last use.
void enqueue_model(escrow::scratch_pool& scratch, escrow::stream_ref stream) {
  auto const claim = [&](std::size_t bytes,
                         escrow::source_location where = escrow::source_location::current()) {
    auto block = scratch.claim(stream, bytes, where);
    // Stands for a kernel.
    check(cudaMemsetAsync(block->data(), 0, 1, stream.get()), "cudaMemsetAsync");
    return block;
  };
  auto between_layers = claim(2 * batch * hidden);
  for (int i = 0; i < layers; ++i) {
    auto normed = claim(2 * batch * hidden);
    auto queries = claim(2 * batch * (hidden + 2 * keys));
    normed.release();
    auto partial = claim(4 * batch * heads * splits * of_a_split);
    auto attended = claim(2 * batch * hidden);
    queries.release();
    partial.release();
    auto both = claim(2 * batch * 2 * inner);
    attended.release();
    auto gated = claim(2 * batch * inner);
    both.release();
    auto const workspace = claim(matrix_workspace);
  }
  auto scores = claim(4 * batch * words);
  between_layers.release();
  auto const sorted = claim(4 * batch * words);
}

}  // namespace

// The first argument is the label.
int main(int count, char** arguments) {
  char const* const label = count > 1 ? arguments[1] : "decode";
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  {
    escrow::sharing_group const group({.label = label});
    escrow::scratch_pool scratch({.label = label, .group = group});
    escrow::graph const step =
        escrow::capture(stream, [&](escrow::stream_ref on) { enqueue_model(scratch, on); });
    escrow::graph_exec exec(step);
    exec.launch(stream);
    // While the graph exists: an exec alone has no order of claims.
    std::printf("%s\n", escrow::to_json(escrow::report_memory()).c_str());
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
