// Refuses to run beside a real CUDA runtime, before main begins.
#include "guard.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace escrow::sim::model {

void refuse_a_real_runtime() {
  // The next definition after this program's own, in a library it is linked with.
  if (::dlsym(RTLD_NEXT, "cudaStreamDestroy") == nullptr) return;
  std::fputs(
      "escrow::sim: a real libcudart is loaded beside the simulated CUDA runtime. Link a program "
      "with escrow::sim or with cudart, never with both.\n",
      stderr);
  std::abort();
}

namespace {
[[maybe_unused]] bool const checked = (refuse_a_real_runtime(), true);
}

}  // namespace escrow::sim::model
