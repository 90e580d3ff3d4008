// SPDX-License-Identifier: Apache-2.0
// Ranges and thread names for profilers: NVTX 3, if the CMake option ESCROW_NVTX is on.
#pragma once

#include "escrow/version.hpp"

#ifdef ESCROW_NVTX  // for Escrow's own sources only, which alone include this file
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>
#else
#define nvtxRangePushA(name) static_cast<void>(name)
#define nvtxRangePop() static_cast<void>(0)
#define nvtxNameOsThreadA(thread, name) static_cast<void>(name)
#endif

namespace escrow::inline v0_2 {

// Shows its lifetime as a range of its thread. `name`: a string literal. Not for destroy callbacks,
// since a profiler may lock.
class [[nodiscard]] profiler_range {
 public:
  explicit profiler_range(char const* name) noexcept { nvtxRangePushA(name); }
  profiler_range(profiler_range&&) = delete;
  ~profiler_range() { nvtxRangePop(); }
};

inline void name_this_thread(char const* name) noexcept {
  nvtxNameOsThreadA(static_cast<unsigned>(gettid()), name);
}

}  // namespace escrow::inline v0_2
