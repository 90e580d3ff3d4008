// SPDX-License-Identifier: Apache-2.0
// Libraries and their kernels.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// Null if the handle is of no library that is loaded.
std::shared_ptr<CUlib_st> find_library(cudaLibrary_t handle);
// Takes whatever `code` is: CUDA looks at it when a kernel is asked for.
std::shared_ptr<CUlib_st> load_library(void const* code);
// The kernels stay known, so that a launch that comes too late is told from one of a kernel that
// never was.
void unload_library(CUlib_st& library);

// True if the operation is a kernel of a library that has been unloaded.
bool comes_too_late(op const& o);

}  // namespace escrow::sim::model
