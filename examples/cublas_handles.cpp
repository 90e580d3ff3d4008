// A pool of a library's own type: cuBLAS handles, each with the workspace that its kernels write
// to. A claim binds a handle to a stream, captured or not. A graph keeps the handles it was
// captured with, so its launches share a workspace with no other work.
#include <cublas_v2.h>

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

using blas_pool = escrow::resource_pool<blas>;
using numbers = escrow::device_buffer<float>;

constexpr int n = 256;

// c = a * b, of n rows and columns each.
void multiply(blas_pool& pool, escrow::stream_ref stream, numbers const& a, numbers const& b,
              numbers const& c) {
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
  blas_pool pool({}, [] { return blas(); });
  auto const pinned = escrow::memory_source::pinned_host();
  numbers const a(n * n, pinned), b(n * n, pinned), captured(n * n, pinned), eager(n * n, pinned);
  for (int i = 0; i < n * n; ++i) {
    a.data()[i] = static_cast<float>(i % 1000);
    b.data()[i] = i % (n + 1) == 0 ? 2.0F : 0.0F;  // twice the identity: c is twice a
  }
  int wrong = 0;
  {
    escrow::graph_exec exec(
        escrow::capture(stream, [&](auto on) { multiply(pool, on, a, b, captured); }));
    for (int i = 0; i < 3; ++i) exec.launch(stream);
    multiply(pool, stream, a, b, eager);  // with another handle: the graph keeps its own
    escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (int i = 0; i < n * n; ++i) {
      float const expected = 2 * a.data()[i];
      if (captured.data()[i] != expected || eager.data()[i] != expected) ++wrong;
    }
    if (pool.stats().slots != 2 || pool.stats().in_graphs != 1) ++wrong;
  }
  std::printf("%d wrong\n", wrong);
  bool const all_back = pool.close_for(std::chrono::seconds(10)).empty();
  escrow::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return wrong == 0 && all_back ? 0 : 1;
}
