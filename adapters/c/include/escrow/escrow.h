// SPDX-License-Identifier: Apache-2.0
// Escrow for C, and for languages that call C: scratch memory, pools, deferred destruction and
// graphs, called in the same way whether or not the caller is capturing the stream.
//
// Errors: a function that returns an escrow_status never throws. A call that failed has changed
//   nothing, unless its comment says otherwise. A null handle, callback or place for a result is
//   ESCROW_USAGE_ERROR, unless the comment says otherwise; destroying null does nothing.
//   So is a handle that was destroyed, until a later one has its address; each is destroyed once.
// Thread safety: any thread may call anything concurrently, except two calls with the same lease,
//   exec or hoisted, and the destruction of a handle beside a call with it. Do not cancel a thread
//   (pthread_cancel) during a call: the process would abort.
// Capture: scratch memory, claims and retirements work in anybody's capture. The graph keeps what
//   was allocated, claimed or retired in its capture until it, its clones and its execs are
//   destroyed and their launches are done. No call invalidates a capture, if the callbacks do not.
// Callbacks: must not throw, longjmp, or end the thread. Their code must stay loaded until the
//   process ends. `destroy` and on_error run on Escrow's worker thread, or on one that calls
//   Escrow; they may call CUDA and Escrow, but not escrow_drain.
// Streams: null is the legacy default stream. A stream must be alive during each call with it.
// Lifetime: process exit, fork and lost devices: docs/guarantees.md.
#ifndef ESCROW_ESCROW_H
#define ESCROW_ESCROW_H

#include <escrow/graphs.h>
#include <escrow/worker.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Graphs that share scratch: their launches run one after another, and together they need what the
// largest needs. For the rules see escrow/deleter/sharing_group.hpp. May be destroyed before its
// allocators, pools and graphs.

// `label`: in errors and reports; null: "group".
escrow_status escrow_group_create(char const* label, escrow_group** group);
void escrow_group_destroy(escrow_group* group);

typedef struct escrow_group_stats {
  size_t size;            // sizeof(escrow_group_stats)
  uint64_t slots;         // that the group's graphs hold, each once
  uint64_t bytes;         // of those whose size is known
  uint64_t launches;      // of escrow_exec, and calls of escrow_hoisted_launch()
  uint64_t stream_waits;  // launches that waited, in their stream, for another stream's
  uint64_t unordered;     // graphs whose launches nothing orders
  uint64_t outliving;     // leases that outlive their capture, whose memory other graphs overwrite
  uint64_t is_parked;     // 1 from escrow_group_park() to escrow_group_unpark()
} escrow_group_stats;
escrow_status escrow_group_statistics(escrow_group* group, escrow_group_stats* stats);

// Gives the group's memory back to the device; its addresses, graphs and execs stay. Until
// escrow_group_unpark(), calls that need it are ESCROW_USAGE_ERROR, as is parking while unknown
// work may use it: see sharing_group::park() (escrow/deleter/sharing_group.hpp). `bytes` may be
// null.
typedef struct escrow_park_options {
  size_t size;           // sizeof(escrow_park_options)
  int keep_contents;     // not 0: copied to pinned host memory, and back; else undefined afterwards
  uint64_t wait_max_ns;  // how long the call may wait for other launches to end; 0: 10 s
} escrow_park_options;
// `options` may be null, and are then as if zero. ESCROW_GROUP_BUSY if it waited in vain.
escrow_status escrow_group_park(escrow_group* group, escrow_park_options const* options,
                                size_t* bytes);
// If there is no memory left, ESCROW_CUDA_ERROR, and it is still parked.
escrow_status escrow_group_unpark(escrow_group* group, size_t* bytes);

// The same for each group of the process that is not parked, or is; goes on past one that refuses.
// Then calls `report`, which may be null, with each: `refusal` is the error's text, or null.
typedef void (*escrow_parked_report)(void* user, char const* label, size_t bytes,
                                     char const* refusal);
