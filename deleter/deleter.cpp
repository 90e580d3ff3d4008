// The deleter's interface: how an owner gets on its way, and how one waits for it.
#include "escrow/deleter/deleter.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "drain_marker.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "escrow/deleter/user_object.hpp"
#include "escrow/detail/capture_device.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/retry_cleanup.hpp"
#include "release_hub_state.hpp"

namespace escrow {

deleter::deleter(deleter_options options) {
  std::unique_ptr<release_hub, void (*)(release_hub*)> hub(
      new release_hub(std::move(options)), [](release_hub* unused) { delete unused; });
  if (hub->state_->options.own_worker) hub->state_->thread.start();
  hub_ = hub.release();
  hub_->add_use();
}

deleter::~deleter() {
  release_hub::state& hub = *hub_->state_;
  hub.refuses.store(true, std::memory_order_relaxed);
  hub.trim();
  // acq_rel: with no other use left, everything that was done with the hub happens before its end.
  if (hub.uses.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    if (hub.thread.is_running()) hub.thread.stop_and_join();
    delete hub_;
    return;
  }
  hub.thread.leave_to_itself();
}

deleter& deleter::global() {
  // Leaked: graphs may release until the very end of the process (design law 6).
  static deleter& global = *new deleter;
  return global;
}

void deleter::retirement::put_back::operator()(retired_owner* unused) const noexcept {
  unused->clear();
  unused->reclaim_after(nullptr, {});
  unused->hub().put_retired_owner(*unused);
}

void deleter::require_open(char const* call) const {
  if (!hub_->is_open()) {
    throw usage_error(call, "the deleter was stopped",
                      "retire before stop(), or use another deleter");
  }
}

deleter::retirement deleter::begin() {
  require_open("deleter::retire");
  int const device = current_device();
  retirement begun(hub_->take_retired_owner(0, false), retirement::kind::now);
  begun.node->set_device(device);
  return begun;
}

deleter::retirement deleter::begin(cudaGraph_t graph) {
  require_open("deleter::retire");
  std::optional<std::uint64_t> const id = graph_id_of(graph);
  // Without an id it is kept alive all the same; only hoisting cannot find it.
  return begin_with_graph(graph, id.value_or(graph_registry::unidentified), current_device());
}

deleter::retirement deleter::begin_with_graph(cudaGraph_t graph, std::uint64_t id, int device) {
  retirement begun(hub_->take_retired_owner(0, false), retirement::kind::with_graph);
  begun.node->set_device(device);
  begun.graph = graph;
  begun.graph_id = id;
  return begun;
}

deleter::retirement deleter::begin(stream_ref stream, char const* call) {
  require_open(call);
  capture_info const capture = usable_capture_of(call, stream);
  if (capture.is_active()) {
    return begin_with_graph(capture.graph, capture.id, device_of_capturing(stream));
  }
  std::uint64_t const id = stream_id(stream);
  retirement begun(hub_->take_retired_owner(id, true), retirement::kind::after_stream);
  begun.stream = stream.get();
  begun.stream_id = id;
  return begun;
}

void deleter::finish(retirement&& begun) {
  switch (begun.how) {
    case retirement::kind::now:
      begun.node.release()->push();
      return;
    case retirement::kind::after_stream:
      return finish_after_stream(std::move(begun));
    case retirement::kind::with_graph:
      return finish_with_graph(std::move(begun));
  }
}

void deleter::finish_with_graph(retirement&& begun) {
  retired_owner& node = *begun.node.release();
  std::optional<user_object> object;
  try {
    object.emplace(node);
  } catch (...) {
    node.push();  // owners are destroyed on the worker, this one too
    throw;
  }
  node.enter_graph();
  object->move_to(begun.graph,
                  begun.graph_id);  // if this throws, ~user_object releases, and the node is pushed
}

void deleter::finish_after_stream(retirement&& begun) {
  // The owner has been taken: whatever fails now, it must not be destroyed before the work is done.
  retired_owner& node = *begun.node.release();
  int device = node.event_device_;
  record_result const recorded = record_ready(node.own_event_, device, begun.stream);
  node.event_device_ = static_cast<std::int16_t>(device);
  node.set_device(device);
  switch (recorded.outcome) {
    case record_outcome::recorded:
    case record_outcome::recorded_anew:
      node.reclaim_after(node.own_event_.get(), release_order::of_this_thread(begun.stream_id));
      return hub_->push_retired(node);
    case record_outcome::device_lost:
      return node.push();  // nothing uses the owner any more
    case record_outcome::failed:
      break;
  }
  release_hub::keep_for_ever(node);
  hub_->report(cuda_error(recorded.status, "cudaEventRecord"));
  throw cuda_error(recorded.status, "cudaEventRecord");
}

void deleter::drain() {
  constexpr auto for_ever = std::chrono::nanoseconds::max();
  static_cast<void>(drain_for(for_ever));
}

bool deleter::drain_for(std::chrono::nanoseconds timeout) {
  using clock = std::chrono::steady_clock;
  // Relaxed: only the reclaiming thread finds its own id here.
  if (hub_->state_->reclaiming_thread.load(std::memory_order_relaxed) ==
      std::this_thread::get_id()) {
    throw usage_error("deleter::drain",
                      "called from an owner's destructor, which it would wait for",
                      "drain on another thread");
  }
  auto const begin = clock::now();
  auto const marker = std::make_shared<drain_marker>(*hub_);
  drain_marker::send(marker);
  bool const polls = !hub_->state_->thread.is_running();
  auto const slice = polls ? std::chrono::nanoseconds(hub_->state_->options.poll_interval_min)
                           : std::chrono::milliseconds(50);
  while (true) {
    if (polls) poll();
    auto const left = timeout - (clock::now() - begin);
    if (marker->wait_for(std::clamp<std::chrono::nanoseconds>(left, {}, slice))) return true;
    // At process exit nothing is reclaimed any more.
    if (left <= slice || worker::is_process_exiting()) return false;
  }
}

void deleter::stop() {
  hub_->state_->refuses.store(true, std::memory_order_relaxed);
  drain();
}

bool deleter::stop_for(std::chrono::nanoseconds timeout) {
  hub_->state_->refuses.store(true, std::memory_order_relaxed);
  if (!drain_for(timeout)) return false;
  deleter_stats const now = stats();
  return now.in_graphs == 0 && now.held == 0;
}

std::size_t deleter::poll() {
  if (worker::is_process_exiting()) return 0;  // CUDA may be gone
  relaxed_capture_scope const relaxed;
  int const device = current_device();
  bool is_relaxed = true;
  std::size_t const count = hub_->state_->guarded_pass(is_relaxed);
  retry_cleanup([device] { return cudaSetDevice(device); });
  hub_->state_->bell->notify();  // a worker beside us must see what we left pending
  return count;
}

}  // namespace escrow
