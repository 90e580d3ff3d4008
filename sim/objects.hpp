// SPDX-License-Identifier: Apache-2.0
// The types behind CUDA's handles: streams, events, captures, graphs, execs, user objects, and
// operations. Handles of streams, events, graphs and execs are no addresses of these (handles.hpp).
#pragma once

#include "callers.hpp"
#include "order.hpp"
#include "recycled.hpp"
#include "work.hpp"

#include <escrow/sim/recapture.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace escrow::sim::model {

struct stream_state;
struct graph_state;

// Which lease of a library under test has memory that work uses: the number of it, of all that had
// the same memory; or what else has memory of many, by a number; 0: a launch.
struct memory_lease {
  void const* memory = nullptr;
  std::uint64_t number = 0;
  std::uintptr_t used_end = 0;  // it uses nothing from there on; 0: not known
  std::uintptr_t end = 0;       // of its memory
  std::uint64_t last = 0;       // of a slot of captures: the number of its last lease
  // What has any contents until work of the lease or launch writes it; 0: not known.
  std::uintptr_t new_begin = 0;
  std::uintptr_t new_end = 0;
};
// What a library under test is asked.
struct memory_question {
  enum class use : std::uint8_t { on_stream, in_capture, in_launch };
  void const* address = nullptr;
  use by = use::on_stream;
  std::uint64_t capture = 0;  // in_capture: its id
  char* text = nullptr;       // room for an answer of so many bytes
  std::size_t bytes = 0;
};
struct memory_use {
  memory_lease lease;
  std::string of;  // for messages
};

// Scratch that is new for the first work of its lease, or for a launch, if memory is apart.
struct new_scratch {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string of;  // for messages
};

// One thing a device does. Operations form a graph; an operation starts when those it waits on are
// done.
struct op {
  std::shared_ptr<stream_state> stream;
  work what;
  // One more than the number of unfinished operations before it until submission ends, then that
  // number.
  std::size_t waiting_on = 1;
  std::vector<std::shared_ptr<op>> after;
  // Called once it is done, with the lock held.
  std::function<void()> finished;
  // Of a conditional node: runs what the condition chooses, and completes it after that.
  void (*run)(std::shared_ptr<op> const&) = nullptr;
  std::uint64_t turns = 0;                  // of a loop: how often its body has run
  position at = {};                         // of a launch's node: the launch's
  std::vector<new_scratch> makes_new = {};  // as it begins
  std::shared_ptr<callers const> by = {};   // who enqueued it, if anybody asked
  std::uint64_t call = 0;                   // the so-manieth enqueued it
  bool is_of_leases = true;                 // what it uses, or it is of a launch
  bool done = false;
  bool began = false;
  std::chrono::nanoseconds began_at{};
  std::chrono::nanoseconds done_at{};
};

using op_ptr = std::shared_ptr<op>;

// A function of the user's to be called with no lock held: a user object's destructor, or a host
// function.
struct callback {
  cudaHostFn_t run = nullptr;
  void* argument = nullptr;
  // The host function's operation, to be completed afterwards; null for a destructor.
  op_ptr of;
};

using callbacks = std::vector<callback>;

// The thread that works for one stream, when running free. Guarded by the state's mutex.
struct executor {
  std::condition_variable wake;
  std::deque<op_ptr> ready;
  bool started = false;
  bool stop = false;
};

// A capture in progress, or one that has ended but that an event still remembers.
struct capture {
  std::uint64_t id = 0;
  std::shared_ptr<graph_state> graph;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::uint64_t thread = 0;
  stream_state* origin = nullptr;
  std::vector<stream_state*> streams;
  // What forked streams did last that were destroyed since.
  std::vector<cudaGraphNode_t> orphans;
  bool invalidated = false;
  bool ended = false;
  // Of a recapture.
  struct recapture {
    std::size_t next = 0;  // the position of the node that the next captured work is of
    bool failed = false;
    cudaGraphRecaptureCallback_t on_mismatch = nullptr;
    void* data = nullptr;
  };
  std::optional<recapture> again;

  // Events recorded in it are of no use any more.
  [[nodiscard]] bool is_over() const { return invalidated || ended; }
};

using frontier = std::vector<cudaGraphNode_t>;

// What no two threads may call at the same time, because CUDA guards it by nothing: a graph with
// all that was made of it (families.hpp), or the begin and end of a stream's capture.
struct sole_use {
  // The number of the thread in such a call; 0 if none is. Set under the state's mutex, cleared
  // without.
  std::atomic<std::uint64_t> user{0};
  char const* call = nullptr;  // and its call; under the state's mutex
};

