// SPDX-License-Identifier: Apache-2.0
// Launching execs: a launch turns the exec's nodes into operations.
#include "launch.hpp"

#include "accesses.hpp"
#include "claims.hpp"
#include "conditionals.hpp"
#include "edges.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "operands.hpp"
#include "ops.hpp"
#include "races.hpp"
#include "runner.hpp"
#include "runner_shared.hpp"
#include "unordered.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace escrow::sim::model {
namespace {

void bind_event(work const& what, op_ptr const& o) {
  // Whose record a wait node waits for, and what an event's query looks at, is decided by the order
  // of launch calls.
  if (auto const* const r = std::get_if<record_work>(&what)) {
    r->event->captured_in = nullptr;
    r->event->last = o;
  }
  if (auto const* const w = std::get_if<wait_work>(&what)) link(w->event->last, o);
}

// The launch comes behind what its nodes wait for.
void come_behind_events(graph_state const& graph, stream_state& stream) {
  for (auto const& node : graph.nodes) {
    auto const* const w = std::get_if<wait_work>(&node->what);
    if (w != nullptr && w->event->last != nullptr)
      come_behind(stream.at, w->event->last->at, the().known_done);
    for (auto const& inner : inner_graphs(*node)) come_behind_events(*inner, stream);
  }
}

// Of a node. Edges that are not full wait for its beginning.
struct expanded {
  op_ptr begin;
  op_ptr end;
};

void expand(graph_state const& graph, op_ptr const& first, op_ptr const& last,
            std::vector<op_ptr>& made);
void run_conditional(op_ptr const& o);

// Who depends on a node.
struct dependents {
  bool are_early = false;     // some may start once it has begun
  bool end_after_it = false;  // some cannot end before it has
};

std::vector<dependents> dependents_of(graph_state const& graph) {
  std::vector<dependents> all(graph.nodes.size());
  for (auto const& node : graph.nodes) {
    for (std::size_t i = 0; i < node->before.size(); ++i) {
      cudaGraphEdgeData const& edge = node->before_edges[i];
      dependents& its = all[node->before[i]->position];
      its.are_early |= !is_full(edge);
      its.end_after_it |= is_full(edge) || is_programmatic_launch(*node, edge);
    }
  }
  return all;
}

// Makes the operations of a node.
template <class Make>
expanded expand_node(CUgraphNode_st const& node, bool has_early_dependents, Make make,
                     std::vector<op_ptr>& made) {
  auto const* const child = std::get_if<child_work>(&node.what);
  bool const is_empty = child != nullptr || !node.enabled;
  op_ptr const body = make(is_empty ? work(empty_work{}) : node.what);
  if (std::holds_alternative<conditional_work>(body->what)) body->run = run_conditional;
  bind_event(node.what, body);
  expanded its{body, body};
  if (child != nullptr) {
    its.end = make(empty_work{});
    expand(*child->graph, its.begin, its.end, made);
  }
  if (has_early_dependents) {
    its.begin = make(empty_work{});
    link(its.begin, body);
  }
  if (!std::ranges::all_of(node.before_edges, is_full)) {
    op_ptr const end = make(empty_work{});
    link(its.end, end);
    its.end = end;
  }
  return its;
}

void share_call(op const& from, op& part) {
  part.by = from.by;
  part.call = from.call;
}

// Makes the operations of a sorted graph between `first` and `last`, and adds them to `made`.
void expand(graph_state const& graph, op_ptr const& first, op_ptr const& last,
            std::vector<op_ptr>& made) {
  std::vector<dependents> const after = dependents_of(graph);
  std::vector<expanded> all;
  for (auto const& node : graph.nodes) {
    auto const make = [&](work what) {
      auto const& o = made.emplace_back(make_op(first->stream, std::move(what), first->at));
      share_call(*first, *o);
      return o;
    };
    expanded const its = expand_node(*node, after[node->position].are_early, make, made);
    for (std::size_t i = 0; i < node->before.size(); ++i) {
      expanded const& earlier = all[node->before[i]->position];
      cudaGraphEdgeData const& edge = node->before_edges[i];
      link(is_full(edge) ? earlier.end : earlier.begin, its.begin);
      if (is_programmatic_launch(*node, edge)) link(earlier.end, its.end);
    }
    if (node->before.empty()) link(first, its.begin);
    if (!after[node->position].end_after_it) link(its.end, last);
    all.push_back(its);
  }
  if (graph.nodes.empty()) link(first, last);
}

bool is_of_destroyed_event(work const& what) {
  if (auto const* const r = std::get_if<record_work>(&what)) return r->event->destroyed;
  auto const* const w = std::get_if<wait_work>(&what);
  return w != nullptr && w->event->destroyed;
}

bool needs_destroyed_event(graph_state const& graph) {
  return std::ranges::any_of(graph.nodes, [](auto const& node) {
    auto const* const child = std::get_if<child_work>(&node->what);
    return is_of_destroyed_event(node->what) ||
           (child != nullptr && needs_destroyed_event(*child->graph));
  });
}

void release_all(op_ptr const& first, op_ptr const& last, std::vector<op_ptr> const& made) {
  // The first is released last: nothing starts before all is linked.
  release(last);
  for (auto const& o : made) release(o);
  release(first);
}

// Runs a sorted graph as part of `o`, which is not completed by it; then calls `finished`.
void run_inside(graph_state const& graph, op_ptr const& o, std::function<void()> finished) {
  auto const first = make_op(o->stream, empty_work{}, o->at);
  share_call(*o, *first);
  auto const last = make_op(o->stream, empty_work{}, o->at);
  last->finished = std::move(finished);
  std::vector<op_ptr> made;
  expand(graph, first, last, made);
  release_all(first, last, made);
}

// Decides which body the operation runs, and runs it; completes the operation after that.
void run_conditional(op_ptr const& o) {
  auto const& what = std::get<conditional_work>(o->what);
  auto const* const body = is_abandoned(o) ? nullptr : body_to_run(what);
  bool const repeats = what.type == cudaGraphCondTypeWhile;
  if (body == nullptr) {
    if (repeats) the().loop_turns = 0;
    complete(o);
    return;
  }
  if (repeats) the().loop_turns = ++o->turns;
  run_inside(*body, o, [o, repeats] { repeats ? run_conditional(o) : complete(o); });
}

void launch_ended(exec_state& exec) {
  auto& s = the();
  if (--exec.in_flight != 0 || s.dropping) return;
  callbacks reclaimed;
  // Who gets the last reference to a user object knows it.
  if (!exec.replaced.empty()) s.known_done.learn(exec.last_end->at);
  for (auto const& graph : exec.replaced) {
    forget_conditions(*graph, *exec.graph);
    dismantle(graph, reclaimed);
  }
  exec.replaced.clear();
  if (exec.destroyed) {
    forget_conditions(*exec.graph);
    --s.execs_in_flight;
  }
  defer(std::move(reclaimed), std::chrono::microseconds(250), std::chrono::microseconds(510));
}

}  // namespace

