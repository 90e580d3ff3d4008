// SPDX-License-Identifier: Apache-2.0
// A graph built by hand whose loop ends when a kernel says so: square roots by Newton's method,
// with as many iterations as each needs, without the host. The nodes keep what their arguments own:
// once the graph is built, it alone owns the guess.
#include <cmath>
#include <cstdio>
#include <escrow/escrow.hpp>
#include <memory>

#include "kernels.hpp"

namespace {

using numbers = escrow::device_buffer<double>;

std::shared_ptr<numbers> make_pinned_number() {
  return std::make_shared<numbers>(1, escrow::memory_source::pinned_host());
}

// A graph that writes to `root` the square root of `square`.
escrow::graph make_square_root(std::shared_ptr<numbers> const& square,
                               std::shared_ptr<numbers> const& root) {
  auto const guess = std::make_shared<numbers>(1);  // device memory
  escrow::graph built;
  auto const start = build(built).add(escrow::memcpy_node(guess, square, sizeof(double)));
  auto const unfinished = build(built).make_condition(1);  // each launch begins with 1
  auto const loop = start.add(escrow::while_node(unfinished));
  loop.body().add(escrow::kernel_node(improve_root, {}, guess, square, unfinished.get()));
  loop.add(escrow::memcpy_node(root, guess, sizeof(double)));
  return built;
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  auto const square = make_pinned_number();
  auto const root = make_pinned_number();
  bool is_right = true;
  {
    escrow::graph_exec exec(make_square_root(square, root));  // it keeps what the graph kept
    for (double const each : {2.0, 144.0, 1e12, 1e-3}) {
      *square->data() = each;
      exec.launch(stream);
      escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      std::printf("the square root of %g is %.12g\n", each, *root->data());
      is_right = is_right && std::abs(*root->data() - std::sqrt(each)) <= 1e-9 * std::sqrt(each);
    }
  }
  escrow::deleter::global().drain();  // the exec's share of `square` and `root` is gone
  bool const is_released = square.use_count() == 1 && root.use_count() == 1;
  escrow::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return is_right && is_released ? 0 : 1;
}
