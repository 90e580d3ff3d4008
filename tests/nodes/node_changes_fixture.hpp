// What the tests of changed nodes share: ways to change one, in a graph or in an exec.
#pragma once

#include <utility>

#include "node_owners_fixture.hpp"

namespace escrow::test {

/// A test of owners of nodes that are changed.
class node_changes_test : public node_owners_test {
 protected:
  [[nodiscard]] node sole_node(graph const& of) { return nodes_in(of).at(0); }
  void set(node const& changed, fate_ptr fate, int value) {
    changed.set(kernel_node(add, {}, shared(std::move(fate)), value));
  }
  void set(graph_exec& exec, node const& changed, fate_ptr fate, int value) {
    escrow::set(exec, changed, kernel_node(add, {}, shared(std::move(fate)), value));
  }

  template <class Owner>
  void set_launch_of(node const& changed, Owner&& owner) {
    changed.set(kernel_node(add, {}, std::forward<Owner>(owner), 10));
  }
  template <class Owner>
  void set_launch_of(graph_exec& exec, node const& changed, Owner&& owner) {
    escrow::set(exec, changed, kernel_node(add, {}, std::forward<Owner>(owner), 10));
  }

  fate_ptr third_ = make_fate();
};

}  // namespace escrow::test
