// SPDX-License-Identifier: Apache-2.0
// Three ways to part with memory that the GPU still uses: retire its owner, share it with streams,
// or move it into a kernel's launch. Each is freed once, after its last use, by the deleter's
// worker; the thread that gives it away never waits.
#include <atomic>
#include <cstdio>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <latch>
#include <memory>
#include <utility>

#include "kernels.hpp"

namespace {

using escrow::check;

constexpr int length = 1024;
std::atomic<int> freed = 0;

struct free_numbers {
  void operator()(int* data) const noexcept {
    static_cast<void>(cudaFree(data));
    ++freed;
  }
};
using numbers = std::unique_ptr<int, free_numbers>;

numbers make_numbers() {
  void* data = nullptr;
  check(cudaMalloc(&data, length * sizeof(int)), "cudaMalloc");
  return numbers(static_cast<int*>(data));
}

void clear(numbers const& cleared, cudaStream_t stream, int begin = 0, int end = length) {
  std::size_t const bytes = static_cast<std::size_t>(end - begin) * sizeof(int);
  check(cudaMemsetAsync(cleared.get() + begin, 0, bytes, stream), "cudaMemsetAsync");
}

}  // namespace

int main() {
  cudaStream_t one = nullptr;
  cudaStream_t two = nullptr;
  check(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking), "cudaStreamCreate");
  numbers owned = make_numbers();
  auto shared = escrow::make_stream_shared<numbers>(make_numbers());
  numbers passed = make_numbers();

  std::latch may_end(1);  // until then the work on `one` goes on
  auto const wait = [](void* until) { static_cast<std::latch*>(until)->wait(); };
  check(cudaLaunchHostFunc(one, wait, &may_end), "cudaLaunchHostFunc");
  clear(owned, one);
  escrow::deleter::global().retire(one, std::move(owned));  // freed after the work on `one`
  clear(*shared, one, 0, length / 2);
  escrow::record_stream(shared, one);
  clear(*shared, two, length / 2, length);
  escrow::record_stream(shared, two);
  shared.reset();  // freed after the work on both
  bool is_right = freed == 0;
  may_end.count_down();
  escrow::deleter::global().drain();
  is_right = is_right && freed == 2;

  {  // A kernel's argument, here in a capture: freed after the last launch of the graph.
    escrow::graph_exec exec(escrow::capture(one, [&](escrow::stream_ref stream) {
      clear(passed, stream.get());
      escrow::launch(stream, add, {.block = {128}}, std::move(passed), 1, length);
    }));
    for (int i = 0; i < 3; ++i) exec.launch(one);
    is_right = is_right && freed == 2;
  }
  escrow::deleter::global().drain();
  is_right = is_right && freed == 3;
  std::printf("freed in time: %s\n", is_right ? "yes" : "no");
  return is_right ? 0 : 1;
}
