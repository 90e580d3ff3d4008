// SPDX-License-Identifier: Apache-2.0
// Stream capture: what it allows, what kills it, and how captured work becomes nodes.
#include "captures.hpp"

#include "ends.hpp"
#include "families.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "operands.hpp"
#include "recaptures.hpp"

#include <algorithm>
#include <unordered_set>

namespace escrow::sim::model {
namespace {

void enter_capture_change(api_call& c, stream_state const& stream) {
  refuse_beside_capture_change(c, stream);
  if (c.s.how.stepped) return;  // calls are made one after another, also those of several threads
  c.sole_uses.push_back(stream.capture_change);
  stream.capture_change->user.store(c.me.number, std::memory_order_relaxed);
  stream.capture_change->call = c.name;
}

// Ends the capture and returns its graph; events that remember the capture do not keep the graph.
std::shared_ptr<graph_state> finish(capture& which) {
  which.ended = true;
  which.graph->open = false;
  for (auto* const stream : which.streams) {
    set_ends(*stream, {}, nullptr);
    stream->capturing = nullptr;
  }
  std::erase_if(the().captures, [&](auto const& c) { return c.get() == &which; });
  return std::move(which.graph);
}

// A capture that fails takes its graph with it, also one that the caller brought, but not one that
// was recaptured, which the caller "should" destroy (CUDA manual).
void discard(api_call& c, capture& which) {
  bool const is_left = which.again.has_value();
  auto const graph = finish(which);
  if (is_left) return;
  enter_families(c, *graph);
  dismantle(graph, c.reclaimed);
}

// Every fork must have come back: what the other streams did last is before what the origin did
// last.
bool all_joined(capture const& which) {
  if (which.streams.size() == 1 && which.orphans.empty()) return true;
  std::unordered_set<cudaGraphNode_t> before;
  frontier open = which.origin->ends;
  while (!open.empty()) {
    auto* const node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    open.insert(open.end(), node->before.begin(), node->before.end());
  }
  auto const is_joined = [&](cudaGraphNode_t node) { return before.contains(node); };
  return std::ranges::all_of(which.orphans, is_joined) &&
         std::ranges::all_of(which.streams, [&](auto const* stream) {
           return std::ranges::all_of(stream->ends, is_joined);
         });
}

// A recapture that ends before it has come to the graph's last node.
bool is_short(capture const& which) {
  return which.again->next != which.graph->nodes.size();
}

}  // namespace

void invalidate(api_call const& c, capture& which) {
  if (which.invalidated) return;
  which.invalidated = true;
  ++c.s.captures_invalidated;
  c.s.last_invalidation = std::string(c.name) + " on " + describe_this_thread();
}

cudaError_t forbid_unsafe(api_call& c) {
  if (c.s.captures.empty() || c.me.mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  auto result = cudaSuccess;
  for (auto const& each : c.s.captures) {
    bool const own = each->thread == c.me.number && each->mode != cudaStreamCaptureModeRelaxed;
    bool const others =
        each->mode == cudaStreamCaptureModeGlobal && c.me.mode == cudaStreamCaptureModeGlobal;
    if (!own && !others) continue;
    // A capture that is already dead forbids as much as one that lives.
    invalidate(c, *each);
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

bool blocked_by_capture(stream_state const& legacy) {
  auto const blocks = [&](stream_state const* s) {
    return s->device == legacy.device && s->blocking();
  };
  return std::ranges::any_of(the().captures, [&](auto const& each) {
    return !each->invalidated && std::ranges::any_of(each->streams, blocks);
  });
}

cudaError_t forbid_legacy(api_call& c, stream_state const& stream) {
  if (!stream.legacy || !blocked_by_capture(stream)) return cudaSuccess;
  for (auto const& each : c.s.captures) {
    auto const blocks = [&](stream_state const* s) {
      return s->device == stream.device && s->blocking();
    };
    if (std::ranges::any_of(each->streams, blocks)) invalidate(c, *each);
  }
  return cudaErrorStreamCaptureImplicit;
}

cudaError_t forbid_all(api_call& c, int device) {
  auto result = cudaSuccess;
  for (auto const& each : c.s.captures) {
    auto const is_here = [&](stream_state const* s) { return s->device == device; };
    if (each->invalidated || std::ranges::none_of(each->streams, is_here)) continue;
    invalidate(c, *each);
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

cudaError_t capture_work(api_call& c, stream_state& stream, cudaGraphNodeType type, work what) {
  auto& capture = *stream.capturing;
  if (capture.invalidated) return cudaErrorStreamCaptureInvalidated;
  refuse_operands(c.name, what, capture.id);
  if (capture.again) return recapture_work(c, stream, type, std::move(what));
  auto* const node =
      add_node(*capture.graph, stream.ends, stream.end_edges.data(), type, std::move(what));
  set_ends(stream, {node}, nullptr);
  return cudaSuccess;
}

void refuse_beside_capture_change(api_call const& c, stream_state const& stream) {
  // relaxed: see enter() in families.cpp.
  std::uint64_t const user = stream.capture_change->user.load(std::memory_order_relaxed);
  if (user == 0 || user == c.me.number) return;
  give_up(std::string(c.name) + " on " + describe_this_thread() + " beside " +
          stream.capture_change->call + " on thread " + std::to_string(user) +
          ": CUDA's driver crashes in a call with a stream whose capture begins or ends; "
          "let one thread at a time use it");
}

cudaError_t begin_capture(api_call& c, std::shared_ptr<stream_state> const& stream,
                          cudaStreamCaptureMode mode, std::shared_ptr<graph_state> const& into,
                          frontier ends, cudaGraphEdgeData const* edges) {
  if (mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  enter_capture_change(c, *stream);
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capturing != nullptr) return cudaErrorIllegalState;
  if (into != nullptr && into->open) return cudaErrorIllegalState;
  auto which = std::make_shared<capture>();
  which->graph = into != nullptr ? into : make_graph();
  which->graph->open = true;
  which->id = which->graph->id;
  which->mode = mode;
  which->thread = c.me.number;
  which->origin = stream.get();
  which->streams.push_back(stream.get());
  stream->capturing = which;
  set_ends(*stream, std::move(ends), edges);
  c.s.captures.push_back(std::move(which));
  return cudaSuccess;
}

cudaError_t begin_recapture(api_call& c, std::shared_ptr<stream_state> const& stream,
                            cudaStreamCaptureMode mode, std::shared_ptr<graph_state> const& graph,
                            cudaGraphRecaptureCallbackData const* callback) {
  if (has_memory_nodes(*graph)) return cudaErrorNotSupported;  // not simulated
  auto const error = begin_capture(c, stream, mode, graph, {}, nullptr);
  if (error != cudaSuccess) return error;
  capture& begun = *stream->capturing;
  begun.again.emplace(capture::recapture{});
  if (callback != nullptr) {
    begun.again->on_mismatch = callback->callbackFunc;
    begun.again->data = callback->userData;
  }
  if (c.s.recapture_gives_new_id) begun.id = graph->id = ++c.s.next_graph_id;
  release_references(*graph, c.reclaimed);
  return cudaSuccess;
}

cudaError_t end_capture(api_call& c, stream_state& stream, cudaGraph_t* graph) {
  enter_capture_change(c, stream);
  auto const which = stream.capturing;
  if (which == nullptr) return cudaErrorIllegalState;
  if (which->origin != &stream) {
    invalidate(c, *which);
    return cudaErrorStreamCaptureUnmatched;
  }
  auto result = cudaSuccess;
  if (which->mode != cudaStreamCaptureModeRelaxed && which->thread != c.me.number) {
    result = cudaErrorStreamCaptureWrongThread;
  } else if (which->again && (which->again->failed || (!which->invalidated && is_short(*which)))) {
    result = cudaErrorGraphRecaptureFailure;
  } else if (which->invalidated) {
    result = cudaErrorStreamCaptureInvalidated;
  } else if (!all_joined(*which)) {
    result = cudaErrorStreamCaptureUnjoined;
  }
  if (result != cudaSuccess) {
    discard(c, *which);
    return result;
  }
  *graph = finish(*which)->handle;
  return cudaSuccess;
}

void abandon_capture(api_call& c, stream_state& stream) {
  auto const which = stream.capturing;
  if (which->origin == &stream) {
    discard(c, *which);
    return;
  }
  which->orphans.insert(which->orphans.end(), stream.ends.begin(), stream.ends.end());
  std::erase(which->streams, &stream);
  stream.capturing = nullptr;
}

}  // namespace escrow::sim::model
