// SPDX-License-Identifier: Apache-2.0
// Parts of a graph that use the same claims, as copies of one graph do: nothing but the graph's
// edges orders them.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <span>

#include "graph_core.hpp"

namespace escrow::inline v0_2 {

// The claims of child nodes that an exec was given itself, in place of those of the graph's.
using changed_claims = std::map<cudaGraphNode_t, graph_registry::group_set>;

// Whether two parts of `graph`, or of a graph in it, use the same claims without a sharing group,
// and may run concurrently. Parts are child nodes, conditional nodes with these bodies, and the
// graph's own nodes. Of these nobody knows which use a claim: all count. Throws cuda_error,
// std::bad_alloc.
[[nodiscard]] bool has_unordered_claims(cudaGraph_t graph, std::span<graph_core::body const> bodies,
                                        changed_claims const& changed = {});

// Those of a graph and the child graphs in it; of sets. Throw cuda_error, std::bad_alloc.
[[nodiscard]] graph_registry::group_set claims_in(cudaGraph_t graph);
[[nodiscard]] graph_registry::group_set claims_in(reference_sets const& sets);

inline constexpr char const* claims_may_race =
    "two parts of the graph, such as copies of one child graph, use what the same capture claimed, "
    "and may run concurrently";
inline constexpr char const* order_the_claims =
    "order them, with graph_builder_ref::after() or graph::add_child, or capture the work once for "
    "each";

}  // namespace escrow::inline v0_2