escrow_status escrow_park_all(escrow_park_options const* options, escrow_parked_report report,
                              void* user);
escrow_status escrow_unpark_all(escrow_parked_report report, void* user);

// Options of allocators and pools. Where a pointer to them is null, all are as if zero.
typedef struct escrow_options {
  size_t size;                // sizeof(escrow_options)
  char const* label;          // in errors and reports; null: "pool"
  escrow_group* group;        // whose graphs share this memory; null: each graph has its own
  size_t slots_max;           // resources; 0: 64. Of an allocator blocks of each size; 0: no limit
  size_t bytes_max;           // of an allocator, of all blocks together; 0: no limit
  uint64_t idle_max_ns;       // an allocator gives free blocks back after this time; 0: never
  uint64_t host_wait_max_ns;  // how long a claim may block the host if all is in use; 0: it fails
  uint64_t capture_wait_max_ns;  // the same in a capture, for work on free blocks; 0: 10 s
  int track_leases;              // not 0: reports name each lease, with its time
  // Not 0: cheaper releases, if streams outlive the pool: see pool_options::streams_outlive_pool.
  int streams_outlive_pool;
  uint64_t reclaim_wait_max_ns;  // how long a claim may wait for memory of the worker; 0: 100 ms
  int host_ordered;  // not 0: each claim is as ..._for_host(); a pool then has no `recycle`
  // Not 0: what captures claim stays until escrow_allocator_close() or escrow_pool_close(), so that
  // graphs have no user object, which slows plain launches. Without a close it is leaked.
  int held_until_closed;
  // Not 0: an allocator's memory is pinned, for staging: the host writes it, so each allocation is
  // as escrow_allocator_allocate_for_host().
  int pinned_host;
} escrow_options;

// Scratch memory of one device, by its address. Freed memory serves later allocations.

typedef struct escrow_allocator escrow_allocator;
// `device`: -1 is the current one.
escrow_status escrow_allocator_create(int device, escrow_options const* options,
                                      escrow_allocator** allocator);
// Does not wait. Memory that is allocated then is not freed: what was allocated in a capture is the
// graph's, the rest is leaked, counted and reported to on_error.
void escrow_allocator_destroy(escrow_allocator* allocator);

// Memory for use in `stream`'s order, never null, not initialized. `alignment` is a power of two;
// 0: 256. In a capture the graph keeps the memory, also once it is freed; it may be used and freed
// in the capture, or eagerly later. ESCROW_OUT_OF_HOST_MEMORY in a capture may leave memory to the
// graph, which nothing uses.
escrow_status escrow_allocator_allocate(escrow_allocator* allocator, cudaStream_t stream,
                                        size_t bytes, size_t alignment, void** memory);
// The same for memory that the host writes or reads at once: no GPU work uses it any more. May
// block the host until that is so, for at most `capture_wait_max_ns`. In a capture no other claim
// and no other graph gets it; the host's order ends with the first launch.
escrow_status escrow_allocator_allocate_for_host(escrow_allocator* allocator, cudaStream_t stream,
                                                 size_t bytes, size_t alignment, void** memory);
// As escrow_allocator_allocate(), for a graph's output: no other claim of the capture, and no other
// graph of the group, gets the memory while its graph exists.
escrow_status escrow_allocator_allocate_kept(escrow_allocator* allocator, cudaStream_t stream,
                                             size_t bytes, size_t alignment, void** memory);
// Frees after the work on `stream` so far. All uses must be ordered before that. `memory` may be
// null. In a CUDA callback `stream` is that of the allocation.
escrow_status escrow_allocator_free(escrow_allocator* allocator, cudaStream_t stream, void* memory);
// The memory is used on `stream`, too, until it is freed. Work on `stream` after this call comes
// after the earlier users of the memory, and the free waits for it. If `stream` captures, and the
// memory is of before that, its graph keeps the memory. Memory of a capture: only while the stream
// of its allocation is alive. Not concurrently with the memory's end.
escrow_status escrow_allocator_record_stream(escrow_allocator* allocator, cudaStream_t stream,
                                             void* memory);
