// What graphs must have in common to use one exec in turn.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
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
  struct node {
    cudaGraphNodeType type;
    void const* function = nullptr;  // the kernel's, which is of a module and thus of a context
    void const* context = nullptr;
  };
  struct edge {
    std::size_t from;
    std::size_t to;
    std::array<unsigned char, 3> data;

    bool operator==(edge const&) const = default;
  };
  struct attribute {
    std::size_t node;
    int id;
    std::array<unsigned char, sizeof(cudaLaunchAttributeValue)> value;

    bool operator==(attribute const&) const = default;
  };

  void add(cudaGraph_t graph);
  void add_edges(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& nodes, std::size_t first);
  void add_kernel(cudaGraphNode_t handle);
  // Of the last node; false if it is zero.
  template <class Value>
  bool add_attribute(int id, Value const& value);
  void object(char const* problem);  // to the last node

  unsigned long long flags_;
  std::vector<node> nodes_;
  std::vector<edge> edges_;
  std::vector<attribute> attributes_;  // but those that are zero
  std::string obstacle_;
};

}  // namespace escrow::inline v0_1
