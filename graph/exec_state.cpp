// What happens at instantiate, launch, update, and when an exec is destroyed in flight.
#include "exec_state.hpp"

#include <algorithm>
#include <utility>

#include "escrow/core/capture_info.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/insist.hpp"
#include "escrow/core/ready_event.hpp"
#include "escrow/core/relaxed_capture_scope.hpp"
#include "escrow/core/usage_error.hpp"
#include "escrow/deleter/release_hub.hpp"

namespace escrow {

namespace {

constexpr char const* refused = "graph_exec::launch, after a launch whose end was not recorded";

// The end of launches that are still to come, for what `held` holds; null if that is nothing.
std::shared_ptr<launch_end> end_for(bundle_holds const& held) {
  if (held.empty()) return nullptr;
  return std::make_shared<launch_end>(current_device());
}

// Whether the last launch is known to be over.
bool is_over(launch_end const& end) noexcept {
  if (!end.was_launched) return true;
  if (end.failure != cudaSuccess) return false;
  try {
    relaxed_capture_scope const relaxed;  // a query would kill a capture
    // A fault that it returns may be another device's.
    return succeeded(cudaEventQuery(end.ready.get()));
  } catch (std::exception const&) {
    return false;  // it could not be asked: the worker will
  }
}

// Lets go what an exec held, after its last launch.
void let_go_after(bundle_holds held, std::shared_ptr<launch_end> const& end) noexcept {
  if (held.empty() || is_over(*end)) return;  // the holds let go as they end
  for (auto& each : held) {
    if (end->failure != cudaSuccess) {
      each->hub().report(end->failure, "cudaEventRecord");
      bundle_hold::keep_for_ever(std::move(each));
    } else {
      bundle_hold::let_go_after(std::move(each), end->ready.get(), end->device, end);
    }
  }
}

}  // namespace

launch_turn::launch_turn(bundle_holds const& held) : held_(held) {
  for (auto const& each : held_) each->bundle().order().mutex.lock();
}

launch_turn::~launch_turn() {
  for (auto each = held_.rbegin(); each != held_.rend(); ++each) {
    (*each)->bundle().order().mutex.unlock();
  }
}

graph_exec::state::state(graph_survey const& survey, cudaGraph_t source, unsigned long long flags) {
  relaxed_capture_scope const relaxed;
  hoist_scope const off(survey);
  held_ = hold_all(off.bundles());
  end_ = end_for(held_);
  is_bare_ = off.is_bare();
  check(cudaGraphInstantiate(&exec_, source, flags), "cudaGraphInstantiate");
}

graph_exec::state::~state() {
  // Destroying an exec kills a capture from a thread that is not in Relaxed mode.
  insist_relaxed([this] { return cudaGraphExecDestroy(exec_); });
  let_go_after(std::move(held_), end_);
}

void graph_exec::state::launch(stream_ref stream) {
  if (held_.empty()) return check(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  launch_turn const turn(held_);
  wait_for_others(stream);
  check(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  note_launch(stream);
}

void graph_exec::state::wait_for_others(stream_ref stream) const {
  launch_end const* waited_for = nullptr;
  for (auto const& each : held_) {
    launch_end const* const last = each->bundle().order().last.get();
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
  end_->was_launched = true;
  for (auto const& each : held_) {
    std::shared_ptr<launch_end>& last = each->bundle().order().last;
    if (last != end_) last = end_;
  }
  record_result const result = record_ready(end_->ready, end_->device, stream.get());
  if (result.outcome == record_outcome::device_lost) end_->was_launched = false;  // nothing runs
  end_->failure = result.outcome == record_outcome::failed ? result.status : cudaSuccess;
  if (result.outcome != record_outcome::recorded_anew) check(result.status, "cudaEventRecord");
}

void graph_exec::state::update(graph_survey const& survey, cudaGraph_t source) {
  relaxed_capture_scope const relaxed;
  hoist_scope const off(survey);
  bundle_holds held = hold_all(off.bundles());
  std::shared_ptr<launch_end> end = end_for(held);
  held.reserve(held.size() + held_.size());
  cudaGraphExecUpdateResultInfo result{};
  check(cudaGraphExecUpdate(exec_, source, &result), "cudaGraphExecUpdate");
  is_bare_ = off.is_bare();
  if (end_ != nullptr && end_->failure != cudaSuccess) return hold_more(std::move(held));
  held_.swap(held);
  end_.swap(end);
  // Its own end, since the new one is recorded again and again.
  let_go_after(std::move(held), end);
}

void graph_exec::state::hold_more(bundle_holds held) noexcept {
  // Nothing tells when the last launch ends, but that it does before the next: so all stays until
  // then with the same end, which the next launch may record.
  for (auto& each : held_) {
    auto const is_same = [&](auto const& other) { return &other->bundle() == &each->bundle(); };
    if (std::ranges::none_of(held, is_same)) held.push_back(std::move(each));
  }
  std::ranges::sort(held, {}, [](auto const& each) { return &each->bundle(); });
  held_.swap(held);
}

}  // namespace escrow