// Memory that any stream may use at once: may block the host.
escrow_status escrow_allocator_allocate_sync(escrow_allocator* allocator, size_t bytes,
                                             size_t alignment, void** memory);
// Frees memory whose uses are done, also in CUDA callbacks. `memory` may be null.
escrow_status escrow_allocator_free_sync(escrow_allocator* allocator, void* memory);
// Memory that was allocated in a capture, and that only this graph uses, is free when the graph is
// gone: no later allocation in the capture gets it.
escrow_status escrow_allocator_leave_to_graph(escrow_allocator* allocator, void* memory);
// Frees idle blocks until at most `keep_bytes` are allocated or none is left. Pinned memory blocks
// the host, as cudaFreeHost does. With streams_outlive_pool a stream keeps up to 16 blocks of each
// size until the next call with it, as escrow_allocator_flush().
escrow_status escrow_allocator_trim(escrow_allocator* allocator, size_t keep_bytes,
                                    size_t* freed_bytes);
// Before a pause of `stream`, a capture or a trim: what was freed on `stream` without an event, by
// streams_outlive_pool or while it captured, is for all streams, captures and trims from now on.
// ESCROW_USAGE_ERROR while `stream` captures.
escrow_status escrow_allocator_flush(escrow_allocator* allocator, cudaStream_t stream);

// Refuses allocations from now on, frees what is free, and waits at most `timeout_ns` for the rest.
// `holders`: how many hold something then, which escrow_allocator_describe() names; 0: all came
// back, and the worker frees it (escrow_drain). Of an allocator that is `held_until_closed` the
// caller says that no exec of its graphs is launched any more, and that all launches but those of
// escrow_exec have ended.
escrow_status escrow_allocator_close(escrow_allocator* allocator, uint64_t timeout_ns,
                                     size_t* holders);

typedef struct escrow_allocator_stats {
  size_t size;     // sizeof(escrow_allocator_stats)
  uint64_t bytes;  // of whole blocks: the next three, and what is being freed
  uint64_t bytes_in_use;
  uint64_t bytes_idle;
  uint64_t bytes_in_graphs;
  uint64_t bytes_peak;  // most bytes so far
  uint64_t grown;       // blocks allocated so far
  uint64_t returned;    // blocks freed so far
} escrow_allocator_stats;
escrow_status escrow_allocator_statistics(escrow_allocator* allocator,
                                          escrow_allocator_stats* stats);
// Statistics and holders in words. Writes at most `capacity` characters, with a 0 at the end;
// `length`: of the whole text, without the 0; not null. `text` may be null if `capacity` is 0, and
// is not written if the call fails.
escrow_status escrow_allocator_describe(escrow_allocator* allocator, char* text, size_t capacity,
                                        size_t* length);

// Who holds the memory of the process, in all its pools, also those of C++ and of other libraries:
// in words, and as JSON, which tools/arena_svg.py draws arenas from. Any thread, at any time, also
// in captures. Arguments as those of escrow_allocator_describe(); the next call may need more room.
escrow_status escrow_memory_report(char* text, size_t capacity, size_t* length);
escrow_status escrow_memory_report_json(char* text, size_t capacity, size_t* length);

// The sums of that report.
typedef struct escrow_process_stats {
  size_t size;              // sizeof(escrow_process_stats)
  uint64_t bytes_reserved;  // taken of the device for pools and arenas, in use or kept
  uint64_t bytes;           // of all pools' blocks, also pinned ones: as escrow_allocator_stats
  uint64_t bytes_in_use;
  uint64_t bytes_idle;
  uint64_t bytes_in_graphs;
  uint64_t bytes_in_arenas;  // of groups, which their graphs share
  uint64_t pools;            // allocators and pools, until their last block has ended
  uint64_t groups;           // that have a pool
  uint64_t graphs;           // that hold something, of any device
  uint64_t execs;            // of escrow_exec and C++, of any device
} escrow_process_stats;
// `device`: -1 is all devices together. Takes short locks, and host memory.
escrow_status escrow_process_statistics(int device, escrow_process_stats* stats);

