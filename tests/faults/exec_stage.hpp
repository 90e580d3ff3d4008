// Graphs, execs and hoisted references, for the fault runner.
#pragma once

#include <string>

#include "../graph/exec_fault_world.hpp"
#include "operation.hpp"

namespace escrow::test {

class exec_stage : public stage, public exec_world {
 public:
  [[nodiscard]] std::string seen() override {
    std::string text = "holds";
    for (auto const& [slots, kept] : holdings(*this)) {
      text += " " + std::to_string(slots) + "+" + std::to_string(kept);
    }
    sim::counts const now = sim::alive();
    return text + " graphs " + std::to_string(now.graphs) + " execs " +
           std::to_string(now.execs + now.execs_in_flight) + " captures " +
           std::to_string(now.captures) + " runs " + std::to_string(expected_runs);
  }
  [[nodiscard]] std::size_t reports() const override { return worker->stats().errors; }
  [[nodiscard]] leftovers end(int way) override {
    if (way == 0) {
      expect_end_in_flight(*this);
    } else {
      expect_end_with_the_graph(*this);
    }
    return {};
  }
  [[nodiscard]] leftovers end_after_loss() override {
    end_copies();
    source.reset();
    exec.reset();
    rival.reset();
    end_handle();
    pool.reset();
    sim::run_until_idle();
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    std::size_t lost = 0;
    for (watched_owner const& each : owners) {
      EXPECT_LE(each.times(), 1);
      lost += each.is_gone() ? 0 : 1;
    }
    // What nobody reported is not lost.
    auto const blocks = static_cast<std::size_t>(counts.alive());
    EXPECT_LE(lost + blocks, worker->stats().leaked);
    leftovers left;
    left.device_allocations = blocks;
    left.device_bytes = blocks * block::length * sizeof(int);
    left.events = 3 * worker->stats().leaked;
    return left;
  }

 private:
  // What is in the hands of a caller whose device is lost is let go of.
  void end_handle() {
    if (!handle) return;
    try {
      handle->release();
    } catch (usage_error const&) {
      // It was released before.
    }
    handle.reset();
  }
};

}  // namespace escrow::test
