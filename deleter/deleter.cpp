// SPDX-License-Identifier: Apache-2.0
// The deleter's interface: retiring owners and draining; and statistics in words.
#include "escrow/deleter/deleter.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/json.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/never_destroyed.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

namespace {

void require_times(deleter_options const& options) {
  auto const require = [](std::chrono::microseconds time, char const* problem) {
    if (time >= std::chrono::microseconds{0}) return;
    throw usage_error("deleter_options", problem, "give zero or more");
  };
  require(options.poll_interval_min, "`poll_interval_min` is negative");
  require(options.poll_interval_max, "`poll_interval_max` is negative");
  require(options.linger, "`linger` is negative");
}

}  // namespace

deleter_core* deleter::make_core(deleter_options options) {
  require_times(options);
  options.poll_interval_min = std::min(options.poll_interval_min, options.poll_interval_max);
  auto core = std::make_unique<deleter_core>(std::move(options));
  if (core->options_.own_worker) core->start_worker();
  core->add_use();
  return core.release();
}

bool deleter::is_there() const noexcept {
  return mark_ == mark();
}

deleter::~deleter() {
  mark_ = 0;
  core_->refuses_.store(true, std::memory_order_relaxed);
  core_->store_.trim();
  bool const has_thread = core_->thread_.joinable();
  bool const is_owed = !drop_one(core_->uses_);
  if (is_owed || has_thread) {
    core_->leave_to_worker(is_owed);
  } else {
    delete core_;
  }
}

namespace {

// Of the process-wide deleter. Released once it is made, acquired by who uses it.
constinit std::atomic<deleter_core*> global_core{nullptr};

}  // namespace

deleter_core* deleter_core::global_or_null() noexcept {
  return global_core.load(std::memory_order_acquire);
}

deleter& deleter::global() {
  // Graphs may release until the very end of the process (design law 6).
  static never_destroyed<deleter> only;
  [[maybe_unused]] static bool const is_known = [] {
    global_core.store(&only->core(), std::memory_order_release);
    return true;
  }();
  return *only;
}

void deleter::replace_on_error(std::function<void(std::exception const&)> handler) {
  core_->set_on_error(std::move(handler));
}

void deleter::require_open(char const* call) const {
  if (!core_->is_open()) {
    throw usage_error(call, "the deleter was stopped",
                      "retire before stop(), or use another deleter");
  }
}

deleter::retirement deleter::with_object(retirement begun, int device) {
  begun.object.reset(&core_->take_retired_object(0, false));
  begun.object->set_device(device);
  return begun;
}

deleter::retirement deleter::begin(char const* call) {
  require_open(call);
  int device = 0;
  cudaError_t const status = cudaGetDevice(&device);
  if (status == cudaErrorNotPermitted) {  // in a CUDA callback
    detail::clear_last_error(status);
    device = -1;  // any
  } else {
    check(status, "cudaGetDevice");
  }
  return with_object({}, device);
}

void deleter::refuse_endless(event_ref ready) {
  cudaError_t status = cudaSuccess;
  try {
    relaxed_capture_scope const relaxed;  // otherwise the query could invalidate a capture
    status = call_aside([&] { return cudaEventQuery(ready.get()); });
  } catch (cuda_error const&) {  // in a CUDA callback, e.g.: the worker asks
    return;
  }
  // The second is of a capture that is over (measured).
  bool const is_endless = status == cudaErrorCapturedEvent || status == cudaErrorInvalidValue ||
                          status == cudaErrorInvalidResourceHandle;
  if (!is_endless) return;
  throw cuda_error(status, "cudaEventQuery", source_location::current(),
                   "`ready` was recorded in a capture, or destroyed, and is never done: pass an "
                   "event that was recorded outside of captures, or retire the owner on the "
                   "capturing stream");
}

deleter::retirement deleter::begin_after(event_ref ready, char const* call) {
  if (ready.get() == nullptr) {
    throw usage_error(call, "`ready` is null", "pass a recorded event");
  }
  refuse_endless(ready);
  retirement begun = begin(call);
  begun.object->reclaim_after(ready.get(), {});
  return begun;
}

deleter::retirement deleter::begin(cudaGraph_t graph) {
  require_open("deleter::retire");
  if (graph == nullptr) {
    throw usage_error("deleter::retire", "`graph` is null: it was moved from or detached",
                      "pass a graph that exists");
  }
  std::optional<std::uint64_t> const id = graph_id_of(graph);
  if (!id) {
    throw usage_error("deleter::retire", "the graph's id cannot be learned",
                      "retire on a stream that captures the graph");
  }
  return with_object({.how = retirement::kind::with_graph, .graph = graph, .id = *id},
                     current_device());
}

