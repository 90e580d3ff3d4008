// SPDX-License-Identifier: Apache-2.0
// A pool of a library's own type: cuBLAS handles, each with the workspace that its kernels write
// to. A claim binds a handle to a stream, captured or not. A graph keeps the handles it was
// captured with, so its launches share a workspace with no other work.
#include <cublas_v2.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <stdexcept>

namespace {

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(status));
}

class blas {
 public:
  blas() { check(cublasCreate(&handle_)); }
  blas(blas&&) = delete;
  ~blas() { static_cast<void>(cublasDestroy(handle_)); }

  [[nodiscard]] cublasHandle_t on(escrow::stream_ref stream) const {
    check(cublasSetStream(handle_, stream.get()));  // first: it resets the workspace
    check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.size()));
    return handle_;
  }

 private:
  escrow::device_block workspace_{32 << 20};
  cublasHandle_t handle_ = nullptr;
};

using numbers = escrow::device_buffer<float>;
constexpr int n = 256;
constexpr int entries = n * n;

// c = a * b, of n rows and columns each.
void multiply(escrow::resource_pool<blas>& pool, escrow::stream_ref stream, numbers const& a,
              numbers const& b, numbers const& c) {
  float const one = 1;
  float const zero = 0;
  auto const claimed = pool.claim(stream);
  check(cublasSgemm(claimed->on(stream), CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n,
                    b.data(), n, &zero, c.data(), n));
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::resource_pool<blas> pool({}, [] { return blas(); });
  auto const pinned = escrow::memory_source::pinned_host();
  numbers const a(entries, pinned);
  numbers const b(entries, pinned);
  numbers const captured(entries, pinned);
  numbers const eager(entries, pinned);
  for (int i = 0; i < entries; ++i) {
    a.data()[i] = static_cast<float>(i % 1000);
    b.data()[i] = i % (n + 1) == 0 ? 2.0F : 0.0F;  // twice the identity: c is twice a
  }
  bool is_right = false;
  {
    escrow::graph_exec exec(
        escrow::capture(stream, [&](auto on) { multiply(pool, on, a, b, captured); }));
    for (int i = 0; i < 3; ++i) exec.launch(stream);
    multiply(pool, stream, a, b, eager);  // with another handle: the graph keeps its own
    escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    auto const is_twice = [](float in, float out) { return out == 2 * in; };
    is_right = std::equal(a.data(), a.data() + entries, captured.data(), is_twice) &&
               std::equal(a.data(), a.data() + entries, eager.data(), is_twice) &&
               pool.stats().slots == 2 && pool.stats().in_graphs == 1;
  }
  std::printf("products and handles were right: %s\n", is_right ? "yes" : "no");
  return is_right && pool.close_for(std::chrono::seconds(10)).empty() ? 0 : 1;
}
