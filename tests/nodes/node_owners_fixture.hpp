// What the tests of owners of nodes share: memory whose end is watched, and a graph that uses it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "node_queries.hpp"
#include "owners.hpp"

namespace escrow::test {

/// Tells when the last share, or the unique owner, of some memory goes, and frees nothing.
struct tells {
  fate_ptr fate;
  void operator()(int*) const { probe const goes(fate); }
};

class node_owners_test : public testing::Test {
 protected:
  node_owners_test() {
    // Loaded before anything is held up, since loading waits for what runs.
    pinned_flag raised;
    raised.raise();
    graph_exec waits(graph_with(kernel_id::wait_flag, raised.get()));
    run(waits);
    graph_exec adds(graph_with(kernel_id::add, cells_.data(), 0));
    run(adds);
  }
  void TearDown() override {
    built_.reset();
    EXPECT_TRUE(deleter_.drain_for(generous));
    EXPECT_EQ(deleter_.stats().in_graphs, 0U);
    EXPECT_EQ(deleter_.stats().leaked, 0U);
    EXPECT_EQ(deleter_.stats().errors, 0U);
  }

  template <class... Arguments>
  [[nodiscard]] graph graph_with(kernel_id id, Arguments... arguments) {
    graph made(deleter_);
    build(made).add(kernel_node(kernel(kernel_address(id)), {}, arguments...));
    return made;
  }

  /// The cell of that number, shared.
  [[nodiscard]] std::shared_ptr<int> shared(fate_ptr fate, int cell = 0) {
    return {cells_.data() + cell, tells{std::move(fate)}};
  }
  /// Adds `value` to a cell at each launch; the node is the only owner.
  node add_node(graph_builder_ref const& at, fate_ptr fate, int value = 1, int cell = 0) {
    return at.add(kernel_node(add, {}, shared(std::move(fate), cell), value));
  }
  /// A node that what follows waits for, until the flag is raised.
  [[nodiscard]] node hold_up(graph_builder_ref const& at) {
    return at.add(kernel_node(wait_flag, {}, flag_.get()));
  }

  /// Whatever has been let go by now has been reclaimed, and that was not.
  [[nodiscard]] bool lives(fate_ptr const& fate) {
    deleter_.drain();
    return !fate->was_destroyed();
  }
  /// For what launches that are held up use: the worker has looked at it.
  [[nodiscard]] static bool stays(fate_ptr const& fate) {
    return stays_false([&] { return fate->was_destroyed(); });
  }
  [[nodiscard]] bool goes(fate_ptr const& fate) {
    deleter_.drain();
    return fate->wait() && fate->times() == 1;
  }
  void run(graph_exec& exec) {
    exec.launch(stream_);
    must(cudaStreamSynchronize(stream_));
  }

  kernel const add{kernel_address(kernel_id::add)};
  kernel const wait_flag{kernel_address(kernel_id::wait_flag)};
  pinned_flag flag_;
  pinned_ints cells_{4};
  owned_stream stream_ = make_stream();
  owned_stream other_stream_ = make_stream();
  fate_ptr first_ = make_fate();
  fate_ptr second_ = make_fate();
  deleter deleter_;
  std::optional<graph> built_{std::in_place, deleter_};
};

}  // namespace escrow::test
