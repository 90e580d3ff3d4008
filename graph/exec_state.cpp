// SPDX-License-Identifier: Apache-2.0
// Instantiation, launch, upload, destruction in flight, and replacing what an exec holds.
#include "exec_state.hpp"

#include <array>
#include <limits>
#include <sstream>
#include <utility>

#include "audited_call.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/profiler.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "escrow/internal/used_alone.hpp"
#include "why_invalid.hpp"

namespace escrow::inline v0_2 {

namespace {

// `enqueued`: how often the graph runs all the same.
[[gnu::cold, gnu::noinline]] void refuse_launch(cudaError_t status, char const* api,
                                                std::size_t enqueued = 0) {
  std::string detail;
  if (enqueued != 0) {
    detail = std::to_string(enqueued) + " of the runs were enqueued before";
  } else if (status == cudaErrorStreamCaptureUnsupported) {
    bool const is_upload = std::string_view(api) == "cudaGraphUpload";
    detail = is_upload ? "`stream` is being captured: upload before or after the capture"
                       : "`stream` is being captured: add the graph as a child node "
                         "(graph::add_child)";
  } else if (status == cudaErrorInvalidValue) {
    detail =
        "if the graph has an alloc_node, its memory is freed before the next launch: by a "
        "free_node, cudaFreeAsync, or cudaGraphInstantiateFlagAutoFreeOnLaunch in `flags`; "
        "otherwise the exec was destroyed by cudaGraphExecDestroy, which graph_exec does itself";
  }
  check(status, api, source_location::current(), detail);
}

// Which node of the new graph does not fit, and why.
std::string describe(cudaGraphExecUpdateResultInfo const& failed) {
  constexpr std::array<char const*, 9> reasons{"",
                                               "for an unknown reason",
                                               "its edges, or the number of nodes, differ",
                                               "it is of another type",
                                               "its kernel differs",
                                               "its parameters cannot be changed so",
                                               "what it uses cannot be updated",
                                               "its kernel cannot be changed to this one",
                                               "its attributes cannot be changed so"};
  auto const reason = static_cast<std::size_t>(failed.result);
  std::ostringstream text;
  text << "a node";
  if (failed.errorNode != nullptr) text << " (" << failed.errorNode << ')';
  text << " of `source` does not fit: " << (reason < reasons.size() ? reasons[reason] : "");
  return text.str();
}

// Whether CUDA took the graph before, for an exec of the same shape.
enum class fit { unknown, known };

// Returns why CUDA refused, or nothing if it has updated. Throws cuda_error, std::bad_alloc.
std::string updated(cudaGraphExec_t exec, cudaGraph_t source, fit expected) {
  cudaGraphExecUpdateResultInfo result{};
  cudaError_t status = cudaSuccess;
  {
    graph_lifetime_lock const lock;
    auto const update = [&] { return cudaGraphExecUpdate(exec, source, &result); };
    if (expected == fit::known) {
      status = update();
      static_cast<void>(succeeded(status));
    } else {
      status = call_aside(update);  // a refusal is no surprise: a set then tries another exec
    }
  }
  if (status == cudaErrorGraphExecUpdateFailure) return describe(result);
  if (status != cudaSuccess) throw cuda_error(status, "cudaGraphExecUpdate");
  return "";
}

// `refused`: what updated() returned.
void require_updated(std::string const& refused, char const* call, char const* advice) {
  if (refused.empty()) return;
  throw cuda_error(cudaErrorGraphExecUpdateFailure, "cudaGraphExecUpdate",
                   source_location::current(), call + (": " + refused) + "; " + advice);
}

// More takes an hour at least: it is a negative number, maybe one of 32 bits.
constexpr std::size_t runs_max = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t copies_max = std::size_t{1} << 20;

constexpr char const* creating_exec = "graph_exec::graph_exec";

std::string_view advice_for(cudaError_t instantiated, bool is_conditional) noexcept {
  if (instantiated != cudaErrorNotSupported) return {};
  if (is_conditional) {
    return "a graph with conditional nodes has one exec at a time, and none beside a clone or an "
           "embedded copy that was made before these nodes: destroy that first";
  }
  return "a graph with memory nodes has one exec at a time: destroy that first; a body has none";
}

}  // namespace

// Made before anything changes. An exec_set has the graph, too, so that nothing is released.
hoist_ref graph_exec::state::note_of(references after) {
  return after == references::stay_off ? std::make_shared<hoist_note>() : nullptr;
}

graph_exec::state::state(char const* call, graph_ref source, instantiate_options const& options,
                         references after)
    : copies_wanted_(options.copies),
      // Those that matter to children.
      row_flags_(options.flags & cudaGraphInstantiateFlagUseNodePriority),
      audit_(is_audited(audited_call::capture, options.audit) ? options.audit : audit_use::no) {
  profiler_range const range("escrow: instantiate");
  if (options.copies > copies_max) {
    throw usage_error(call, "`options.copies` is " + detail::size_text(options.copies),
                      "each takes the memory of an exec: pass 2 to some hundred");
  }
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of(call, source.get(), source.core(), options.bodies, true);
  refuse_released(call, source, survey.released.get(), options.bodies);  // first: it says more
  refuse_audited(call, source, options.audit, audited_call::instantiate, options.bodies);
  is_bare_ = !survey.lacks_bodies;
  is_conditional_ = survey.conditionals != 0;
  clusters_ = survey.clusters;
  claims_ = survey.claims;
  if (source.core() != nullptr) source_ = source.core()->weak_from_this();
  hoist_scope off(call, survey);
  hoist_ref const by = note_of(after);
  now_ = holding_of(off.sets());
  cudaGraphExec_t made = nullptr;
  {
    graph_lifetime_lock const lock;
    cudaError_t const status = cudaGraphInstantiate(&made, source.get(), options.flags);
    std::string why;
    if (status == cudaErrorInvalidValue) {
      std::vector<cudaGraph_t> bodies = options.bodies;
      if (source.core() != nullptr) {
        for (auto const& each : source.core()->bodies) bodies.push_back(each.graph);
      }
      why = why_invalid(source.get(), bodies, options.flags);
    } else {
      why = advice_for(status, survey.conditionals != 0);
    }
    check(status, "cudaGraphInstantiate", source_location::current(), why);
  }
  exec_.reset(made);
  row_ = row_of(source.get());
  if (after == references::stay_off) off.keep_off(source.core(), by);
  graph_registry::global().note_ordered(now_.held);
  if ((options.flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) {
    graph_registry::global().note_device_launches(now_.held);
  }
  // Relaxed, as the other: a number.
  graph_registry::global().execs.fetch_add(1, std::memory_order_relaxed);
}

// The exec is destroyed, and then what it held: the recycle lane waits for the end of the last
// launch and then drops the references (recycle_lane::release). The last reference closes the set;
// slots return to their pools, and the worker destroys owners (reference_set::recycle, destroy).
graph_exec::state::~state() {
  graph_registry::global().execs.fetch_sub(1, std::memory_order_relaxed);
  // Destroying an exec with conditional nodes, CUDA waits for its launches and uploads, and
  // meanwhile blocks launches, queries and instantiations of all threads (measured);
  // graph_lifetime_lock would, too.
  if (!is_conditional_) return;
  for (launch_end* const end : {last_launch_.get(), last_upload_.get()}) {
    if (end == nullptr || !end->record_late() || end->known() != end_state::recorded) continue;
    retry_cleanup_relaxed([end] { return cudaEventSynchronize(end->ready.get()); });
  }
}

// It must hold no user objects. CUDA does not embed a graph with conditional or memory nodes, or
// not instantiate it twice.
owned<cudaGraphExec_t> graph_exec::state::row_of(cudaGraph_t graph) const {
  if (!wants_row() || !disabled_.empty()) return nullptr;  // they would run in a row
  auto const row = new_graph();
  cudaGraphNode_t last = nullptr;
  for (std::size_t i = 0; i < copies_wanted_; ++i) {
    cudaGraphNode_t const before = last;
    cudaError_t const status = call_aside([&] {
      graph_lifetime_lock const lock;
      return cudaGraphAddChildGraphNode(&last, row.get(), &before, i == 0 ? 0 : 1, graph);
    });
    if (status == cudaErrorNotSupported) return nullptr;
    check(status, "cudaGraphAddChildGraphNode");
  }
  cudaGraphExec_t made = nullptr;
  cudaError_t const status = call_aside([&] {
    graph_lifetime_lock const lock;
    return cudaGraphInstantiate(&made, row.get(), row_flags_);
  });
  if (status == cudaErrorNotSupported) return nullptr;
  check(status, "cudaGraphInstantiate");
  return owned<cudaGraphExec_t>(made);
}

cudaError_t graph_exec::state::enqueue(stream_ref stream, std::size_t& left) const noexcept {
  cudaError_t status = cudaSuccess;
  std::size_t const at_once = copies();
  while (status == cudaSuccess && left != 0) {
    bool const is_row = at_once > 1 && left >= at_once;
    status = cudaGraphLaunch(is_row ? row_.get() : exec(), stream.get());
    if (status == cudaSuccess) left -= is_row ? at_once : 1;
  }
  return status;
}

void graph_exec::state::launch(char const* call, void const* holder, stream_ref stream,
                               std::size_t times, std::uint64_t id) {
  if (audit_ != audit_use::no) [[unlikely]]
    audit_launch(call, holder);
  std::size_t left = times;
  auto const check_enqueued = [&](cudaError_t status) {
    if (status != cudaSuccess) [[unlikely]]
      refuse_launch(status, "cudaGraphLaunch", times - left);
  };
  if (times == 0) return;
  if (times > runs_max) {
    throw usage_error(call, "`times` is " + std::to_string(times),
                      "pass how often the graph is to run; it looks like a negative number");
  }
  if (now_.end == nullptr) return check_enqueued(enqueue(stream, left));
  launch_lock const lock(call, now_);
  launch_end* const of_row = wants_row() ? last_launch_.get() : nullptr;
  std::uint64_t const asked = now_.wait_for_last(call, stream, now_.end.get(), of_row);
  cudaError_t const status = enqueue(stream, left);
  if (left == times) check_enqueued(status);
  if ((is_conditional_ || wants_row()) && last_launch_ != now_.end) last_launch_ = now_.end;
  bool const is_due = id != 0 && !is_conditional_ && now_.put_off_end(id);
  try {
    if (!is_due) now_.note_launch(stream, asked, recorded_by::launcher);
  } catch (cuda_error const& unrecorded) {
    if (left == 0) throw;
    refuse_launch(unrecorded.status(), "cudaEventRecord", times - left);
  }
  check_enqueued(status);
}

void graph_exec::state::record_due_end(stream_ref stream) {
  launch_lock const lock(now_);
  // Not the orders' last launch: another one may have come since, on this stream or after that.
  check(record_end(*now_.end, stream), "cudaEventRecord");
}

void graph_exec::state::give_up_due_end(std::exception const& why) noexcept {
  for (auto const& each : now_.held) each.set->core().report(why);
  leak(std::move(now_.held));
  launch_lock const lock(now_);
  if (now_.end->failure == cudaSuccess) now_.end->failure = cudaErrorUnknown;
  now_.end->become(end_state::unknown);
}

// Not an exec with copies: one of its two execs may never be launched. While an uploaded exec of 16
// or more nodes waits for its first launch, each kernel of each graph of the process takes 0.18 us
// more, and for good if the exec is destroyed before (measured, CUDA 13.0, H100).
void graph_exec::state::upload(stream_ref stream) {
  if (row_ != nullptr) return;
  group_pins pins;
  now_.pin("graph_exec::upload", pins);
  if (is_conditional_ && last_upload_ == nullptr) {
    last_upload_ = std::make_unique<launch_end>(current_device());
  }
  cudaError_t const status = cudaGraphUpload(exec(), stream.get());
  if (status != cudaSuccess) refuse_launch(status, "cudaGraphUpload");
  // It ends after earlier uploads (source: cudaGraphUpload).
  if (last_upload_ != nullptr) check(record_end(*last_upload_, stream), "cudaEventRecord");
}

void graph_exec::state::require_known_end(char const* call) const {
  if (now_.end == nullptr || now_.end->known() != end_state::unknown) return;
  refuse_unknown(call, *now_.end,
                 "the end of the last launch is not known: launch the exec again before");
}

holding graph_exec::state::holding_of(reference_sets const& sets) const {
  if (sets.empty() && !is_conditional_ && !wants_row()) return {};
  return holding(sets);
}

std::string graph_exec::state::update(char const* call, graph_ref source,
                                      std::vector<cudaGraph_t> const& bodies, references after,
                                      holding& before) {
  relaxed_capture_scope const relaxed;
  graph_survey survey = survey_of(call, source.get(), source.core(), bodies, true);
  refuse_released(call, source, survey.released.get(), bodies);
  if (survey.clusters != clusters_ && !(survey.clusters.all.empty() && clusters_.all.empty())) {
    return "a kernel runs in clusters of another size, or nodes with clusters were added in "
           "another order, which CUDA's update would not see";
  }
  hoist_scope off(call, survey);
  hoist_ref const by = note_of(after);
  holding next = holding_of(off.sets());
  owned<cudaGraphExec_t> row = row_of(source.get());
  std::string refused = updated(exec(), source.get(), fit::unknown);
  if (!refused.empty()) return refused;
  if (after == references::stay_off) off.keep_off(source.core(), by);
  is_bare_ = !survey.lacks_bodies;
  runs_source_ = source.core() != nullptr && source.core() == source_.lock().get();
  claims_.update(std::move(survey.claims));
  row_ = std::move(row);
  of_nodes_.clear();
  hold(next);
  before = std::move(next);
  return refused;
}

void graph_exec::state::update(graph_ref source, std::vector<cudaGraph_t> const& bodies) {
  constexpr char const* call = "graph_exec::update";
  require_known_end(call);
  holding before;
  require_updated(update(call, source, bodies, references::come_back, before), call,
                  "create another graph_exec from `source`");
}

void graph_exec::state::switch_to(cudaGraph_t source, holding& its) {
  group_pins pins;
  its.pin("exec_set::launch", pins);
  relaxed_capture_scope const relaxed;
  require_updated(updated(exec(), source, fit::known), "exec_set::launch",
                  "do not change a graph after adding it");
  std::swap(now_, its);
}

void graph_exec::state::hold(holding& next) noexcept {
  std::swap(now_, next);
  graph_registry::global().note_ordered(now_.held);
}

graph_exec::graph_exec(graph_ref source, instantiate_options const& options, source_location where)
    : state_(detail::called_at(creating_exec, where, [&] {
        return std::make_unique<state>(creating_exec, source, options);
      })) {}

graph_exec::graph_exec(graph_exec&& other) noexcept = default;
graph_exec& graph_exec::operator=(graph_exec&& other) noexcept = default;
graph_exec::~graph_exec() = default;

cudaGraphExec_t graph_exec::get() const noexcept {
  return state_ == nullptr ? nullptr : state_->exec();
}

bool graph_exec::is_bare() const noexcept {
  return state_ == nullptr || state_->is_bare();
}

resource_usage graph_exec::held() const {
  return state_ == nullptr ? resource_usage{} : resource_usage_of(state_->held());
}

void graph_exec::launch(stream_ref stream, source_location where) {
  constexpr char const* call = "graph_exec::launch";
  detail::called_at(call, where, [&] { require(call).launch(call, this, stream); });
}

void graph_exec::launch_many(stream_ref stream, std::size_t times, source_location where) {
  constexpr char const* call = "graph_exec::launch_many";
  detail::called_at(call, where, [&] { require(call).launch(call, this, stream, times); });
}

std::size_t graph_exec::copies() const noexcept {
  return state_ == nullptr ? 1 : state_->copies();
}

void graph_exec::upload(stream_ref stream, source_location where) {
  constexpr char const* call = "graph_exec::upload";
  detail::called_at(call, where, [&] { require(call).upload(stream); });
}

void graph_exec::update(graph_ref source, std::vector<cudaGraph_t> const& bodies,
                        source_location where) {
  constexpr char const* call = "graph_exec::update";
  detail::called_at(call, where, [&] { require(call).update(source, bodies); });
}

graph_exec::state& graph_exec::require(char const* call) const {
  tell_used_alone(this, call);
  if (state_ != nullptr) [[likely]]
    return *state_;
  throw usage_error(call, "the exec was moved from", "use the one that it was moved to");
}

}  // namespace escrow::inline v0_2