// What a handle of a stream stands for; it may outlive the handle.
struct stream_state {
  cudaStream_t handle = nullptr;  // null: a default stream
  int device = 0;
  std::uint64_t id = 0;
  unsigned int flags = 0;
  int priority = 0;
  bool legacy = false;
  // True once destroyed by the caller; work that is pending still runs.
  bool closed = false;
  op_ptr tail;
  position at;  // of its last work, done or not
  std::size_t pending = 0;
  std::shared_ptr<executor> runs_on;
  std::shared_ptr<capture> capturing;
  // The nodes that the next captured operation depends on, and their edges for
  // cudaStreamGetCaptureInfo.
  frontier ends;
  std::vector<cudaGraphEdgeData> end_edges;
  // Memory of leases that were claimed for it, and are new for its next work: see claims.hpp.
  std::vector<void const*> claimed;
  // While its capture begins or ends, calls of other threads with the stream end the process.
  std::shared_ptr<sole_use> capture_change = std::make_shared<sole_use>();

  [[nodiscard]] bool blocking() const { return !legacy && (flags & cudaStreamNonBlocking) == 0; }
};

struct event_state {
  cudaEvent_t handle = nullptr;
  int device = 0;
  unsigned int flags = 0;
  // By its owner; what is pending or a graph holds may still refer to it.
  bool destroyed = false;
  // Where it was recorded last, outside any capture; null if never.
  op_ptr last;
  // Where it was recorded last, inside a capture; null if an eager record came later.
  std::shared_ptr<capture> captured_in;
  frontier captured_at;
  std::vector<cudaGraphEdgeData> captured_edges;  // of those, in the same order
};

}  // namespace escrow::sim::model

struct CUuserObject_st {
  std::uint64_t id = 0;
  void* argument = nullptr;
  cudaHostFn_t destroy = nullptr;
  // All references, whoever holds them: CUDA does not tell them apart either.
  std::uint64_t references = 0;
};

struct CUgraphNode_st : escrow::sim::model::recycled {
  escrow::sim::model::graph_state* graph = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  escrow::sim::model::work what;
  std::vector<cudaGraphNode_t> before;
  std::vector<cudaGraphEdgeData> before_edges;  // of those, in the same order
  std::vector<cudaGraphNode_t> after;
  // The node this one was cloned from, by a clone or by an instantiation; only ever compared.
  cudaGraphNode_t origin = nullptr;
  // Index in the graph's nodes.
  std::size_t position = 0;
  // False: an exec's node that runs as an empty one.
  bool enabled = true;
};

namespace escrow::sim::model {

struct graph_state {
  cudaGraph_t handle = nullptr;  // null: an exec's copy
  struct reference {
    cudaUserObject_t object = nullptr;
    std::int64_t count = 0;  // below zero if more were released than it held (measured)
  };
  struct condition {
    unsigned int initial = 0;
    unsigned int flags = 0;
  };

  // Names the graph and every capture into it; never reused.
  std::uint64_t id = 0;
  // The graph whose node this one is inside of; null if there is none.
  graph_state* parent = nullptr;
  // Embedded in a child node or the body of a conditional one.
  bool embedded = false;
  // A body of a conditional node; embedded as well.
  bool body = false;
  // Given away to a child node by its caller; embedded as well.
  bool moved = false;
  // Captured into right now.
  bool open = false;
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  // By the object's id, so that destructors run in an order that does not depend on addresses.
  std::map<std::uint64_t, reference> references;
  std::map<cudaGraphConditionalHandle, condition> conditions;
  std::shared_ptr<sole_use> own = std::make_shared<sole_use>();
  // Those of the graph that this was made of, and then of the one that updated it last.
  std::vector<std::shared_ptr<sole_use>> made_of;
  // Execs and copies of this very graph that are alive: a graph with conditional nodes may be
  // instantiated if there are none (measured).
  std::shared_ptr<std::size_t> copies = std::make_shared<std::size_t>(0);
  std::shared_ptr<std::size_t> copies_of_source;  // if this is a copy with a handle
};

struct exec_state {
  cudaGraphExec_t handle = nullptr;
  // A private clone of the graph, in topological order.
  std::shared_ptr<graph_state> graph;
  std::shared_ptr<std::size_t> copies_of_source;
  int device = 0;
  // Memory that an earlier launch left is freed by the next.
  bool frees_on_launch = false;
  bool launched = false;
  bool destroyed = false;
  // What its nodes use; null: they have changed. See refuse_unordered().
  std::shared_ptr<std::vector<access> const> accesses;
  std::size_t in_flight = 0;
  op_ptr last_end;
  op_ptr last_upload;
  // Clones replaced by an update while launches of them were running.
  std::vector<std::shared_ptr<graph_state>> replaced;
};

}  // namespace escrow::sim::model

struct CUkern_st {
  escrow::sim::model::kernel_code code;
};

struct CUlib_st {
  // False: it was loaded from what is no image, and has no kernels.
  bool is_code = false;
  // In the order in which the image has them.
  std::vector<std::shared_ptr<CUkern_st>> kernels;
};

// Memory that a device lacks: what is allocated from it, and what it keeps.
struct CUmemPoolHandle_st {
  int device = 0;
  std::uint64_t release_threshold = 0;
  std::size_t used = 0;
  std::size_t reserved = 0;
  bool is_destroyed = false;  // it ends with its last allocation
};
