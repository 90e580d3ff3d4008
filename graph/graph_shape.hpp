// What graphs must have in common to use one exec in turn.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <string>
#include <vector>

namespace escrow::inline v0_1 {

// What: what cudaGraphExecUpdate keeps from the graph that the exec was created from, some of it
//   without an error (measured: cluster dimensions), and what it refuses to change: nodes and edges
//   in CUDA's order, also of child graphs, the kernels' functions, and their launch attributes, as
//   far as CUDA tells them. Grids, blocks, arguments and addresses are not part of it.
// Thread safety: a value.
// Errors: the constructor throws cuda_error, std::bad_alloc.
class graph_shape {
 public:
  // `flags`: of the instantiation.
  graph_shape(cudaGraph_t graph, unsigned long long flags);

  // Why an exec of this graph can be used by no other; empty: it can.
  [[nodiscard]] std::string const& obstacle() const noexcept { return obstacle_; }
  struct difference {
    std::size_t agreement;  // how much is the same before it
    std::string text;       // empty: there is none
  };
  // How `other` differs. Throws std::bad_alloc.
  [[nodiscard]] difference compare(graph_shape const& other) const;

 private:
  // About one node.
  struct fact {
    std::size_t node;
    char const* said;  // what is said of a node where it differs
    int id;            // of a launch attribute; else 0
    std::array<unsigned char, sizeof(cudaLaunchAttributeValue)> value;
    bool operator==(fact const&) const = default;
  };

  void add(cudaGraph_t graph);
  void add_kernel(std::size_t node, cudaGraphNode_t handle);
  void add_edges(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes, std::size_t first);
  // Returns whether the value has a bit that is not zero.
  template <class Value>
  bool add_fact(std::size_t node, char const* said, Value const& value, int id = 0);
  void object(std::size_t node, char const* problem);

  unsigned long long flags_;
  std::bitset<32> readable_;  // the ids of attributes that CUDA tells; none: no kernel was read
  std::size_t nodes_ = 0;
  std::vector<fact> facts_;
  std::string obstacle_;
};

}  // namespace escrow::inline v0_1
