// SPDX-License-Identifier: Apache-2.0
// Graphs, nodes and user objects.
#pragma once

#include "state.hpp"

#include <span>

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// The graph behind a handle, embedded ones included; null if there is none.
std::shared_ptr<graph_state> find_graph(cudaGraph_t handle);
// A new graph with a handle and an id of its own.
std::shared_ptr<graph_state> make_graph();

// Adds a node; dependencies named twice count once. `edges`: null if all are full.
cudaGraphNode_t add_node(graph_state& graph, std::span<cudaGraphNode_t const> before,
                         cudaGraphEdgeData const* edges, cudaGraphNodeType type, work what);
bool depends_on(CUgraphNode_st const& node, CUgraphNode_st const& earlier);
// The edge from `before`, on which the node depends.
cudaGraphEdgeData edge_from(CUgraphNode_st const& before, CUgraphNode_st const& node);
void add_edge(CUgraphNode_st& from, CUgraphNode_st& to, cudaGraphEdgeData const& edge);
void remove_edge(CUgraphNode_st& from, CUgraphNode_st& to);
// Removes a node and its edges, and dismantles the graphs inside it.
void remove_node(CUgraphNode_st& node, callbacks& reclaimed);

// A copy with all that is inside, references too. With handles it is a graph of its own
// (cudaGraphClone, child nodes); without, it is an exec's private copy.
std::shared_ptr<graph_state> clone(graph_state const& source, bool with_handles);
// Lets go of all that the graph itself holds.
void release_references(graph_state& graph, callbacks& reclaimed);
// Takes the graph's handles away and lets go of all its references; destructors that are due go to
// `reclaimed`.
void dismantle(std::shared_ptr<graph_state> const& graph, callbacks& reclaimed);

// The graphs inside a node: an embedded child, or the bodies of a conditional.
std::vector<std::shared_ptr<graph_state>> inner_graphs(CUgraphNode_st const& node);
bool has_conditionals(graph_state const& graph);
// Puts nodes into an order in which each comes after what it depends on, inside too. False if
// there is a cycle.
bool sort_nodes(graph_state& graph);

// Null if the object is gone.
CUuserObject_st* find_object(cudaUserObject_t handle);
void retain(graph_state& graph, CUuserObject_st& object, std::int64_t count);
// Lets go of references; the destructor goes to `reclaimed` with the last one. An object that is
// gone is left alone, as CUDA reports no error when more references are given up than there were.
// A count below zero gives back.
void let_go(cudaUserObject_t handle, std::uint64_t id, std::int64_t count, callbacks& reclaimed);

}  // namespace escrow::sim::model
