// The inside of a graph_exec: the handle, what it holds, and the ends of its last launch and
// upload.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/bundle_hold.hpp"
#include "escrow/deleter/launch_order.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/graph/node_payload.hpp"
#include "graph_core.hpp"
#include "hoist_scope.hpp"

namespace escrow {

// The launch orders of all that an exec holds, each once, by their addresses.
using launch_orders = std::vector<launch_order*>;

// The turn of one launch among the execs that share something with it: locks the launch orders.
class launch_lock {
 public:
  explicit launch_lock(launch_orders const& orders);
  launch_lock(launch_lock&&) = delete;
  ~launch_lock();

 private:
  launch_orders const& orders_;
};

class graph_exec::state {
 public:
  state(graph_survey const& survey, survey_root const& source, unsigned long long flags);
  state(state&&) = delete;
  ~state();

  [[nodiscard]] cudaGraphExec_t exec() const noexcept { return exec_; }
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
  [[nodiscard]] bundle_holds const& held() const noexcept { return held_; }

  void launch(stream_ref stream);
  void upload(stream_ref stream);
  void update(graph_survey const& survey, survey_root const& source);
  // The source has to be there.
  void set(cudaGraphNode_t node, cudaGraphNodeParams& params, detail::node_payload payload);
  // Whose nodes set() takes; null if the source was a plain handle.
  [[nodiscard]] std::shared_ptr<graph_core> source() const noexcept { return source_.lock(); }

 private:
  // What is held from some moment on, ready to take the place of what is held now.
  struct holding {
    holding(bundle_holds given, state const& before);

    bundle_holds held;
    launch_orders orders;
    std::shared_ptr<launch_end> end;  // null if nobody asks for it
    std::vector<graph_bundle const*> of_inner_graphs;
    std::shared_ptr<node_table const> payloads;
  };

  // Whether the exec is of this graph, whose nodes are where they were then.
  [[nodiscard]] bool is_unchanged(graph_core const* source) const noexcept;
  // What is held of a graph whose references are off.
  [[nodiscard]] holding holding_of(hoist_scope const& off, graph_survey const& survey,
                                   survey_root const& source) const;
  // Holds as now, but for one payload, with another, which has `order` if it is alone. Either may
  // be null.
  [[nodiscard]] bundle_holds holds_with(retired_owner* dropped, retired_owner* added,
                                        std::shared_ptr<launch_order> const& order) const;
  void hold(holding next) noexcept;
  void hold_more(holding& next) noexcept;
  // Lets go what was held, after the last launch, which `end` tells.
  static void let_go_after(bundle_holds held, std::shared_ptr<launch_end> const& end) noexcept;
  void wait_for_others(stream_ref stream) const;
  void wait_until_idle() const noexcept;
  void note_launch(stream_ref stream);

  cudaGraphExec_t exec_ = nullptr;
  bundle_holds held_;
  launch_orders orders_;             // of what is held
  std::shared_ptr<launch_end> end_;  // of this exec's launches; null if nobody asks for it
  bool is_bare_ = false;
  bool is_conditional_;                      // whether there are conditional nodes
  std::shared_ptr<launch_end> last_launch_;  // of a conditional one; null if there was none
  std::unique_ptr<launch_end> last_upload_;  // the same of uploads

  std::weak_ptr<graph_core> source_;
  std::uint64_t source_shape_ = 0;
  // Which payload of what is held is which node's; null if that is not known, and what set() takes
  // the place of stays until the next update().
  std::shared_ptr<node_table const> payloads_;
  std::vector<graph_bundle const*> of_inner_graphs_;  // what child graphs and bodies hold, too
};

}  // namespace escrow
