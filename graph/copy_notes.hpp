// What Escrow has to know of a copy of a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <set>

#include "graph_core.hpp"
#include "graph_survey.hpp"

namespace escrow {

// What the tree of a graph that is about to be copied holds; its sets are sealed. Throws as
// survey_of().
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph const& original);

// What: notes for a copy of a graph, and for the copies of its child graphs, what the originals
//   hold. A copy that is not noted is right as it is: it counts as one of which nobody knows what
//   it holds.
// Thread safety: exclusive access to the graph around.
// Lifetime: no longer than what it was made of.
class copy_notes {
 public:
  // `around`: the copy, or the graph whose child it is.
  copy_notes(graph_survey const& originals, graph_core& around) noexcept
      : originals_(originals), around_(around) {}

  // `id`: the copy's, or 0. Throws cuda_error, std::bad_alloc: some copies are noted then.
  void note(cudaGraph_t original, cudaGraph_t copy, std::uint64_t id);
  // From now on the graph around knows which of the copies hold nothing.
  void commit() noexcept { around_.blank_copies.merge(blank_); }

 private:
  graph_survey const& originals_;
  graph_core& around_;
  std::set<cudaGraph_t> blank_;
};

}  // namespace escrow
