// A .cu file of a consumer, which must be compiled as C++20.
#include <escrow/escrow.hpp>

__global__ void fill(float* values) { values[threadIdx.x] = 1.0F; }

void use(escrow::scratch_pool& pool, cudaStream_t stream) {
  const auto scratch = pool.claim<float>(stream, 32);
  fill<<<1, 32, 0, stream>>>(scratch.data());
}