// Pools of a caller's resources. What a pool calls, with its device current; several threads may,
// concurrently. cudaSuccess, or what the claim returns as escrow_last_cuda_error().
typedef struct escrow_resource_functions {
  void* user;  // the first argument of each; called with Python's GIL or without, as the claim was
  cudaError_t (*make)(void* user, void** resource);
  // Prepares a used resource for its next use, with work on the stream. May be null.
  cudaError_t (*recycle)(void* user, void* resource, cudaStream_t stream);
  void (*destroy)(void* user, void* resource);  // may be null
} escrow_resource_functions;

typedef struct escrow_pool escrow_pool;
// `device`: -1 is the current one. `functions` is copied.
escrow_status escrow_pool_create(int device, escrow_resource_functions const* functions,
                                 escrow_options const* options, escrow_pool** pool);
// Does not wait. Each resource is destroyed when it returns.
void escrow_pool_destroy(escrow_pool* pool);

// The right to use a resource. May outlive its pool.
typedef struct escrow_lease escrow_lease;
escrow_status escrow_pool_claim(escrow_pool* pool, cudaStream_t stream, escrow_lease** lease);
// As escrow_allocator_allocate_for_host(); refused if the pool has a `recycle`.
escrow_status escrow_pool_claim_for_host(escrow_pool* pool, cudaStream_t stream,
                                         escrow_lease** lease);
// As escrow_allocator_allocate_kept().
escrow_status escrow_pool_claim_kept(escrow_pool* pool, cudaStream_t stream, escrow_lease** lease);
escrow_status escrow_lease_resource(escrow_lease* lease, void** resource);
// As escrow_allocator_record_stream().
escrow_status escrow_lease_record_stream(escrow_lease* lease, cudaStream_t stream);
// Ends the lease, after the work on `stream` so far, and frees the handle, unless it fails. In a
// CUDA callback `stream` is that of the claim.
escrow_status escrow_lease_release(escrow_lease* lease, cudaStream_t stream);
// Ends a lease of a capture that is over, and frees the handle, unless it fails: the graph keeps
// the resource until its end. Its streams may be gone. Refused for one that is not of a capture, or
// was told of a stream after it.
escrow_status escrow_lease_leave_to_graph(escrow_lease* lease);
// Ends the lease on the stream of its claim, which is alive, also in a `destroy` and in a CUDA
// callback. Errors go to on_error.
void escrow_lease_destroy(escrow_lease* lease);
// As escrow_allocator_flush().
escrow_status escrow_pool_flush(escrow_pool* pool, cudaStream_t stream);
// As escrow_allocator_close().
escrow_status escrow_pool_close(escrow_pool* pool, uint64_t timeout_ns, size_t* holders);

typedef struct escrow_pool_stats {
  size_t size;         // sizeof(escrow_pool_stats)
  uint64_t slots;      // existing resources
  uint64_t leased;     // of them, in leases and not held by graphs
  uint64_t idle;       // of them, free; earlier work may still use them
  uint64_t in_graphs;  // of them, held by graphs; may be leased, too
  uint64_t deferred;   // of them, free once an event can be recorded
  uint64_t slots_peak;
  uint64_t grown;         // resources made so far
  uint64_t stream_waits;  // claims that made their stream wait for another one
  uint64_t host_waits;    // claims that blocked the host
} escrow_pool_stats;
escrow_status escrow_pool_statistics(escrow_pool* pool, escrow_pool_stats* stats);
// As escrow_allocator_describe().
escrow_status escrow_pool_describe(escrow_pool* pool, char* text, size_t capacity, size_t* length);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
