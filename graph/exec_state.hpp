// The inside of a graph_exec: the handle, what it holds, and the end of its last launch.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "escrow/core/stream_ref.hpp"
#include "escrow/deleter/bundle_hold.hpp"
#include "escrow/deleter/launch_order.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "hoist_scope.hpp"

namespace escrow {

// The turn of one launch among the execs that share something with it: locks the launch orders of
// all that is held, in the order of their addresses.
class launch_turn {
 public:
  explicit launch_turn(bundle_holds const& held);
  launch_turn(launch_turn&&) = delete;
  ~launch_turn();

 private:
  bundle_holds const& held_;
};

class graph_exec::state {
 public:
  state(graph_survey const& survey, cudaGraph_t source, unsigned long long flags);
  state(state&&) = delete;
  ~state();

  [[nodiscard]] cudaGraphExec_t exec() const noexcept { return exec_; }
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
  [[nodiscard]] bundle_holds const& held() const noexcept { return held_; }

  void launch(stream_ref stream);
  void update(graph_survey const& survey, cudaGraph_t source);

 private:
  void wait_for_others(stream_ref stream) const;
  void note_launch(stream_ref stream);
  void hold_more(bundle_holds held) noexcept;

  cudaGraphExec_t exec_ = nullptr;
  bundle_holds held_;                // by the address of the bundles
  std::shared_ptr<launch_end> end_;  // of this exec's launches; null if it holds nothing
  bool is_bare_ = false;
};

}  // namespace escrow
