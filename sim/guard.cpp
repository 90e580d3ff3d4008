// SPDX-License-Identifier: Apache-2.0
// Refuses to run beside a real CUDA runtime, before main begins.
#include "guard.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "escrow/sim/control.hpp"

// By which Escrow knows that it is linked with the simulated runtime.
extern "C" [[gnu::visibility("hidden")]] char const escrow_simulated_runtime;
char const escrow_simulated_runtime = 1;

namespace escrow::sim::model {
namespace {

void const* module_of(void* address) {
  Dl_info found{};
  return dladdr(address, &found) == 0 ? nullptr : found.dli_fbase;
}

}  // namespace

void refuse_a_real_runtime() {
  // The real one comes after the simulated one in the order of libraries, or before it.
  bool const is_next = dlsym(RTLD_NEXT, "cudaDriverGetVersion") != nullptr;
  bool const is_first = module_of(reinterpret_cast<void*>(&cudaDriverGetVersion)) !=
                        module_of(reinterpret_cast<void*>(&step));
  if (!is_next && !is_first) return;
  std::fputs(
      "escrow::sim: a real libcudart is loaded beside the simulated CUDA runtime. Link a program "
      "with escrow::simulated or with cudart, never with both.\n",
      stderr);
  std::abort();
}

namespace {
[[maybe_unused]] bool const checked = (refuse_a_real_runtime(), true);
}

}  // namespace escrow::sim::model
