// The inside of a graph_exec: the handle, what it holds, and the ends of its last launch and
// upload.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "escrow/core/stream.hpp"
#include "escrow/detail/node_payload.hpp"
#include "escrow/detail/reference_set.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"

namespace escrow {

// The launch orders of what an exec holds and may write, each once, by their addresses.
class launch_orders {
 public:
  launch_orders() = default;
  // Throws std::bad_alloc.
  explicit launch_orders(deferred_releases const& held);
  launch_orders(launch_orders&& other) noexcept : orders_(std::exchange(other.orders_, {})) {}
  launch_orders& operator=(launch_orders&& other) noexcept {
    std::swap(orders_, other.orders_);
    return *this;
  }
  ~launch_orders();

  [[nodiscard]] auto begin() const noexcept { return orders_.begin(); }
  [[nodiscard]] auto end() const noexcept { return orders_.end(); }

 private:
  std::vector<std::shared_ptr<launch_order>> orders_;
};

// One launch at a time of the execs that may write the same: locks their orders.
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
  [[nodiscard]] deferred_releases const& held() const noexcept { return held_; }

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
    holding(reference_sets const& sets, bool is_conditional);

    deferred_releases held;
    launch_orders orders;
    std::shared_ptr<launch_end> end;  // null if no release waits for it
    std::vector<reference_set const*> of_inner_graphs;
    std::shared_ptr<node_table const> payloads;
  };

  // Whether the exec is of this graph, whose nodes are where they were then.
  [[nodiscard]] bool is_unchanged(graph_core const* source) const noexcept;
  // What is held of a graph whose references are off.
  [[nodiscard]] holding holding_of(hoist_scope const& off, graph_survey const& survey,
                                   survey_root const& source) const;
  // The sets as now, but for one payload, with another, which has `order` if it is alone. Either
  // may be null.
  [[nodiscard]] reference_sets sets_with(retired_object* dropped, retired_object* added,
                                         std::shared_ptr<launch_order> const& order) const;
  void hold(holding next) noexcept;
  // Drops what was held after the last launch, which `end` tells.
  static void release(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept;
  void wait_for_others(stream_ref stream);
  void wait_until_idle() const noexcept;
  void note_launch(stream_ref stream);

  cudaGraphExec_t exec_ = nullptr;
  deferred_releases held_;
  launch_orders orders_;             // of what is held
  std::shared_ptr<launch_end> end_;  // of this exec's launches; null if no release waits for it
  bool is_bare_ = false;
  bool is_conditional_;                      // whether there are conditional nodes
  std::shared_ptr<launch_end> last_launch_;  // of a conditional one; null if there was none
  std::unique_ptr<launch_end> last_upload_;  // the same of uploads

  std::weak_ptr<graph_core> source_;
  std::uint64_t source_shape_ = 0;
  // Which payload of what is held is which node's; null if that is not known, and what set() takes
  // the place of stays until the next update().
  std::shared_ptr<node_table const> payloads_;
  std::vector<reference_set const*> of_inner_graphs_;  // what child graphs and bodies hold, too
};

}  // namespace escrow
