// An owned CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <set>
#include <utility>

#include "escrow/deleter/footprint.hpp"

namespace escrow {

struct survey_root;

// What: owns a cudaGraph_t, and with it the references that the graph has to leases and retired
//   owners.
// Thread safety: a value; CUDA lets one thread at a time use a graph.
// Memory ordering: none.
// Lifetime: the end destroys the graph. What it held comes back once its clones, execs and launches
//   are gone too.
// Capture: everything here is capture-safe; what CUDA forbids in a capture runs in Relaxed mode.
// Errors: cuda_error. The destructor ignores the status: there is no one to tell.
class graph {
 public:
  // A new, empty graph. Throws cuda_error. Source: cudaGraphCreate.
  graph();
  // Takes over a graph that somebody made, e.g. with cudaStreamEndCapture. `id` is its capture id,
  // if the caller knows it.
  explicit graph(cudaGraph_t native, std::uint64_t id = 0) noexcept
      : graph_(native), id_(id), is_original_(id != 0) {}
  graph(graph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)),
        id_(std::exchange(other.id_, 0)),
        is_original_(other.is_original_),
        blank_copies_(std::move(other.blank_copies_)) {}
  graph& operator=(graph&& other) noexcept {
    graph taken(std::move(other));
    std::swap(graph_, taken.graph_);
    std::swap(id_, taken.id_);
    std::swap(is_original_, taken.is_original_);
    std::swap(blank_copies_, taken.blank_copies_);
    return *this;
  }
  ~graph();

  // The CUDA handle. Never owning; null if moved from or detached.
  [[nodiscard]] cudaGraph_t get() const noexcept { return graph_; }
  // The capture id, which identifies the graph for good; 0 if it is not known.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  // Gives the handle up; the caller destroys it.
  [[nodiscard]] cudaGraph_t detach() noexcept {
    id_ = 0;
    blank_copies_.clear();
    return std::exchange(graph_, nullptr);
  }

  // A copy, which holds what this one holds. Source: cudaGraphClone.
  [[nodiscard]] graph clone() const;
  // Adds a node that runs a copy of `child`, which holds what `child` holds, after the nodes that
  // are there now and have no successor. Returns the node, which belongs to this graph. Source:
  // cudaGraphAddChildGraphNode.
  cudaGraphNode_t add_child(graph const& child);

  // What the graph, with its child graphs, keeps alive as far as Escrow knows: of what a plain
  // cudaGraphClone holds it knows nothing. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] footprint held() const;

 private:
  friend struct survey_root;

  cudaGraph_t graph_;
  std::uint64_t id_ = 0;
  bool is_original_ = false;  // whether it holds nothing but what the registry knows, or will
  // Graphs of child nodes, at any depth, that were copied by add_child() or clone() and held
  // nothing then.
  std::set<cudaGraph_t> blank_copies_;
};

}  // namespace escrow
