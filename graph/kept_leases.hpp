// SPDX-License-Identifier: Apache-2.0
// Leases of sharing groups that a part of a graph would overwrite: they are claimed before the part
// and not released before it, and the part uses the same slot.
#pragma once

#include <cuda_runtime_api.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "escrow/internal/group_lease.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

// Refuses to embed a graph in `in` after these nodes if that would overwrite a lease that lives.
// `part`: its graphs, and those of its child graphs, that the registry knows. Throws usage_error,
// naming `call`, cuda_error, std::bad_alloc.
void refuse_overwriting(char const* call, std::set<cudaGraph_t> const& part, cudaGraph_t in,
                        std::span<cudaGraphNode_t const> after);

// The lease of the graph, of which `line` are the nodes, that one of its child graphs overwrites;
// null: there is none. Throws cuda_error, std::bad_alloc.
[[nodiscard]] std::shared_ptr<group_lease> overwritten_in(cudaGraph_t graph,
                                                          child_graphs const& children,
                                                          std::vector<cudaGraphNode_t> const& line);
// What is wrong then, and what to do. Throws std::bad_alloc.
[[nodiscard]] std::string overwrites(group_lease const& lease);
inline constexpr char const* keep_the_lease =
    "release the lease before the child graph, or use claim_kept, or claim from a pool without a "
    "group";

// The leases of a graph, at the nodes of its copy. Throws cuda_error, std::bad_alloc.
[[nodiscard]] lease_spans copied_leases(cudaGraph_t original, cudaGraph_t copy);

}  // namespace escrow::inline v0_2
