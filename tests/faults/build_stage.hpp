// A graph that is built by hand, with owners, execs and captures, for the fault runner.
#pragma once

#include <algorithm>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../nodes/changeable_kinds.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "operation.hpp"
#include "owners.hpp"

namespace escrow::test {

/// Tells when the last share, or the unique owner, of some memory goes, and frees nothing.
struct tells_fate {
  fate_ptr fate;
  void operator()(int*) const { probe const goes(fate); }
};

class build_stage : public stage {
 public:
  using unique = std::unique_ptr<int, tells_fate>;

  pinned_ints cells{2};  // kernels add to the first
  pinned_flag flag;
  std::unique_ptr<changes_world> kinds = std::make_unique<changes_world>();
  deleter keeper{deleter_options{.own_worker = false}};
  owned_stream stream = make_stream();
  kernel const add{kernel_address(kernel_id::add)};
  std::vector<fate_ptr> fates;
  std::optional<graph> built{std::in_place, keeper};
  std::optional<node> first;
  std::optional<graph> copy;
  std::optional<graph_exec> exec;
  std::optional<body_graph> body;
  std::optional<condition> looked_at;
  std::optional<allocation> memory;
  std::optional<capture_scope> scope;
  std::optional<library> loaded;
  std::optional<kernel> found;
  owned_graph plain;
  unique mine;                     // an owner that an operation takes
  std::shared_ptr<int> shared;     // one that it shares
  std::string answer = "none";     // what a question gave
  std::optional<int> expected;     // what a run of the graph adds to the first cell
  std::function<void()> at_end;    // expects what the operation has done
  bool polls_when_seen = true;     // not if that is the operation
  bool may_lose = false;           // owners go if it fails
  std::vector<std::size_t> going;  // the numbers of the fates of owners that the operation lets go

  [[nodiscard]] fate_ptr const& fate() { return fates.emplace_back(make_fate()); }
  /// The first cell, with an owner.
  [[nodiscard]] std::shared_ptr<int> owner() { return {cells.data(), tells_fate{fate()}}; }
  [[nodiscard]] unique unique_owner() { return {cells.data(), tells_fate{fate()}}; }
  /// A graph of one node that adds 1 and has an owner.
  void build_one() { first.emplace(build(*built).add(kernel_node(add, {}, owner(), 1))); }
  void reclaim() {
    while (keeper.poll() != 0) {
    }
  }

  [[nodiscard]] std::string seen() override {
    if (polls_when_seen) reclaim();
    std::string text = "answer " + answer + " mine " + std::to_string(mine != nullptr) + " gone";
    for (fate_ptr const& each : fates) text += " " + std::to_string(each->times());
    add_size(text, "nodes", built);
    add_size(text, "copy", copy);
    for (cudaGraph_t const each : built ? built->core()->bodies : std::vector<cudaGraph_t>()) {
      text += " body " + std::to_string(nodes_of(each).size());
    }
    sim::counts const now = sim::alive();
    text += " graphs " + std::to_string(now.graphs) + " execs " +
            std::to_string(now.execs + now.execs_in_flight) + " captures " +
            std::to_string(now.captures) + " libraries " + std::to_string(now.libraries);
    text += " has";
    for (bool const each : {exec.has_value(), looked_at.has_value(), memory.has_value(),
                            scope.has_value(), loaded.has_value(), found.has_value()}) {
      text += each ? " 1" : " 0";
    }
    return text;
  }
  [[nodiscard]] std::size_t reports() const override { return keeper.stats().errors; }
  [[nodiscard]] leftovers end(int /*way*/) override {
    shared.reset();
    reclaim();
    for (std::size_t i = 0; i < fates.size(); ++i) {
      bool const goes = std::ranges::find(going, i) != going.end();
      if (may_lose && fates[i]->was_destroyed()) continue;
      EXPECT_EQ(fates[i]->times(), goes ? 1 : 0) << "owner " << i;
    }
    flag.raise();
    scope.reset();
    must(cudaStreamSynchronize(stream));
    if (expected) {
      EXPECT_EQ(sum(), *expected);
    }
    if (at_end) at_end();
    return end_all();
  }
  [[nodiscard]] leftovers end_after_loss() override {
    flag.raise();
    scope.reset();
    return end_all(!sim::has_context(1));
  }
  /// Runs the exec, or the graph, once.
  void run() {
    if (!exec) exec.emplace(*built);
    exec->launch(stream);
    must(cudaStreamSynchronize(stream));
  }

 private:
  std::size_t const libraries_before_ = sim::alive().libraries;
  int sum() {
    cells.store(0, 0);
    run();
    return cells.load();
  }
  static void add_size(std::string& text, char const* name, std::optional<graph> const& of) {
    if (!of) return;
    text += std::string(" ") + name + " " + std::to_string(nodes_in(*of).size()) + "-" +
            std::to_string(edges_in(*of).size());
  }
  /// Nothing is known of the end of work after a fault in a process that uses two devices.
  leftovers end_all(bool is_anything_known = true) {
    found.reset();
    loaded.reset();
    mine.reset();
    shared.reset();
    body.reset();
    exec.reset();
    copy.reset();
    built.reset();
    plain.reset();
    kinds.reset();
    sim::run_until_idle();
    EXPECT_TRUE(keeper.drain_for(generous)) << "a drain hangs";
    EXPECT_TRUE(deleter::global().drain_for(generous));
    EXPECT_EQ(keeper.stats().in_graphs, 0U);
    std::uint64_t kept = 0;
    for (fate_ptr const& each : fates) {
      EXPECT_LE(each->times(), 1) << "an owner was destroyed twice";
      kept += each->was_destroyed() ? 0U : 1U;
    }
    std::uint64_t const held = keeper.stats().leaked;
    if (is_anything_known) {
      EXPECT_EQ(kept, held) << "an owner is lost, and nobody was told";
    } else {
      EXPECT_LE(kept, held) << "an owner is lost, and nobody was told";
    }
    leftovers left;
    left.events = 2 * held;
    if (!is_anything_known) left.libraries = sim::alive().libraries - libraries_before_;
    return left;
  }
};

}  // namespace escrow::test