deleter::retirement deleter::begin(stream_ref stream, char const* call) {
  require_open(call);
  return begin_use(stream, call);
}

deleter::retirement deleter::begin_use(stream_ref stream, char const* call) {
  capture_info const capture = usable_capture_of(call, stream);
  if (capture.is_active()) {
    graph_registry::global().forget_released(capture.id, capture.graph);
    return with_object(
        {.how = retirement::kind::in_capture, .graph = capture.graph, .id = capture.id},
        device_of_capturing(stream));
  }
  retirement begun{
      .how = retirement::kind::after_stream, .stream = stream.get(), .id = stream_id(stream)};
  begun.object.reset(&core_->take_retired_object(begun.id, true));
  return begun;
}

void deleter::finish(retirement&& begun) {
  if (!core_->options_.own_worker) [[unlikely]]
    core_->note_unpolled();
  retired_object& object = *begun.object.release();
  switch (begun.how) {
    case retirement::kind::now:
      return object.push();
    case retirement::kind::after_stream:
      return finish_after_stream(object, begun);
    case retirement::kind::in_capture:
    case retirement::kind::with_graph:
      return finish_with_graph(object, begun);
  }
}

void deleter::finish_with_graph(retired_object& object, retirement const& begun) {
  object.enter_graph();
  bool is_taken = false;
  try {
    hold_in_graph(object, object.use(), begun.graph, begun.id,
                  begun.how == retirement::kind::in_capture, nullptr, is_taken);
  } catch (...) {
    if (!is_taken) object.push();  // owners are always destroyed on the worker
    throw;
  }
}

void deleter::finish_after_stream(retired_object& object, retirement const& begun) {
  // The owner was taken: even on failure it must not be destroyed before the work is done.
  int device = object.event_device_;
  object.cover_uses(begun.id);
  record_result const recorded = record_ready(object.own_event_, device, begun.stream);
  object.event_device_ = static_cast<std::int16_t>(device);
  object.set_device(device);
  switch (recorded.outcome) {
    case record_outcome::recorded:
      object.reclaim_after(object.own_event_.get(), release_order::of_this_thread(begun.id));
      return core_->push_retired(object);
    case record_outcome::device_lost:
      return object.push();  // nothing runs any more
    case record_outcome::failed:
      break;
  }
  deleter_core::leak(object);
  core_->report(cuda_error(recorded.status, "cudaEventRecord"));
  throw cuda_error(recorded.status, "cudaEventRecord");
}

namespace {
// Where a wait without limit would not end: the callback's stream waits for it. Asked on this
// thread, whose answer it is.
void refuse_in_callback(char const* call, source_location where) {
  int device = 0;
  cudaError_t const status = cudaGetDevice(&device);
  if (status == cudaSuccess) return;
  detail::clear_last_error(status);
  if (status != cudaErrorNotPermitted) return;
  detail::refuse_at(where, call, "called in a CUDA callback, whose stream waits for it",
                    "call it outside of callbacks, or drain_for()");
}

// Where the simulator's time is stepped, and nobody steps, a wait would have no end.
class watched_steps {
 public:
  void require_steps(source_location where) {
    if (steps_ == 0) return;
    std::uint64_t const now = environment::simulated_steps();
    if (std::exchange(steps_, now) != now) at_ = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - at_ < std::chrono::seconds(1)) return;
    detail::refuse_at(where, "deleter::drain",
                      "the simulator's time is stepped, and nobody steps: what is "
                      "awaited does not run",
                      "call sim::step() until it returns false, and poll() a deleter "
                      "without a worker between the steps");
  }

 private:
  std::uint64_t steps_ = environment::simulated_steps();
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};
}  // namespace

void deleter::tell_waiting(source_location where) const noexcept {
  try {
    std::string const waits = "it has waited for " + std::to_string(told_after.count()) + " s: ";
    throw usage_error(usage_error("deleter::drain", waits + describe(),
                                  "see what is not done, and what its destructors wait for; "
                                  "drain_for() has a limit"),
                      where);
  } catch (std::exception const& error) {
    core_->report(error);
  }
}

void deleter::drain(source_location where) {
  refuse_in_callback("deleter::drain", where);
  static_cast<void>(drain_for(std::chrono::nanoseconds::max(), where));
}

