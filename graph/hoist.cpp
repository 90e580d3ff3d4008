// Transfers references to a caller that launches by itself.
#include "escrow/graph/hoist.hpp"

#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/own_stream.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"
#include "launch_orders.hpp"

namespace escrow::inline v0_1 {

namespace {

void report(deferred_releases const& held, std::exception const& error) noexcept {
  for (auto const& each : held) each.set->core().report(error);
}

void report_misuse(deferred_releases const& held, char const* what, char const* remedy) noexcept {
  try {
    report(held, usage_error("hoisted::~hoisted", what, remedy));
  } catch (std::bad_alloc const&) {
    // No memory for the text; deleter_stats::leaked counts it.
  }
}

void require_no_capture(char const* call, stream_ref stream) {
  refuse_capturing(call, stream, "`stream`", "call it after the capture has ended");
}

}  // namespace

class ESCROW_LOCAL hoisted::state {
 public:
  deferred_releases held;
  bool is_bare;
  std::optional<stream_ref> at_end = std::nullopt;  // see release_at_end()
  std::shared_ptr<launch_end> end = nullptr;        // of `at_end`; made in advance

  // From the first enter() on.
  launch_orders orders = {};
  std::shared_ptr<launch_end> launched = nullptr;    // the end of the last launch
  std::optional<stream_ref> entered = std::nullopt;  // between enter() and leave()

