// SPDX-License-Identifier: Apache-2.0
// Graphs: checked calls, registered copies, and capture-safe destruction.
#include "escrow/graph/graph.hpp"

#include <cuda.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "audited_call.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/last_error.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"
#include "kept_leases.hpp"

namespace escrow::inline v0_2 {

namespace {

// Nodes whose end no other node waits for.
std::vector<cudaGraphNode_t> last_nodes(cudaGraph_t graph) {
  graph_edges const edges = edges_of(graph);
  std::unordered_set<cudaGraphNode_t> awaited;
  for (std::size_t i = 0; i < edges.from.size(); ++i) {
    if (is_full_dependency(edges.data[i])) awaited.insert(edges.from[i]);
  }
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph);
  std::erase_if(nodes, [&awaited](cudaGraphNode_t node) { return awaited.contains(node); });
  return nodes;
}

constexpr char const* creating = "graph::graph";

std::string_view advice_for_copy(cudaError_t status) noexcept {
  if (status != cudaErrorNotSupported) return {};
  return "CUDA copies no graph with conditional or memory nodes: build it twice";
}

void refuse_itself(char const* call, graph_core const& child, cudaGraph_t in) {
  auto const is_it = [in](auto const& body) { return body.graph == in; };
  if (child.native() != in && std::ranges::none_of(child.bodies, is_it)) return;
  throw usage_error(call, "`child` is the graph that it would become a part of",
                    "pass a clone() of it, which has no conditional nodes");
}

}  // namespace

graph::graph(std::shared_ptr<graph_core> core) noexcept : shared_(std::move(core)) {}

graph::graph(source_location where)
    : graph(detail::called_at(creating, where,
                              [] { return std::make_shared<graph_core>(new_graph()); })) {}

graph::graph(deleter& its, source_location where) : graph(where) {
  shared_->set_keeper(its.core());
}

graph::graph(cudaGraph_t native, std::uint64_t id, source_location where)
    : graph(detail::called_at(creating, where, [&] {
        if (native == nullptr) {
          throw usage_error("graph", "`native` is null",
                            "look at the status of the call that should have made it, e.g. of "
                            "cudaStreamEndCapture");
        }
        graph_registry const& registry = graph_registry::global();
        if (registry.known(native).is_owned || registry.is_body(native)) {
          throw usage_error("graph", "`native` is the graph, or a body, of another escrow::graph",
                            "use that one, or pass what its detach() returns");
        }
        auto its = std::make_shared<graph_core>(owned<cudaGraph_t>(native), id);
        its->note_exposed();  // others had the handle
        return its;
      })) {}

graph::graph(graph&& other) noexcept = default;
graph& graph::operator=(graph&& other) noexcept = default;
graph::~graph() = default;

graph_core& detail::require_graph(char const* call, graph_core* core) {
  if (core != nullptr && core->native() != nullptr) return *core;
  throw usage_error(call, "the graph was destroyed, moved from or detached",
                    "keep the graph while it, or nodes of it, are used");
}

cudaGraph_t graph::get(source_location where) const {
  if (shared_ == nullptr) return nullptr;
  return detail::called_at("graph::get", where, [&] { return shared_->expose(); });
}

std::uint64_t graph::id() const noexcept {
  return shared_ == nullptr ? 0 : shared_->id();
}

cudaGraph_t graph::detach(source_location where) {
  if (shared_ == nullptr) return nullptr;
  return detail::called_at("graph::detach", where, [&] { return shared_->detach(); });
}

graph_ref::graph_ref(graph const& of) noexcept
    : native_(of.core() == nullptr ? nullptr : of.core()->native()), core_(of.core().get()) {}

graph graph::clone(source_location where) const {
  constexpr char const* call = "graph::clone";
  return detail::called_at(call, where, [&] {
    graph_core& core = detail::require_graph(call, shared_.get());
    graph_survey const survey = survey_for_copy(call, core);
    cudaGraph_t made = nullptr;
    {
      graph_lifetime_lock const turn;
      cudaError_t const status = cudaGraphClone(&made, core.native());
      check(status, "cudaGraphClone", source_location::current(), advice_for_copy(status));
    }
    graph copy(std::make_shared<graph_core>(owned<cudaGraph_t>(made)));
    note_copies(survey, core.native(), made, made);
    copy.shared_->copy_payloads(core);
    return copy;
  });
}

cudaGraphNode_t graph::embed(char const* call, graph_core* child, cudaGraph_t in,
                             std::span<cudaGraphNode_t const> after) {
  graph_core& core = detail::require_graph(call, child);
  refuse_itself(call, core, in);
  graph_survey const survey = survey_for_copy(call, core);
  refuse_overwriting(call, survey.known, in, after);
  cudaGraphNode_t node = nullptr;
  {
    graph_lifetime_lock const turn;
    cudaError_t const status =
        cudaGraphAddChildGraphNode(&node, in, after.data(), after.size(), core.native());
    check(status, "cudaGraphAddChildGraphNode", source_location::current(),
          advice_for_copy(status));
  }
  try {
    cudaGraph_t copy = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &copy), "cudaGraphChildGraphNodeGetGraph");
    note_copies(survey, core.native(), copy, in);
  } catch (...) {
    cudaError_t const status = retry_cleanup_relaxed([node] {
      graph_lifetime_lock const turn;
      return cudaGraphDestroyNode(node);
    });
    if (status == cudaSuccess || is_sticky(status)) throw;
    // CUDA removes no node from a graph with memory nodes. The child was added as requested.
  }
  return node;
}