cudaError_t launch(api_call& c, std::shared_ptr<exec_state> const& exec,
                   std::shared_ptr<stream_state> const& stream) {
  if (needs_destroyed_event(*exec->graph)) return cudaErrorInvalidResourceHandle;
  auto const uses = refuse_operands(c.name, *exec->graph);
  if (exec->accesses == nullptr) {
    refuse_unordered(c.name, *exec->graph);
    exec->accesses = std::make_shared<std::vector<access> const>(accesses_of(*exec->graph));
  }
  graph_blocks left;
  if (auto const error = book_launch(*exec, left); error != cudaSuccess) return error;
  auto const first = make_op(stream, empty_work{});
  note_call(*first);
  link_stream_order(first);
  link_behind(exec->last_end, first);
  come_behind_events(*exec->graph, *stream);
  take_place(first);
  make_claimed_new(first);
  auto const last = make_op(stream, empty_work{}, first->at);
  note_uses(c.name, last, *exec, uses);
  make_new_for_launch(*first, uses);
  note_accesses(c.name, *stream, *exec->accesses, true);
  stream->tail = last;
  exec->last_end = last;
  exec->launched = true;
  ++exec->in_flight;
  // Not sooner: an earlier launch of the exec may still look at its conditions.
  first->finished = [graph = exec->graph, left = std::move(left)] {
    for (auto const& block : left) vanish(*block);
    set_conditions(*graph);
  };
  last->finished = [exec] { launch_ended(*exec); };
  std::vector<op_ptr> made;
  expand(*exec->graph, first, last, made);
  stage(made);
  std::vector<op_ptr> awaited;
  std::ranges::copy_if(made, std::back_inserter(awaited),
                       [](op_ptr const& o) { return blocks_caller(o->what); });
  release_all(first, last, made);
  block_on(c.lock, awaited, c.name);
  return cudaSuccess;
}

void upload(exec_state& exec, std::shared_ptr<stream_state> const& stream) {
  exec.last_upload = submit(stream, empty_work{}, std::array{exec.last_end, exec.last_upload});
}

}  // namespace escrow::sim::model
