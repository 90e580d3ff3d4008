// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: their handles, their values, their bodies, and which body runs.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// Sets `what` to a conditional node of `graph` with bodies that are empty. The handle may have
// been made for the graph or for one that it is inside of.
cudaError_t make_conditional_work(graph_state const& graph, cudaConditionalNodeParams const& params,
                                  work& what);

// True if each condition that was made for the graph, or for one inside it, has a conditional node
// there. CUDA looks at it when the graph is instantiated.
bool conditions_are_used(graph_state const& graph);

// True if all that is in bodies, at any depth, is of the kinds that CUDA can run there. CUDA looks
// at it when the graph is instantiated.
bool bodies_are_legal(graph_state const& graph);

// Gives each condition that has a default its default; an execution begins with that.
void set_conditions(graph_state const& graph);

// Drops the values of conditions of an exec's graph, whose launches are done: handles are not
// given out twice.
void forget_conditions(graph_state const& graph);

// The same for the conditions that `graph` has and `still_used` has not.
void forget_conditions(graph_state const& graph, graph_state const& still_used);

// The body that the condition's value chooses; null if none is to run.
graph_state const* body_to_run(conditional_work const& what);

}  // namespace escrow::sim::model
