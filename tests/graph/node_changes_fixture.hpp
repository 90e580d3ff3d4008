// What the tests of changed nodes share: ways to change one, in a graph or in an exec.
#pragma once

#include <utility>

#include "node_owners_fixture.hpp"

namespace escrow::test {

/// A test of owners of nodes that are changed.
class node_changes_test : public node_owners_test {
 protected:
  [[nodiscard]] node sole_node(graph const& of) { return of.nodes().at(0); }
  void set(node const& changed, fate_ptr fate, int value) {
    changed.set_launch(add, {}, shared(std::move(fate)), value);
  }
  void set(graph_exec& exec, node const& changed, fate_ptr fate, int value) {
    exec.set_launch(changed, add, {}, shared(std::move(fate)), value);
  }

  template <class Owner>
  void set_launch_of(node const& changed, Owner&& owner) {
    changed.set_launch(add, {}, std::forward<Owner>(owner), 10);
  }
  template <class Owner>
  void set_launch_of(graph_exec& exec, node const& changed, Owner&& owner) {
    exec.set_launch(changed, add, {}, std::forward<Owner>(owner), 10);
  }

  fate_ptr third_ = make_fate();
};

}  // namespace escrow::test