void graph::embed_anew(char const* call, graph_core* child, graph_core& core, cudaGraph_t in,
                       cudaGraphNode_t node) {
  graph_core& source = detail::require_graph(call, child);
  refuse_itself(call, source, in);
  graph_survey const survey = survey_for_copy(call, source);
  graph_edges const edges = edges_of(in);
  std::vector<cudaGraphNode_t> after;
  for (std::size_t i = 0; i < edges.to.size(); ++i) {
    if (edges.to[i] == node) after.push_back(edges.from[i]);
  }
  refuse_overwriting(call, survey.known, in, after);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeGraph;
  params.graph.graph = source.native();
  {
    graph_lifetime_lock const turn;
    check(cudaGraphNodeSetParams(node, &params), "cudaGraphNodeSetParams");
  }
  core.note_changed();
  try {
    cudaGraph_t copy = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &copy), "cudaGraphChildGraphNodeGetGraph");
    note_copies(survey, source.native(), copy, core.native());
  } catch (std::exception const& why) {
    // What was there is gone: the child was changed as requested, but is not registered.
    core.report(why,
                "the node has its new child graph, and execs that launch it pay for what it "
                "holds (graph_exec::is_bare)");
  }
}

cudaGraphNode_t graph::add_child(graph const& child, source_location where) {
  constexpr char const* call = "graph::add_child";
  return detail::called_at(call, where, [&] {
    graph_core& core = detail::require_graph(call, shared_.get());
    std::vector<cudaGraphNode_t> const last = last_nodes(core.native());
    return embed(call, child.shared_.get(), core.native(), last);
  });
}

void graph::write_dot(std::filesystem::path const& file, unsigned flags,
                      source_location where) const {
  constexpr char const* call = "graph::write_dot";
  detail::called_at(call, where, [&] {
    graph_core const& core = detail::require_graph(call, shared_.get());
    cudaError_t const status = cudaGraphDebugDotPrint(core.native(), file.c_str(), flags);
    check(status, "cudaGraphDebugDotPrint", source_location::current(),
          status == cudaErrorOperatingSystem ? "`file` cannot be written: " + file.string() : "");
  });
}

resource_usage graph::held(source_location where) const {
  constexpr char const* call = "graph::held";
  return detail::called_at(call, where, [&] {
    graph_ref const self(*this);
    graph_survey const survey = survey_of(call, self.get(), self.core(), {});
    return graph_registry::global().describe(survey.known);
  });
}

namespace {

using end_function = CUresult(CUDAAPI*)(CUstream, CUgraph*);

end_function find_end_capture() noexcept {
  try {
    return find_in_driver<end_function>("cuStreamEndCapture", 10000);
  } catch (std::exception const&) {
    return nullptr;
  }
}

// Destroys the graph of an invalidated capture, whose end is an error. Leaves the last error as it
// was: if there is one, by the driver, as another thread may not end it.
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t& captured) noexcept {
  graph_lifetime_lock const turn;
  if (is_error_pending()) {
    static end_function const end_in_driver = find_end_capture();
    if (end_in_driver != nullptr) {
      return static_cast<cudaError_t>(end_in_driver(stream, &captured));
    }
  }
  cudaError_t const status = cudaStreamEndCapture(stream, &captured);
  static_cast<void>(succeeded(status));
  return status;
}

std::string_view advice_for_begin(cudaError_t status) noexcept {
  switch (status) {
    case cudaErrorStreamCaptureUnsupported:
      return "CUDA cannot capture the legacy stream: pass one that was made, or "
             "cudaStreamPerThread";
    case cudaErrorIllegalState:
      return "`stream` is being captured already: end that capture";
    default:
      return {};
  }
}

// Of a parameter, which is in the stack above the frame, if it is not in registers.
void* end_of(source_location& where) noexcept {
  return &where + 1;
}

std::string advice_for_end(cudaError_t status) {
  switch (status) {
    case cudaErrorStreamCaptureInvalidated:
      return "a call that a capture does not allow has invalidated it: leave that out; " +
             environment::last_invalidation();
    case cudaErrorStreamCaptureUnjoined:
      return "another stream was forked into it: make `stream` wait for that one";
    case cudaErrorStreamCaptureWrongThread:
      return "end it on the thread that began it, or capture in Relaxed mode";
    default:
      return {};
  }
}

}  // namespace

capture_scope::capture_scope(stream_ref stream, capture_options options, source_location where)
    : capture_scope("capture_scope::capture_scope", stream, options, where) {}

