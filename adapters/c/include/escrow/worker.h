// SPDX-License-Identifier: Apache-2.0
// Part of escrow/escrow.h, which has the rules: versions, errors, the worker, and what it destroys.
#ifndef ESCROW_WORKER_H
#define ESCROW_WORKER_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// The version of this header: 10000 * major + 100 * minor + patch. escrow_version() has that of the
// library. Before 1.0 a minor version may change the ABI; a patch may add functions, and members at
// the ends of structs with a `size`.
#define ESCROW_C_VERSION 200
int escrow_version(void);

typedef enum escrow_status {
  ESCROW_OK = 0,
  ESCROW_USAGE_ERROR = 1,  // the text says what to do
  ESCROW_CUDA_ERROR = 2,   // see escrow_last_cuda_error(); a lack of device memory, too
  ESCROW_EXHAUSTED = 3,    // a limit is reached: the text names what holds the rest
  ESCROW_GROUP_BUSY = 4,   // see escrow_hoisted_launch()
  ESCROW_OUT_OF_HOST_MEMORY = 5,
  ESCROW_UNKNOWN_ERROR = 6
} escrow_status;

// The text of this thread's last failed call, until its next one fails; "" if none did. At most
// 2047 characters.
char const* escrow_last_error(void);
// CUDA's error in that call; cudaSuccess if it was no ESCROW_CUDA_ERROR.
cudaError_t escrow_last_cuda_error(void);
// Whether that call was an escrow_retire...() that has taken the object all the same.
bool escrow_last_error_took_object(void);

// The source line of this thread's next call that returns an escrow_status: errors, and reports of
// what it claims, name it. `file` must stay, as a literal does. escrow/callers.h says it for you.
void escrow_set_caller(char const* file, int line);

// The worker, which destroys what the GPU no longer needs. The process has one. `text` ends with
// the call.
typedef void (*escrow_error_handler)(void* user, escrow_status status, cudaError_t cuda_error,
                                     char const* text);
// Errors that no call can return go to `handler`, possibly concurrently; null: to nobody. A call of
// the previous handler may still run when this returns.
escrow_status escrow_on_error(escrow_error_handler handler, void* user);

// Waits until everything that was retired or freed before the call, and that no graph holds, is
// destroyed, for at most `timeout_ns`. `is_drained`: whether it is.
escrow_status escrow_drain(uint64_t timeout_ns, bool* is_drained);

// Statistics are read one by one, so they may be inconsistent by a few. Set `size` before the call.
typedef struct escrow_worker_stats {
  size_t size;  // sizeof(escrow_worker_stats)
  uint64_t reclaimed;
  uint64_t pending;    // waiting for the GPU
  uint64_t in_graphs;  // held by graphs and execs
  uint64_t leaked;     // never freed: not known when the GPU is done
  uint64_t errors;     // reported to on_error
} escrow_worker_stats;
escrow_status escrow_worker_statistics(escrow_worker_stats* stats);

// Calls `destroy(object)` on the worker once the GPU no longer needs the object: after the work on
// `stream` so far, or, if that is being captured, when the graph no longer needs it. If it fails,
// the object is still the caller's, unless escrow_last_error_took_object(). Then the worker
// destroys it, or it is leaked and counted, since work may use it. Do not launch what was captured.
typedef void (*escrow_destroy)(void* object);
escrow_status escrow_retire(cudaStream_t stream, escrow_destroy destroy, void* object);
// The same, as soon as possible: for an object that no GPU work uses. Also in CUDA callbacks.
escrow_status escrow_retire_now(escrow_destroy destroy, void* object);
// The same, when `graph`, and clones and execs that are made after this call, are destroyed and
// their launches done.
escrow_status escrow_retire_with_graph(cudaGraph_t graph, escrow_destroy destroy, void* object);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
