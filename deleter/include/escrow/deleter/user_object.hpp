// A CUDA user object whose destroy callback lets go of what a graph holds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "escrow/deleter/graph_bundle.hpp"
#include "escrow/deleter/graph_reference.hpp"

namespace escrow {

// What: one reference to a CUDA user object, which is a holder of a graph_reference or of a bundle.
//   Moved to a graph, it lets go once the graph, its clones, execs and launches are gone; not
//   moved, at the end of this.
// Thread safety: a value; needs exclusive access. The destroy callback runs on whichever thread
//   drops the last reference, the caller's or CUDA's own, and only lets go, which may push.
// Memory ordering: as release_node::push().
// Lifetime: from the constructor on, the node belongs to its holders until it is pushed.
// Capture: everything here is capture-safe, also for a graph that is being captured into.
// Errors: cuda_error. A constructor that throws has taken nothing; a move_to() that throws leaves
//   the reference here.
class user_object {
 public:
  // Creates the user object with one reference, held here, as one holder more of `held`. Source:
  // cudaUserObjectCreate.
  explicit user_object(graph_reference& held);
  explicit user_object(graph_bundle& held);
  user_object(user_object&& other) noexcept
      : reference_(other.reference_),
        bundle_(other.bundle_),
        object_(std::exchange(other.object_, nullptr)) {}
  user_object& operator=(user_object&& other) = delete;
  // Drops the reference if it is still here.
  ~user_object();

  // Moves the reference to `graph`, which was captured under `id`, and has it noted in the
  // registry; returns the object, which is the graph's. Throws std::bad_alloc, cuda_error. Source:
  // cudaGraphRetainUserObject with cudaGraphUserObjectMove.
  cudaUserObject_t move_to(cudaGraph_t graph, std::uint64_t id);

 private:
  void note(cudaGraph_t graph, std::uint64_t id);
  void withdraw(std::uint64_t id) noexcept;

  graph_reference* reference_ = nullptr;  // one of the two
  graph_bundle* bundle_ = nullptr;
  cudaUserObject_t object_ = nullptr;
};

// Gives one reference to a user object up. If CUDA refuses for good, what the object holds is kept
// for ever: that is reported and counted (deleter_stats::held). Any thread. Source:
// cudaUserObjectRelease.
void release_object(cudaUserObject_t object, release_hub& hub) noexcept;

}  // namespace escrow
