// A node that runs a body, another, or none.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "escrow/graph/body_graph.hpp"
#include "escrow/graph/node.hpp"

namespace escrow {

// What: an if, if-else, while or switch node with its bodies, which are empty at first.
// Thread safety, Memory ordering, Capture, Errors: as node.
// Lifetime: as node; the bodies keep the graph.
class conditional_node : public node {
 public:
  // Of an if or while node, or the first of another.
  [[nodiscard]] body_graph const& body() const noexcept { return bodies_.front(); }
  // The second body of an if-else node.
  [[nodiscard]] body_graph const& otherwise() const { return bodies_.at(1); }
  [[nodiscard]] std::vector<body_graph> const& bodies() const noexcept { return bodies_; }

 private:
  friend class insertion_point;

  conditional_node(node const& made, std::vector<body_graph> bodies) noexcept
      : node(made), bodies_(std::move(bodies)) {}

  std::vector<body_graph> bodies_;
};

}  // namespace escrow
