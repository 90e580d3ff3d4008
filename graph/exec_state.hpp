// SPDX-License-Identifier: Apache-2.0
// The implementation of graph_exec: handle, held references, ends of the last launch and upload.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <map>
#include <set>
#include <string>

#include "escrow/graph/graph_exec.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"
#include "holding.hpp"

namespace escrow::inline v0_2 {

class ESCROW_LOCAL graph_exec::state {
 public:
  // Whether the references come back to the graph after instantiation, or stay off, as after
  // hoist().
  enum class references : std::uint8_t { come_back, stay_off };

  state(char const* call, graph_ref source, instantiate_options const& options,
        references after = references::come_back);
  state(state&&) = delete;
  ~state();

  [[nodiscard]] cudaGraphExec_t exec() const noexcept { return exec_.get(); }
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
  [[nodiscard]] deferred_releases const& held() const noexcept { return now_.held; }

  // `id`: a stream_launcher's stream; the end is then due, if no other exec needs it. 0: it is
  // recorded. `holder`: the graph_exec, exec_set or stream_launcher that has it.
  void launch(char const* call, void const* holder, stream_ref stream, std::size_t times = 1,
              std::uint64_t id = 0);
  // The runs of one launch of the row; 1 if there is none.
  [[nodiscard]] std::size_t copies() const noexcept { return row_ == nullptr ? 1 : copies_wanted_; }
  void upload(stream_ref stream);
  void update(graph_ref source, std::vector<cudaGraph_t> const& bodies);

  // For a stream_launcher. Whether the last launches were not recorded.
  [[nodiscard]] bool is_end_due() const noexcept {
    return now_.end != nullptr && now_.end->known() == end_state::due;
  }
  // Records them on their stream, which must not be capturing. Throws cuda_error if it can neither
  // record nor wait; then they stay due.
  void record_due_end(stream_ref stream);
  // Reports why their end will never be known, and leaks what is held.
  void give_up_due_end(std::exception const& why) noexcept;

  // Updates it; `before` gets what was held. If CUDA refuses, returns why, and nothing has changed.
  // `call` is the public function, for errors.
  [[nodiscard]] std::string update(char const* call, graph_ref source,
                                   std::vector<cudaGraph_t> const& bodies, references after,
                                   holding& before);
  // For an exec that several graphs use in turn, each with a holding of its own (exec_set): updates
  // it to one of these graphs; `its` holding is exchanged for that of the graph before.
  void switch_to(cudaGraph_t source, holding& its);

  // The source must exist.
  void set(cudaGraphNode_t node, cudaGraphNodeParams& params, node_owner owner);
  void set_child(cudaGraphNode_t node, graph_core* child);
  void set_enabled(cudaGraphNode_t node, bool is_enabled);
  // The graph whose nodes set() takes; null if created from a plain handle.
  [[nodiscard]] std::shared_ptr<graph_core> source() const noexcept { return source_.lock(); }

 private:
  // Refuses a change after a launch whose end is not known: others wait for the exec's next one.
  void require_known_end(char const* call) const;
  [[nodiscard]] static hoist_ref note_of(references after);
  [[nodiscard]] holding holding_of(reference_sets const& sets) const;
  // Throws usage_error, naming `call`, if what the exec holds owns the holder. Reports, once, that
  // the source was changed since and the exec was not.
  void audit_launch(char const* call, void const* holder);
  // Gives CUDA's node of the exec other parameters, and keeps `added` for it, in place of what an
  // earlier change gave it.
  void change(cudaGraphNode_t node, cudaGraphNodeParams& params, reference_sets added);
  // Exchanges it for what was held before, which has an end of its own: launches record the new one
  // again and again.
  void hold(holding& next) noexcept;
  // Enqueues runs until none is `left`, or one fails, and returns CUDA's answer.
  cudaError_t enqueue(stream_ref stream, std::size_t& left) const noexcept;

  // Another row of the same size. Null: none is wanted, or possible. Throws cuda_error.
  [[nodiscard]] owned<cudaGraphExec_t> row_of(cudaGraph_t graph) const;
  [[nodiscard]] bool wants_row() const noexcept { return copies_wanted_ > 1; }

  holding now_;  // for the graph that it runs; without an end if no release needs it
  std::map<cudaGraphNode_t, reference_sets> of_nodes_;  // set by set(); in `now_`, too
  std::set<cudaGraphNode_t> disabled_;                  // updates leave them so
  owned<cudaGraphExec_t> exec_;
  // An exec of child nodes in a line, all of them copies of the graph: a launch of it runs that
  // several times, and costs less than as many launches (measured). Null: there is none.
  owned<cudaGraphExec_t> row_;
  std::size_t copies_wanted_;
  unsigned long long row_flags_;
  audit_use const audit_;    // of launches; no: of none
  bool runs_source_ = true;  // as that was when the exec was made or updated
  bool is_bare_ = false;
  bool is_conditional_ = false;  // has conditional nodes
  kernel_clusters clusters_;     // which no update changes
  exec_claims claims_;
  // Of a conditional exec, or one with a row: CUDA does not order the two. Null if there was none.
  std::shared_ptr<launch_end> last_launch_;
  std::unique_ptr<launch_end> last_upload_;  // the same of uploads
  std::weak_ptr<graph_core> source_;
};

}  // namespace escrow::inline v0_2
