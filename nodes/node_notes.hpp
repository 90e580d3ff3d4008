// SPDX-License-Identifier: Apache-2.0
// What Escrow knows of why CUDA refuses something about a node.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

// Calls `call`; a cuda_error that leaves it gets what `note` tells of its status.
template <class Call, class Note>
decltype(auto) with_note(Call const& call, Note const& note) {
  try {
    return call();
  } catch (cuda_error const& failed) {
    std::string const text = note(failed.status());
    if (text.empty()) throw;
    throw cuda_error(failed.status(), failed.api(), failed.where(), text);
  }
}

// All of these are empty if that is not known.
// A node with these parameters is added.
[[nodiscard]] std::string add_note(cudaError_t status, cudaGraphNodeParams const& params);
// A node that is there gets them. `names_clusters`: as attributes.
[[nodiscard]] std::string change_note(cudaError_t status, cudaGraphNode_t changed,
                                      cudaGraphNodeParams const& params,
                                      bool names_clusters = false);
// The same in an exec; `suspected`: what else it may be.
[[nodiscard]] std::string exec_note(cudaError_t status, cudaGraphNode_t changed,
                                    cudaGraphNodeParams const& params, char const* suspected);
// A node of an exec is disabled, or CUDA is asked whether it is.
[[nodiscard]] std::string switch_note(cudaError_t status, cudaGraphNode_t asked);
[[nodiscard]] std::string destroy_note(cudaError_t status);

}  // namespace escrow::inline v0_2
