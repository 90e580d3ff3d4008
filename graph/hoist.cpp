// Transfers references to a caller that launches by itself.
#include "escrow/graph/hoist.hpp"

#include <new>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/reference_set.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"

namespace escrow::inline v0_1 {

namespace {

void report_unreleased(deleter_core& core) noexcept {
  try {
    core.report(usage_error("hoisted::~hoisted", "it ended with references that were not released",
                            "call release_after() or release()"));
  } catch (std::bad_alloc const&) {
    // No memory for the text; deleter_stats::leaked counts it.
  }
}

}  // namespace

class ESCROW_LOCAL hoisted::state {
 public:
  deferred_releases held;
  bool is_bare;
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
  for (auto const& each : state_->held) report_unreleased(each.set->core());
  leak(std::move(state_->held));
}

hoisted hoisted::take(survey_root const& root, std::vector<cudaGraph_t> const& bodies) {
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of("hoist", root, bodies);
  hoist_scope off(survey);
  std::unique_ptr<state> taken(new state{hold_all(off.sets()), !survey.lacks_bodies});
  off.keep_off();
  if (root.core != nullptr) root.core->forget_payloads();
  return hoisted(std::move(taken));
}

hoisted hoist(cudaGraph_t graph, std::vector<cudaGraph_t> const& bodies) {
  return hoisted::take(graph, bodies);
}

hoisted hoist(graph const& graph, std::vector<cudaGraph_t> const& bodies) {
  return hoisted::take(graph.core().get(), bodies);
}

void hoisted::release_after(stream_ref stream) {
  constexpr char const* call = "hoisted::release_after";
  state& mine = require(call);
  if (!usable_capture_of(call, stream).is_none()) {
    throw usage_error(call, "`stream` is being captured", "release after the capture has ended");
  }
  if (!mine.held.empty()) {
    auto const end = std::make_shared<launch_end>(device_of(stream));
    record_result const result = record_ready(end->ready, end->device, stream.get());
    if (result.outcome == record_outcome::failed) check(result.status, "cudaEventRecord");
    if (result.outcome != record_outcome::device_lost) {  // else nothing runs any more
      end->is_recorded = true;
      escrow::release_after(std::move(mine.held), end->ready.get(), end->device, end);
    }
  }
  state_.reset();
}

void hoisted::release_after(event_ref ready) {
  state& mine = require("hoisted::release_after");
  escrow::release_after(std::move(mine.held), ready.get(), current_device(), nullptr);
  state_.reset();
}

void hoisted::release() {
  static_cast<void>(require("hoisted::release"));
  state_.reset();  // the references are dropped
}

bool hoisted::is_bare() const noexcept {
  return state_ == nullptr || state_->is_bare;
}

resource_usage hoisted::held() const {
  return state_ == nullptr ? resource_usage{} : resource_usage_of(state_->held);
}

hoisted::state& hoisted::require(char const* call) const {
  if (state_ != nullptr) return *state_;
  throw usage_error(call, "it was released or moved from", "release once");
}

}  // namespace escrow::inline v0_1
