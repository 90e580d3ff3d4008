// A program linked with both runtimes; the simulator's guard must end it before main.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  int device = 0;
  std::printf("main was reached: %s\n", cudaGetErrorName(cudaGetDevice(&device)));
  return 0;
}
