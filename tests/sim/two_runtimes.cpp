// SPDX-License-Identifier: Apache-2.0
// A program with both runtimes, which the simulator's guard must end before main; and the second
// runtime, a library that stands in for libcudart: it has the one function that the guard looks
// for.
#ifdef ESCROW_TEST_SECOND_RUNTIME

extern "C" int cudaDriverGetVersion(int*);

extern "C" int cudaDriverGetVersion(int*) {
  return 0;
}

#else

#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  int device = 0;
  std::printf("main was reached: %s\n", cudaGetErrorName(cudaGetDevice(&device)));
  return 0;
}

#endif
