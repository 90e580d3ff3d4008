// Plain CUDA: a graph with a user object, its exec, one launch, and the end of both, many times.
#include "plain_exec_leftover.hpp"

#include <algorithm>

#include "build_graph.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "samples.hpp"

namespace escrow::test {

namespace {

void one_life(cudaStream_t stream) {
  static char nothing = 0;
  owned_graph graph = tiny_graph();
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(
      &object, &nothing, [](void*) {}, 1, cudaUserObjectNoDestructorSync));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
}

}  // namespace

double bytes_left_by_a_plain_exec() {
  if (is_simulated()) return 0;
  constexpr int lives = 2000;
  owned_stream const stream = make_stream();
  for (int i = 0; i < lives / 4; ++i) one_life(stream);  // what CUDA sets up once
  double const before = heap_kib_now();
  for (int i = 0; i < lives; ++i) one_life(stream);
  return std::max(0.0, heap_kib_now() - before) * 1024 / lives;
}

}  // namespace escrow::test