bool deleter::drain_for(std::chrono::nanoseconds timeout, source_location where) {
  using clock = std::chrono::steady_clock;
  deleter_core& its = *core_;
  if (its.process_ != getpid()) {
    detail::refuse_at(where, "deleter::drain",
                      "called in a forked child, where neither CUDA nor the worker "
                      "goes on",
                      "fork before the first call of CUDA, or exec");
  }
  refuse_on_worker("deleter::drain", where);
  auto const begin = clock::now();
  bool is_told = timeout != std::chrono::nanoseconds::max();  // who gives a limit looks itself
  watched_steps steps;
  // Acquire and release: see epoch_.
  std::uint64_t const last = its.epoch_.fetch_add(1, std::memory_order_acq_rel);
  its.bell_->notify();
  bool const polls = !core_->thread_.joinable();
  auto const slice = polls ? std::chrono::nanoseconds(its.options_.poll_interval_min)
                           : std::chrono::milliseconds(50);
  while (true) {
    if (polls) poll(where);
    // Not the difference from the least of all times.
    auto const left = timeout.count() <= 0 ? timeout : timeout - (clock::now() - begin);
    std::unique_lock lock(its.drain_mutex_);
    auto const is_drained = [&] { return its.drained_ >= last; };
    auto const wait = std::clamp<std::chrono::nanoseconds>(left, {}, slice);
    if (its.drain_ended_.wait_for(lock, wait, is_drained)) return true;
    lock.unlock();
    if (!is_told && clock::now() - begin > told_after) {
      is_told = true;
      tell_waiting(where);
    }
    steps.require_steps(where);
    // Nothing is reclaimed during process exit.
    if (left <= slice || deleter_core::is_process_exiting()) return false;
  }
}

void deleter::refuse_on_worker(char const* call, source_location where) const {
  if (!core_->is_reclaiming_here()) return;
  detail::refuse_at(where, call, "called from an owner's destructor, which it would wait for",
                    "call it on another thread");
}

void deleter::stop(source_location where) {
  refuse_on_worker("deleter::stop", where);
  refuse_in_callback("deleter::stop", where);
  core_->refuses_.store(true, std::memory_order_relaxed);
  drain(where);
}

bool deleter::stop_for(std::chrono::nanoseconds timeout, source_location where) {
  refuse_on_worker("deleter::stop_for", where);
  core_->refuses_.store(true, std::memory_order_relaxed);
  if (!drain_for(timeout, where)) return false;
  deleter_stats const now = stats();
  return now.in_graphs == 0 && now.leaked == 0;
}

std::size_t deleter::poll(source_location where) {
  if (deleter_core::is_process_exiting()) return 0;  // CUDA may be unloaded
  return detail::called_at("deleter::poll", where, [&] {
    relaxed_capture_scope const relaxed;
    int const device = current_device();
    bool is_relaxed = true;
    std::size_t const count = core_->guarded_pass(is_relaxed);
    retry_cleanup([device] { return cudaSetDevice(device); });
    core_->bell_->notify();  // a worker must see what is still pending
    return count;
  });
}

deleter_stats deleter::stats() const noexcept {
  return {
      .reclaimed = core_->reclaimed(),
      .pending = core_->pending_.load(std::memory_order_relaxed),
      .pending_peak = core_->pending_peak_.load(std::memory_order_relaxed),
      .in_graphs = core_->in_graphs(),
      .leaked = core_->leaked(),
      .errors = core_->errors(),
  };
}

std::string to_json(deleter_stats const& stats) {
  return json_of({{"reclaimed", stats.reclaimed},
                  {"pending", stats.pending},
                  {"pending_peak", stats.pending_peak},
                  {"in_graphs", stats.in_graphs},
                  {"leaked", stats.leaked},
                  {"errors", stats.errors}});
}

std::string deleter::describe() const {
  deleter_stats const now = stats();
  std::string text = "deleter \"" + core_->options_.thread_name + "\": " + to_json(now);
  std::uint64_t const launches = std::min<std::uint64_t>(now.pending, core_->recycled_.deferred());
  auto const add = [&text](std::uint64_t count, char const* what) {
    if (count != 0) text += "\n  " + std::to_string(count) + what;
  };
  // Relaxed: only for the text.
  bool const is_in_pass =
      core_->reclaiming_thread_.load(std::memory_order_relaxed) != std::thread::id{};
  add(now.pending - launches, is_in_pass
                                  ? " waited for an event when the pass that is running began"
                                  : " wait for an event");
  add(launches, " reference sets of graphs wait for a last launch");
  if (!core_->options_.own_worker && !core_->nothing_arrived()) {
    text += "\n  releases have arrived since the last poll()";
  }
  if (is_in_pass) {
    text +=
        "\n  a pass is running: if it goes on, an owner's destructor waits for the GPU, or for a "
        "lock, perhaps of a thread in drain()";
  }
  return text + graph_registry::global().describe_sets(*core_);
}

}  // namespace escrow::inline v0_2
