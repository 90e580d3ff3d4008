// SPDX-License-Identifier: Apache-2.0
// Part of escrow/escrow.h, which has the rules: graphs, their execs, and launches in a group.
#ifndef ESCROW_GRAPHS_H
#define ESCROW_GRAPHS_H

#include <escrow/worker.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Graphs. Instead of cudaGraphInstantiate and cudaGraphLaunch: an exec that launches as fast as one
// whose graph holds nothing. `bodies`: all body graphs of conditional nodes; null if there are
// none. For the rules see escrow/graph/graph_exec.hpp.

typedef struct escrow_exec escrow_exec;
// `flags`: cudaGraphInstantiateFlags, or'ed. `graph` stays the caller's.
escrow_status escrow_exec_create(cudaGraph_t graph, unsigned long long flags,
                                 cudaGraph_t const* bodies, size_t body_count, escrow_exec** exec);
// The same, and so many `copies` for escrow_exec_launch_many(), which then takes one launch of CUDA
// for as many runs. They take the memory and the time of as many execs.
escrow_status escrow_exec_create_with_copies(cudaGraph_t graph, unsigned long long flags,
                                             size_t copies, escrow_exec** exec);
// If CUDA launches but refuses the event behind it, the text names cudaEventRecord.
escrow_status escrow_exec_launch(escrow_exec* exec, cudaStream_t stream);
// Runs the graph so often, one run after another. If CUDA refuses a launch, the text says how many
// runs were enqueued before.
escrow_status escrow_exec_launch_many(escrow_exec* exec, cudaStream_t stream, size_t times);
// From the next launch on runs `graph`, which has the same nodes and edges, and holds what it
// holds. Fails after a launch that named cudaEventRecord, until the exec is launched again.
escrow_status escrow_exec_update(escrow_exec* exec, cudaGraph_t graph, cudaGraph_t const* bodies,
                                 size_t body_count);
// Updates *exec, or, if it is null or `graph` does not fit it, puts a new one into *exec: made with
// `flags`, with as many `copies` as the one that it replaces, which is destroyed. `is_created`, if
// not null: whether it is new. On failure *exec is unchanged.
escrow_status escrow_exec_update_or_create(escrow_exec** exec, cudaGraph_t graph,
                                           unsigned long long flags, cudaGraph_t const* bodies,
                                           size_t body_count, bool* is_created);
// At any time, with launches in flight, too.
void escrow_exec_destroy(escrow_exec* exec);

// Around plain CUDA calls that create or destroy graphs and execs, if other threads, as the worker
// in `destroy`, may create or destroy related ones: else CUDA corrupts the heap. For which calls,
// and the rules, see escrow/core/capture.hpp. Escrow's functions lock by themselves.
// Recursive; lock and unlock on the same thread. An unlock without a lock does nothing.
void escrow_graphs_lock(void);
void escrow_graphs_unlock(void);
// As cudaGraphDestroy(), under that lock; invalidates no capture. Null does nothing.
escrow_status escrow_graph_destroy(cudaGraph_t graph);

// A graph whose capture Escrow ended, and so knows. Which graph a plain handle names, CUDA before
// 13.1 tells at 0.6 to 1 us a node, in each escrow_exec_create(), its update, and escrow_hoist().
typedef struct escrow_captured escrow_captured;
// Instead of cudaStreamEndCapture(), for a capture that any call began. If it fails, the capture is
// over and its graph destroyed, unless an argument is null or the stream could not be asked.
escrow_status escrow_capture_end(cudaStream_t stream, escrow_captured** captured);
// For calls that take a graph. It stays that of `captured`. Null if that is null.
cudaGraph_t escrow_captured_graph(escrow_captured const* captured);
void escrow_captured_destroy(escrow_captured* captured);

// Addresses in any graph of memory that it does not keep, a line for each of so many `findings`:
// see escrow/graph/audit.hpp. The text as that of escrow_allocator_describe().
escrow_status escrow_graph_audit(cudaGraph_t graph, cudaGraph_t const* bodies, size_t body_count,
                                 size_t* findings, char* text, size_t capacity, size_t* length);

// What a graph held, for code that instantiates and launches by itself: the graph holds nothing
// any more. Keep it until the last launch is enqueued. For the rules see escrow/graph/hoist.hpp.
typedef struct escrow_hoisted escrow_hoisted;
escrow_status escrow_hoist(cudaGraph_t graph, cudaGraph_t const* bodies, size_t body_count,
                           escrow_hoisted** hoisted);
// Launches on a stream, in the call that it is given to. Its status fails that call.
typedef cudaError_t (*escrow_launch_call)(void* data);
// Runs `call(data)`, which launches plain execs of the graph on `stream`. Before, `stream` waits
// for the last launch of the graph and of those that share something with it; afterwards the end of
// what was launched is recorded for those, and for the release. No other launch of these graphs
// begins meanwhile: in `call` that is ESCROW_USAGE_ERROR; on another thread it blocks the host for
// at most `wait_max_ns`, and then fails with ESCROW_GROUP_BUSY. If this fails, `call` has not run,
// or it has failed, or CUDA refuses both an event behind it and a wait on the host (the text names
// cudaEventRecord), or `stream` captures then. After the last two, launches on other streams fail
// until one on `stream` succeeds or this is released.
escrow_status escrow_hoisted_launch(escrow_hoisted* hoisted, cudaStream_t stream,
                                    escrow_launch_call call, void* data, uint64_t wait_max_ns);
// Releases after the work on `stream` so far, and frees the handle, unless it fails.
escrow_status escrow_hoisted_release(escrow_hoisted* hoisted, cudaStream_t stream);
// The same, at once: no launch may be in flight.
escrow_status escrow_hoisted_release_now(escrow_hoisted* hoisted);
// For what cannot be released: leaks it, counts that, and reports it to on_error.
void escrow_hoisted_destroy(escrow_hoisted* hoisted);

typedef struct escrow_group escrow_group;
// Runs `call(data)`, which enqueues work on `stream`, as one more launch of the group, for eager
// work that shares its memory: what `call` allocates for `stream` from allocators of the group.
// Free it in `call`: else ESCROW_USAGE_ERROR, with the work enqueued, since a launch overwrites it.
// ..._kept, ..._for_host and pools are as outside. Else as escrow_hoisted_launch().
escrow_status escrow_group_run(escrow_group* group, cudaStream_t stream, escrow_launch_call call,
                               void* data, uint64_t wait_max_ns);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
