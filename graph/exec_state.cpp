// What happens at instantiate, launch, upload, and when an exec is destroyed in flight.
#include "exec_state.hpp"

#include <algorithm>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/graph_lifetime_lock.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

constexpr char const* refused = "graph_exec::launch, after a launch whose end was not recorded";

bool has_conditionals(cudaGraph_t graph) {
  inner_graphs const inner = inner_graphs_of(graph);
  return inner.conditionals != 0 || std::ranges::any_of(inner.children, [](cudaGraph_t each) {
           return has_conditionals(each);
         });
}

bool has_conditionals(graph_survey const& survey, cudaGraph_t root) {
  return survey.conditionals ? *survey.conditionals != 0 : has_conditionals(root);
}

// Lets `end` tell when what was enqueued on the stream last is over. Throws cuda_error; `end` then
// says how that went.
void record_end(launch_end& end, stream_ref stream) {
  end.was_launched = true;
  record_result const result = record_ready(end.ready, end.device, stream.get());
  if (result.outcome == record_outcome::device_lost) end.was_launched = false;  // nothing runs
  end.failure = result.outcome == record_outcome::failed ? result.status : cudaSuccess;
  if (result.outcome != record_outcome::recorded_anew) check(result.status, "cudaEventRecord");
}

}  // namespace

launch_lock::launch_lock(launch_orders const& orders) : orders_(orders) {
  for (launch_order* const each : orders_) each->mutex.lock();
}

launch_lock::~launch_lock() {
  for (auto each = orders_.rbegin(); each != orders_.rend(); ++each) (*each)->mutex.unlock();
}

graph_exec::state::state(graph_survey const& survey, survey_root const& source,
                         unsigned long long flags)
    : is_conditional_(has_conditionals(survey, source.handle)) {
  relaxed_capture_scope const relaxed;
  hoist_scope const off(survey);
  holding next = holding_of(off, survey, source);
  if (source.core != nullptr) {
    next.payloads = source.core->snapshot();
    source_ = source.core->weak_from_this();
    source_shape_ = source.core->shape();
  }
  {
    graph_lifetime_lock const turn;
    check(cudaGraphInstantiate(&exec_, source.handle, flags), "cudaGraphInstantiate");
  }
  is_bare_ = off.is_bare();
  hold(std::move(next));
}

graph_exec::state::~state() {
  wait_until_idle();
  {
    graph_lifetime_lock const turn;
    // Destroying an exec kills a capture from a thread that is not in Relaxed mode.
    retry_cleanup_relaxed([this] { return cudaGraphExecDestroy(exec_); });
  }
  let_go_after(std::move(held_), end_);
}

void graph_exec::state::launch(stream_ref stream) {
  if (end_ == nullptr) return check(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  launch_lock const turn(orders_);
  wait_for_others(stream);
  check(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  note_launch(stream);
}

void graph_exec::state::wait_for_others(stream_ref stream) const {
  launch_end const* waited_for = nullptr;
  for (launch_order const* const each : orders_) {
    launch_end const* const last = each->last.get();
    if (last == nullptr || last == end_.get() || last == waited_for) continue;
    if (!last->was_launched) continue;
    if (last->failure != cudaSuccess) throw cuda_error(last->failure, refused);
    // A wait would kill a capture, as a launch does.
    if (waited_for == nullptr && !capture_of(stream).is_none()) {
      throw usage_error("graph_exec::launch", "`stream` is being captured",
                        "add the graph as a child node (graph::add_child)");
    }
    check(cudaStreamWaitEvent(stream.get(), last->ready.get(), 0), "cudaStreamWaitEvent");
    waited_for = last;
  }
}

void graph_exec::state::note_launch(stream_ref stream) {
  if (is_conditional_ && last_launch_ != end_) last_launch_ = end_;
  for (launch_order* const each : orders_) {
    if (each->last != end_) each->last = end_;
  }
  record_end(*end_, stream);
}

void graph_exec::state::upload(stream_ref stream) {
  if (is_conditional_ && last_upload_ == nullptr) {
    last_upload_ = std::make_unique<launch_end>(current_device());
  }
  check(cudaGraphUpload(exec_, stream.get()), "cudaGraphUpload");
  // It ends after the uploads before it (source: cudaGraphUpload).
  if (last_upload_ != nullptr) record_end(*last_upload_, stream);
}

// CUDA waits for the launches and uploads of an exec with conditional nodes as it destroys it, and
// holds up launches, queries and instantiations of all threads meanwhile (measured); turns would
// wait, too.
void graph_exec::state::wait_until_idle() const noexcept {
  for (launch_end const* const end : {last_launch_.get(), last_upload_.get()}) {
    if (end == nullptr || !end->was_launched || end->failure != cudaSuccess) continue;
    retry_cleanup_relaxed([end] { return cudaEventSynchronize(end->ready.get()); });
  }
}

}  // namespace escrow