  // Others refuse to launch, as the end of the last launch is not known.
  [[nodiscard]] bool is_end_unknown() const noexcept {
    return launched != nullptr && launched->failure != cudaSuccess;
  }
};

hoisted::hoisted(std::unique_ptr<state> taken) noexcept : state_(std::move(taken)) {}

hoisted::hoisted(hoisted&& other) noexcept = default;

hoisted& hoisted::operator=(hoisted&& other) noexcept {
  hoisted taken(std::move(other));
  std::swap(state_, taken.state_);
  return *this;
}

hoisted::~hoisted() {
  if (state_ == nullptr) return;
  if (state_->entered) leave_at_end();
  for (int tries_left = 3; state_->at_end && tries_left != 0; --tries_left) {
    try {
      require_no_capture("hoisted::~hoisted", *state_->at_end);
      record_and_release(*state_->at_end);
      return;
    } catch (std::exception const& failed) {
      if (tries_left == 1) report(state_->held, failed);
    }
  }
  if (!state_->at_end) {
    report_misuse(state_->held, "it ended with references that were not released",
                  "call release_after(), release_at_end() or release()");
  }
  leak(std::move(state_->held));
}

hoisted hoist(graph_ref source, std::vector<cudaGraph_t> const& bodies, source_location where) {
  std::unique_ptr<hoisted::state> taken;
  detail::called_at("hoist", where, [&] {
    relaxed_capture_scope const relaxed;
    graph_survey const survey = survey_of("hoist", source.get(), source.core(), bodies);
    hoist_scope off("hoist", survey);
    if (off.sets().empty() && !survey.known.empty()) {
      throw usage_error("hoist", "the graph was hoisted before, and holds nothing new since",
                        "keep the first `hoisted` for all that is created from the graph");
    }
    taken.reset(new hoisted::state{hold_all(off.sets()), !survey.lacks_bodies});
    off.keep_off(source.core());
  });
  return hoisted(std::move(taken));
}

void hoisted::enter(stream_ref stream, std::chrono::nanoseconds wait_max) {
  constexpr char const* call = "hoisted::enter";
  state& mine = require_left(call);
  require_no_capture(call, stream);
  if (mine.launched == nullptr) {
    auto end = std::make_shared<launch_end>(current_device());
    mine.orders = launch_orders(mine.held);
    mine.launched = std::move(end);
    graph_registry::global().note_ordered(mine.held);
  }
  launch_lock const lock(call, mine.orders, wait_max);
  // Also for its own last launch: there may be several execs.
  static_cast<void>(mine.orders.wait_for_last(call, stream, mine.launched.get(), false));
  mine.orders.enter(mine.launched);
  mine.entered = stream;
}

void hoisted::leave(stream_ref stream) {
  constexpr char const* call = "hoisted::leave";
  state& mine = require(call);
  if (!mine.entered) throw usage_error(call, "enter() was not called", "call enter() before");
  require_no_capture(call, stream);
  launch_lock const lock(mine.orders);
  mine.entered.reset();
  mine.orders.leave();
  mine.orders.note_launch(stream, mine.launched, 0);
}

void hoisted::leave_at_end() noexcept {
  state& mine = *state_;
  report_misuse(mine.held, "it ended between enter() and leave()",
                "call leave(), also if the launch fails");
  try {
    leave(*mine.entered);
  } catch (std::exception const& error) {
    report(mine.held, error);
    if (!mine.entered) return;
    launch_lock const lock(mine.orders);
    mine.orders.leave();
  }
}

void hoisted::release_after(stream_ref stream, source_location where) {
  constexpr char const* call = "hoisted::release_after";
  detail::called_at(call, where, [&] {
    static_cast<void>(require_left(call));
    require_no_capture(call, stream);
    record_and_release(stream);
  });
}

void hoisted::record_and_release(stream_ref stream) {
  state& mine = *state_;
  if (!mine.held.empty()) {
    auto const end = mine.is_end_unknown() ? mine.launched
                     : mine.end != nullptr ? mine.end
                                           : std::make_shared<launch_end>(device_of(stream));
    cudaError_t const status = [&] {
      std::optional<launch_lock> lock;  // others may wait for that end
      if (end == mine.launched) lock.emplace(mine.orders);
      return record_end(*end, stream);
    }();
    if (end->failure != cudaSuccess) check(status, "cudaEventRecord");
    drop_after(std::move(mine.held), end);
  }
  state_.reset();
}

void hoisted::release_after(event_ref ready, source_location where) {
  constexpr char const* call = "hoisted::release_after";
  detail::called_at(call, where, [&] {
    static_cast<void>(require_left(call));
    relaxed_capture_scope const relaxed;  // otherwise the query could invalidate a capture
    cudaError_t const status = cudaEventQuery(ready.get());
    bool const is_pending = !succeeded(status) && status == cudaErrorNotReady;
    if (answer_of(status) == ready_answer::done) return release();  // also if its device is lost
    if (!is_pending) check(status, "cudaEventQuery");
    // An event of ours behind it, which claims can query as long as they need.
    own_stream const behind;
    ready.wait(behind.get());
    record_and_release(behind.get());
  });
}

void hoisted::release_at_end(stream_ref stream, source_location where) {
  constexpr char const* call = "hoisted::release_at_end";
  detail::called_at(call, where, [&] {
    state& mine = require(call);
    mine.end = std::make_shared<launch_end>(current_device());
    mine.at_end = stream;
  });
}

void hoisted::release(source_location where) {
  state& mine = detail::called_at("hoisted::release", where,
                                  [&]() -> state& { return require_left("hoisted::release"); });
  if (mine.is_end_unknown()) {
    launch_lock const lock(mine.orders);
    mine.launched->failure = cudaSuccess;
    mine.launched->is_recorded = false;  // nothing runs
  }
  state_.reset();  // the references are dropped
}

bool hoisted::is_bare() const noexcept {
  return state_ == nullptr || state_->is_bare;
}

resource_usage hoisted::held() const {
  return state_ == nullptr ? resource_usage{} : resource_usage_of(state_->held);
}

hoisted::state& hoisted::require_left(char const* call) const {
  state& mine = require(call);
  if (!mine.entered) return mine;
  throw usage_error(call, "it is between enter() and leave()", "call leave() first");
}

hoisted::state& hoisted::require(char const* call) const {
  if (state_ != nullptr) return *state_;
  throw usage_error(call, "it was released or moved from", "release once");
}

}  // namespace escrow::inline v0_1