capture_scope::capture_scope(char const* call, stream_ref stream, capture_options options,
                             source_location where)
    : stream_(stream.get()), audit_(options.audit) {
  detail::called_at(call, where, [&] {
    cudaError_t const status = cudaStreamBeginCapture(stream_, options.mode);
    check(status, "cudaStreamBeginCapture", source_location::current(), advice_for_begin(status));
  });
  // On failure, what needs the graph's id asks the graph.
  static_cast<void>(succeeded(detail::query_capture(stream_, captured_)));
  eager_before_ = environment::eager_work();
}

capture_scope::capture_scope(stream_ref stream, audit_use audit, capture_info const& begun) noexcept
    : stream_(stream.get()), audit_(audit), captured_(begun) {}

graph end_capture(stream_ref stream, audit_use audit, source_location where) {
  constexpr char const* call = "end_capture";
  capture_info const begun = detail::called_at(call, where, [&] {
    capture_info info;
    check(detail::query_capture(stream.get(), info), "cudaStreamGetCaptureInfo");
    if (info.is_none()) {
      throw usage_error(call, "the stream is not being captured",
                        "begin a capture of it, and end that once");
    }
    // By cudaStreamBeginCaptureToGraph.
    if (info.is_active() && (graph_registry::global().known(info.graph).is_owned ||
                             graph_registry::global().is_body(info.graph))) {
      throw usage_error(call, "the capture goes into an escrow::graph, which has it already",
                        "end it by cudaStreamEndCapture()");
    }
    return info;
  });
  return capture_scope(stream, audit, begun)
      .end_at(std::max(__builtin_frame_address(0), end_of(where)), call, where);
}

graph capture_scope::end(source_location where) {
  return end_at(std::max(__builtin_frame_address(0), end_of(where)), "capture_scope::end", where);
}

graph capture_scope::end_as(char const* call, source_location where) {
  return end_at(std::max(__builtin_frame_address(0), end_of(where)), call, where);
}

graph capture_scope::end_at(void const* frame, char const* call, source_location where) {
  return detail::called_at(call, where, [&] {
    if (!is_open_) throw usage_error(call, "the capture was ended before", "end it once");
    graph_registry::global().end_capture(captured_.id, captured_.graph);
    if (is_ended_elsewhere()) {
      is_open_ = false;
      throw usage_error(call, "another call, such as cudaStreamEndCapture(), ended the capture",
                        "leave that call out");
    }
    cudaGraph_t captured = nullptr;
    cudaError_t const status = end_capture(stream_, captured);
    is_end_tried_ = true;
    if (status != cudaSuccess) {
      owned<cudaGraph_t>(captured).reset();  // there is one if the error is that of earlier work
      is_open_ = !drop();
      if (!is_open_) graph_registry::global().drop_capture(captured_.id);
      throw cuda_error(status, "cudaStreamEndCapture", source_location::current(),
                       advice_for_end(status));
    }
    is_open_ = false;
    auto core = std::make_shared<graph_core>(owned<cudaGraph_t>(captured), captured_.id);
    graph made(std::move(core));
    graph_registry::global().report_outliving(captured_.id, captured);
    refuse_audited(call, made, audit_, audited_call::capture);
    refuse_not_captured(call, captured, audit_, eager_before_);
    refuse_dead_stack(call, captured, audit_, frame);
    return made;
  });
}

capture_scope::~capture_scope() {
  if (!is_open_ || is_ended_elsewhere() || !drop()) return;
  graph_registry::global().drop_capture(captured_.id);
}

bool capture_scope::is_ended_elsewhere() const noexcept {
  if (stream_ == cudaStreamPerThread) return false;  // of another thread it is another stream
  capture_info now;
  if (captured_.id == 0 || !succeeded(detail::query_capture(stream_, now))) return false;
  if (now.is_none()) return !is_end_tried_;
  return now.is_active() && now.id != captured_.id;
}

bool capture_scope::drop() noexcept {
  graph_registry::global().end_capture(captured_.id, captured_.graph);
  // An unended capture would leave the stream unusable. A call that failed because the capture was
  // invalidated has ended it; one that failed for another reason has not.
  constexpr int attempts_max = 3;
  cudaError_t ended = cudaErrorUnknown;
  for (int left = attempts_max; ended != cudaSuccess && !is_sticky(ended) && left != 0; --left) {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaError_t const status = query_is_capturing(stream_, state);
    // A lost device reports nothing else, and the captured graph must still be destroyed.
    bool const may_capture =
        succeeded(status) ? state != cudaStreamCaptureStatusNone : is_sticky(status);
    if (status == cudaSuccess && !may_capture) return true;
    if (!may_capture) continue;
    cudaGraph_t dropped = nullptr;
    ended = end_capture(stream_, dropped);
    owned<cudaGraph_t>(dropped).reset();
  }
  return ended == cudaSuccess || is_sticky(ended);
}

}  // namespace escrow::inline v0_2
