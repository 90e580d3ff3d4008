// The interface of executable graphs; what happens is in exec_state.cpp.
#include "escrow/graph/graph_exec.hpp"

#include "escrow/core/error.hpp"
#include "exec_state.hpp"

namespace escrow {

namespace {
constexpr char const* constructing = "graph_exec::graph_exec";
constexpr char const* updating = "graph_exec::update";
}  // namespace

graph_exec::graph_exec(cudaGraph_t source, instantiate_options const& options)
    : graph_exec(survey_root(source), options) {}

graph_exec::graph_exec(graph const& source, instantiate_options const& options)
    : graph_exec(survey_root(source), options) {}

graph_exec::graph_exec(survey_root const& source, instantiate_options const& options)
    : state_(std::make_unique<state>(survey_of(constructing, source, options.bodies), source,
                                     options.flags)) {}

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

void graph_exec::launch(stream_ref stream) {
  require("graph_exec::launch").launch(stream);
}

void graph_exec::upload(stream_ref stream) {
  require("graph_exec::upload").upload(stream);
}

void graph_exec::update(cudaGraph_t source, std::vector<cudaGraph_t> const& bodies) {
  update(survey_root(source), bodies);
}

void graph_exec::update(graph const& source, std::vector<cudaGraph_t> const& bodies) {
  update(survey_root(source), bodies);
}

void graph_exec::update(survey_root const& source, std::vector<cudaGraph_t> const& bodies) {
  require(updating).update(survey_of(updating, source, bodies), source);
}

std::shared_ptr<graph_core> graph_exec::source(char const* call) const {
  return require(call).source();
}

void graph_exec::set_node(cudaGraphNode_t changed, cudaGraphNodeParams& params,
                          detail::node_payload payload) {
  require("graph_exec::set_node").set(changed, params, std::move(payload));
}

graph_exec::state& graph_exec::require(char const* call) const {
  if (state_ != nullptr) [[likely]]
    return *state_;
  throw usage_error(call, "the exec was moved from", "use the one that it was moved to");
}

}  // namespace escrow
