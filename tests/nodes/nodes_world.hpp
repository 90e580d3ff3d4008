// SPDX-License-Identifier: Apache-2.0
// What the tests of launches and of graphs built by hand share: kernels whose parameters are known,
// memory whose end is watched, and a graph.
#pragma once

#include <escrow/nodes.hpp>

#include "node_queries.hpp"
#include "world.hpp"

namespace escrow::test {

/// Tells a fate when the last owner of some memory ends, and frees nothing.
struct tells {
  fate_ptr fate;
  template <class T>
  void operator()(T* /*memory*/) const {
    probe const ends(fate);
  }
};

/// The world with a graph to which nodes are added.
class nodes_world : public world {
 protected:
  /// The cell of that number, owned by shares.
  [[nodiscard]] std::shared_ptr<int> shared(fate_ptr const& fate, int cell = 0) {
    return {cells.data() + cell, tells{fate}};
  }
  /// A node that adds `value` to a cell.
  node add_to(graph_builder_ref const& at, int cell, int value = 1) {
    return at.add(kernel_node(add, {}, cells.data() + cell, value));
  }
  /// The same, and the node is the only owner of the cell.
  node add_owned(graph_builder_ref const& at, fate_ptr const& fate, int value = 1, int cell = 0) {
    return at.add(kernel_node(add, {}, shared(fate, cell), value));
  }
  /// A node behind which nothing runs before the flag is raised.
  node hold_up_at(graph_builder_ref const& at) {
    return at.add(kernel_node(wait_flag, {}, flag.get()));
  }
  /// A node that sets the condition to the value of a cell.
  node look(graph_builder_ref const& at, condition const& set, int cell) {
    auto* const kernel =
        function_of<cudaGraphConditionalHandle, int const*>(kernel_id::set_condition);
    return at.add(kernel_node(kernel, {}, set.get(), cells.data() + cell));
  }
  [[nodiscard]] std::size_t owners_held() const { return built->held().owners; }
  /// The graph's node: it has only one.
  [[nodiscard]] static node sole_node(graph const& of) {
    auto const found = nodes_in(of);
    must(found.size() == 1, "the graph has one node");
    return found[0];
  }

  /// Expects a usage_error that begins with `call` and has `problem` in it.
  static void expect_refused(auto&& refused, std::string const& call, std::string const& problem) {
    test::expect_refused({{call, {problem}, std::ref(refused)}});
  }
  /// Expects a cuda_error of this status.
  static void expect_error(auto&& failing, cudaError_t status) {
    try {
      static_cast<void>(failing());
      ADD_FAILURE() << "no error";
    } catch (cuda_error const& error) {
      EXPECT_EQ(error.status(), status) << error.what();
    }
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }

  void TearDown() override {
    flag.raise();
    sync_all();
    built.reset();
    world::TearDown();
  }

  void (*const add)(int*, int) = function_of<int*, int>(kernel_id::add);
  void (*const fill)(int*, std::size_t, int) = function_of<int*, std::size_t, int>(kernel_id::fill);
  void (*const copy)(int*, int const*,
                     std::size_t) = function_of<int*, int const*, std::size_t>(kernel_id::copy);
  kernel const wait_flag{kernel_address(kernel_id::wait_flag)};
  device_ints device{8};
  std::optional<graph> built{std::in_place, *worker};
};

}  // namespace escrow::test
