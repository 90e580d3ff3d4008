// SPDX-License-Identifier: Apache-2.0
// Why CUDA instantiates no graph that it calls invalid.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <string>
#include <string_view>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What CUDA says nothing of: an unknown flag, a cycle, a node that no body may have; else what is
// left. `bodies`: all that are known. Throws std::bad_alloc.
[[nodiscard]] std::string why_invalid(cudaGraph_t graph, std::span<cudaGraph_t const> bodies,
                                      unsigned long long flags);

// Why CUDA refused to add a node with these parameters, as an invalid value; empty: it is not
// known.
[[nodiscard]] std::string_view why_refused(cudaGraphNodeParams const& params) noexcept;

}  // namespace escrow::inline v0_2
