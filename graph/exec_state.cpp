// Instantiation, launch, upload, and destruction in flight.
#include "exec_state.hpp"

#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/profiler.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

namespace {

[[gnu::cold, gnu::noinline]] void refuse_launch(cudaError_t status, char const* api) {
  check(status, api, source_location::current(),
        status != cudaErrorStreamCaptureUnsupported
            ? ""
            : "`stream` is being captured: add the graph as a child node (graph::add_child)");
}

void check_launch(cudaError_t status, char const* api) {
  if (status != cudaSuccess) [[unlikely]]
    refuse_launch(status, api);
}

constexpr char const* creating_exec = "graph_exec::graph_exec";

}  // namespace

graph_exec::state::state(char const* call, graph_ref source, instantiate_options const& options,
                         references after) {
  profiler_range const range("escrow: instantiate");
  relaxed_capture_scope const relaxed;
  graph_survey const survey = survey_of(call, source.get(), source.core(), options.bodies);
  is_bare_ = !survey.lacks_bodies;
  is_conditional_ = survey.conditionals != 0;
  if (source.core() != nullptr) source_ = source.core()->weak_from_this();
  hoist_scope off(call, survey);
  now_ = holding_of(off.sets());
  {
    graph_lifetime_lock const lock;
    check(cudaGraphInstantiate(&exec_, source.get(), options.flags), "cudaGraphInstantiate");
  }
  if (after == references::stay_off) off.keep_off(source.core());
  graph_registry::global().note_ordered(now_.held);
}

graph_exec::state::~state() {
  wait_until_idle();
  destroy_exec(exec_);
  // The recycle lane waits for the end of the last launch and then drops the references
  // (recycle_lane::release). The last reference closes the set; slots return to their pools,
  // and the worker destroys owners (reference_set::recycle, destroy).
  drop_after(std::move(now_.held), now_.end);
}

void graph_exec::state::launch(stream_ref stream, char const* call, std::uint64_t id) {
  if (now_.end == nullptr) {
    return check_launch(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  }
  launch_lock const lock(call, now_.orders);
  std::uint64_t const asked = now_.orders.wait_for_last(call, stream, now_.end.get());
  check_launch(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  if (id != 0 && !is_conditional_ && now_.orders.put_off_end(id, now_.end)) return;
  if (is_conditional_ && last_launch_ != now_.end) last_launch_ = now_.end;
  now_.orders.note_launch(stream, now_.end, asked);
}

void graph_exec::state::record_due_end(stream_ref stream) {
  launch_lock const lock(now_.orders);
  // Not the orders' last launch: another one may have come since, on this stream or after that.
  check(record_end(*now_.end, stream), "cudaEventRecord");
}

void graph_exec::state::give_up_due_end(std::exception const& why) noexcept {
  for (auto const& each : now_.held) each.set->core().report(why);
  leak(std::move(now_.held));
  launch_lock const lock(now_.orders);
  if (now_.end->failure == cudaSuccess) now_.end->failure = cudaErrorUnknown;
  now_.end->state = end_state::unknown;
}

void graph_exec::state::upload(stream_ref stream) {
  if (is_conditional_ && last_upload_ == nullptr) {
    last_upload_ = std::make_unique<launch_end>(current_device());
  }
  check_launch(cudaGraphUpload(exec_, stream.get()), "cudaGraphUpload");
  // It ends after earlier uploads (source: cudaGraphUpload).
  if (last_upload_ != nullptr) check(record_end(*last_upload_, stream), "cudaEventRecord");
}

// Destroying an exec with conditional nodes, CUDA waits for its launches and uploads, and meanwhile
// blocks launches, queries and instantiations of all threads (measured); graph_lifetime_lock would,
// too.
void graph_exec::state::wait_until_idle() const noexcept {
  for (launch_end const* const end : {last_launch_.get(), last_upload_.get()}) {
    if (end == nullptr || end->state != end_state::recorded) continue;
    retry_cleanup_relaxed([end] { return cudaEventSynchronize(end->ready.get()); });
  }
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
  detail::called_at(call, where, [&] { require(call).launch(stream); });
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

std::shared_ptr<graph_core> graph_exec::source(char const* call) const {
  return require(call).source();
}

void graph_exec::set_node(cudaGraphNode_t changed, cudaGraphNodeParams& params,
                          retired_object::loan payload) {
  require("graph_exec::set_node").set(changed, params, std::move(payload));
}

graph_exec::state& graph_exec::require(char const* call) const {
  if (state_ != nullptr) [[likely]]
    return *state_;
  throw usage_error(call, "the exec was moved from", "use the one that it was moved to");
}

}  // namespace escrow::inline v0_1
