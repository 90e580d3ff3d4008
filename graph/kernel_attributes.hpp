// SPDX-License-Identifier: Apache-2.0
// Launch attributes of kernel nodes, which CUDA takes one by one when the node is there.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

namespace escrow::inline v0_2 {

using launch_attributes = std::span<cudaLaunchAttribute const>;

[[nodiscard]] bool have_clusters(launch_attributes attributes) noexcept;

// Throws cuda_error unless a kernel's node with these parameters can have these attributes, which
// it says the problem of. `trial`: a graph for that alone.
void try_attributes(cudaGraph_t trial, cudaKernelNodeParams const& params,
                    launch_attributes attributes);

// After that: gives them to a node with these parameters. Throws cuda_error if CUDA refuses for
// another reason, again and again; then the node has some of them.
void give_attributes(cudaGraphNode_t node, launch_attributes attributes);

// Gives the node other parameters, which may fit these clusters and no others: give_attributes() is
// next. On failure throws cuda_error, and the node is as before.
void change_for_attributes(cudaGraphNode_t node, cudaGraphNodeParams& params,
                           launch_attributes attributes);

}  // namespace escrow::inline v0_2
