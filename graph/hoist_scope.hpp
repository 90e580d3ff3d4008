// Taking references off graphs, for a moment or for good.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "escrow/deleter/graph_bundle.hpp"
#include "graph_survey.hpp"

namespace escrow {

// Gives every graph of the survey bundles in place of its single references. Returns the error if a
// reference could not be taken off: the graph then has it as well as the bundle. Throws cuda_error,
// std::bad_alloc; each reference is then on its graph, single or in a bundle.
[[nodiscard]] cudaError_t bundle_references(graph_survey const& survey);

// While it lives, the graphs of the survey have no references of ours. A constructor that throws
// (cuda_error, std::bad_alloc) has put back all. Nobody else may use the graphs meanwhile.
class hoist_scope {
 public:
  explicit hoist_scope(graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  // Whether what is instantiated now is bare: see graph_exec::is_bare().
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
  // What was taken off, each once, by address. Valid while this lives; hold what is to stay longer.
  [[nodiscard]] std::vector<graph_bundle*> const& bundles() const noexcept { return bundles_; }
  // Leaves the graphs without them.
  void keep_off() noexcept;

 private:
  struct taken {
    cudaGraph_t graph;
    std::uint64_t graph_id;
    graph_bundle* bundle;
    cudaUserObject_t object;  // our own reference to it while it is off
  };

  void take_off(taken const& each);
  void put_back_all() noexcept;

  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first so many of them are off
  std::vector<graph_bundle*> bundles_;
  bool is_bare_;
};

}  // namespace escrow
