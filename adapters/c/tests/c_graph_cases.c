// SPDX-License-Identifier: Apache-2.0
// C tests of pools, execs, hoisted graphs and groups, and null where it is refused.
#include <pthread.h>
#include <string.h>

#include "c_world.h"

static int made, recycled, ended;
static cudaError_t answer;

static cudaError_t make(void* user, void** resource) {
  EXPECT(user == &made);
  if (answer != cudaSuccess) return answer;
  ++made;
  return cudaMalloc(resource, 256);
}
static cudaError_t recycle(void* user, void* resource, cudaStream_t stream) {
  EXPECT(user == &made);
  ++recycled;
  return answer != cudaSuccess ? answer : cudaMemsetAsync(resource, 0, 256, stream);
}
static void destroy(void* user, void* resource) {
  EXPECT(user == &made);
  ++ended;
  EXPECT_CUDA(cudaFree(resource));
}
static escrow_resource_functions const functions = {&made, &make, &recycle, &destroy};

static escrow_pool* new_pool(size_t slots_max) {
  escrow_options options = {.size = sizeof options, .label = "c pool", .slots_max = slots_max};
  escrow_pool* pool = NULL;
  made = recycled = ended = 0;
  answer = cudaSuccess;
  EXPECT_OK(escrow_pool_create(0, &functions, &options, &pool));
  return pool;
}

static bool is_ended(void) {
  bool is_drained = false;
  EXPECT_OK(escrow_drain(5000000000u, &is_drained));
  return ended == made;
}

static void c_a_resource_is_claimed_and_released(void) {
  escrow_pool* const pool = new_pool(1);
  escrow_lease* lease = NULL;
  escrow_lease* second = NULL;
  void* resource = NULL;
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_OK(escrow_lease_resource(lease, &resource));
  EXPECT_CUDA(cudaMemsetAsync(resource, 1, 256, c_stream(0)));
  EXPECT_STATUS(ESCROW_EXHAUSTED, escrow_pool_claim(pool, c_stream(1), &second));
  EXPECT(second == NULL);
  EXPECT_OK(escrow_lease_record_stream(lease, c_stream(1)));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  EXPECT(recycled == 0);
  EXPECT_OK(escrow_pool_claim(pool, c_stream(1), &second));
  EXPECT(made == 1 && recycled == 1);
  escrow_pool_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_pool_statistics(pool, &stats));
  EXPECT(stats.slots == 1 && stats.leased == 1 && stats.grown == 1);
  char text[500];
  size_t length = 0;
  EXPECT_OK(escrow_pool_describe(pool, text, sizeof text, &length));
  EXPECT(strstr(text, "pool \"c pool\" on device 0, slots_max 1") == text);
  escrow_pool_destroy(pool);
  EXPECT(ended == 0);
  EXPECT_OK(escrow_lease_release(second, c_stream(1)));
  EXPECT(c_wait_until(&is_ended));
}

static void c_a_graph_keeps_a_resource(void) {
  escrow_pool* const pool = new_pool(1);
  escrow_lease* lease = NULL;
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_lease_record_stream(lease, c_stream(1)));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT_STATUS(ESCROW_EXHAUSTED, escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_pool_destroy(pool);
  EXPECT(c_wait_until(&is_ended));
}

static void c_functions_of_a_pool_may_fail(void) {
  escrow_pool* const pool = new_pool(1);
  escrow_lease* lease = NULL;
  answer = cudaErrorMemoryAllocation;
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT(escrow_last_cuda_error() == cudaErrorMemoryAllocation);
  EXPECT(strstr(escrow_last_error(), "escrow_resource_functions::make returned ") != NULL);
  answer = cudaSuccess;
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  answer = cudaErrorNotSupported;
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT(escrow_last_cuda_error() == cudaErrorNotSupported);
  answer = cudaSuccess;
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  EXPECT(made == 1);
  escrow_pool_destroy(pool);
  EXPECT(c_wait_until(&is_ended));
}

static void c_pools_refuse_options_of_allocators(void) {
  escrow_options const options = {.size = sizeof options, .bytes_max = 1};
  escrow_resource_functions nothing = {NULL, NULL, NULL, NULL};
  escrow_pool* pool = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_pool_create(0, &functions, &options, &pool));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_pool_create(0, &nothing, NULL, &pool));
  EXPECT(cudaMalloc(NULL, 1) == cudaErrorInvalidValue);
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_pool_create(1000, &functions, NULL, &pool));
  EXPECT(escrow_last_cuda_error() == cudaErrorInvalidDevice);
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_pool_create(-2, &functions, NULL, &pool));
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);  // the caller's
  nothing.make = &make;                                 // the others may be missing
  nothing.user = &made;
  EXPECT_OK(escrow_pool_create(-1, &nothing, NULL, &pool));
  escrow_pool_destroy(pool);
}

// Graphs. Each sets an integer to a value, in scratch of `memory`.

static escrow_allocator* new_memory(escrow_group* group) {
  escrow_options options = {.size = sizeof options, .label = "c scratch"};
  options.group = group;
  escrow_allocator* memory = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  return memory;
}

static cudaGraph_t new_graph(escrow_allocator* memory, int value, int nodes) {
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeRelaxed));
  void* scratch = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), sizeof(int), 0, &scratch));
  for (int i = 0; i < nodes; ++i) {
    EXPECT_CUDA(cudaMemsetAsync(scratch, value, sizeof(int), c_stream(0)));
  }
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  return graph;
}

static escrow_allocator* asked;
static bool has_none_in_graphs(void) {
  escrow_allocator_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_allocator_statistics(asked, &stats));
  return stats.bytes_in_graphs == 0;
}
static void end(escrow_allocator* memory) {
  asked = memory;
  EXPECT(c_wait_until(&has_none_in_graphs));
  escrow_allocator_destroy(memory);
}

static void c_an_exec_launches_many_runs_at_once(void) {
  escrow_allocator* const memory = new_memory(NULL);
  cudaGraph_t const graph = new_graph(memory, 1, 1);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create_with_copies(graph, 0, 4, &exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  for (size_t times = 0; times < 10; ++times) {
    EXPECT_OK(escrow_exec_launch_many(exec, c_stream(times % 2), times));
  }
  escrow_exec_destroy(exec);
  end(memory);
}

static void c_an_exec_launches_and_is_updated(void) {
  escrow_allocator* const memory = new_memory(NULL);
  cudaGraph_t const first = new_graph(memory, 1, 1);
  cudaGraph_t const second = new_graph(memory, 2, 1);
  cudaGraph_t const other = new_graph(memory, 2, 2);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create(first, 0, NULL, 0, &exec));
  EXPECT_CUDA(cudaGraphDestroy(first));
  for (int i = 0; i < 10; ++i) EXPECT_OK(escrow_exec_launch(exec, c_stream(i % 2)));
  EXPECT_OK(escrow_exec_update(exec, second, NULL, 0));
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_exec_update(exec, other, NULL, 0));
  EXPECT(escrow_last_cuda_error() == cudaErrorGraphExecUpdateFailure);
  EXPECT_CUDA(cudaGraphDestroy(second));
  EXPECT_CUDA(cudaGraphDestroy(other));
  cudaGraph_t captured = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_exec_launch(exec, c_stream(0)));
  EXPECT(strstr(escrow_last_error(), "`stream` is being captured") != NULL);
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &captured));
  EXPECT_CUDA(cudaGraphDestroy(captured));
  asked = memory;
  EXPECT_OK(escrow_exec_launch(exec, c_stream(1)));
  EXPECT(!has_none_in_graphs());
  escrow_exec_destroy(exec);
  c_sync(1);
  end(memory);
}

typedef struct plain_launch {
  cudaGraphExec_t exec;
  int stream;
} plain_launch;
static cudaError_t launch_exec(void* data) {
  plain_launch const* const what = data;
  return cudaGraphLaunch(what->exec, c_stream(what->stream));
}
static void launch_plainly(escrow_hoisted* held, cudaGraphExec_t exec, int stream) {
  plain_launch what = {exec, stream};
  EXPECT_OK(escrow_hoisted_launch(held, c_stream(stream), &launch_exec, &what, 1000000000));
}

typedef struct launch_inside {
  escrow_hoisted* held;
  escrow_exec* exec;
} launch_inside;
static cudaError_t misuse_inside(void* data) {
  launch_inside const* const what = data;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_exec_launch(what->exec, c_stream(0)));
  EXPECT(strstr(escrow_last_error(), "inside hoisted::launch()") != NULL);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_hoisted_release(what->held, c_stream(1)));
  return cudaErrorInvalidValue;
}

static void c_graphs_of_a_group_share_scratch(void) {
  escrow_group* group = NULL;
  EXPECT_OK(escrow_group_create("c group", &group));
  escrow_allocator* const memory = new_memory(group);
  cudaGraph_t const first = new_graph(memory, 1, 1);
  cudaGraph_t const second = new_graph(memory, 2, 1);
  escrow_group_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_group_statistics(group, &stats));
  EXPECT(stats.slots == 2 && stats.bytes == 2 << 20 && stats.unordered == 2);  // over each other
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create(first, 0, NULL, 0, &exec));
  escrow_hoisted* held = NULL;
  EXPECT_OK(escrow_hoist(second, NULL, 0, &held));
  cudaGraphExec_t plain = NULL;
  EXPECT_CUDA(cudaGraphInstantiate(&plain, second, 0));
  EXPECT_OK(escrow_exec_launch(exec, c_stream(0)));
  launch_plainly(held, plain, 1);
  launch_inside inside = {held, exec};
  EXPECT_STATUS(ESCROW_CUDA_ERROR,
                escrow_hoisted_launch(held, c_stream(1), &misuse_inside, &inside, 0));
  EXPECT(escrow_last_cuda_error() == cudaErrorInvalidValue);
  EXPECT_OK(escrow_group_statistics(group, &stats));
  EXPECT(stats.launches == 3 && stats.unordered == 0 && stats.stream_waits >= 1);
  EXPECT_OK(escrow_hoisted_release(held, c_stream(1)));
  escrow_exec_destroy(exec);
  EXPECT_CUDA(cudaGraphExecDestroy(plain));
  EXPECT_CUDA(cudaGraphDestroy(first));
  EXPECT_CUDA(cudaGraphDestroy(second));
  escrow_group_destroy(group);
  c_sync(0);
  c_sync(1);
  end(memory);
}

static void c_a_hoisted_graph_is_released_at_once(void) {
  escrow_allocator* const memory = new_memory(NULL);
  cudaGraph_t const graph = new_graph(memory, 1, 1);
  escrow_hoisted* held = NULL;
  EXPECT_OK(escrow_hoist(graph, NULL, 0, &held));
  asked = memory;
  EXPECT(!has_none_in_graphs());
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_hoist(graph, NULL, 0, &held));
  EXPECT_OK(escrow_hoisted_release_now(held));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  end(memory);
}

static void c_a_hoisted_graph_that_is_dropped_is_leaked(void) {
  escrow_allocator* const memory = new_memory(NULL);
  cudaGraph_t const graph = new_graph(memory, 1, 1);
  escrow_worker_stats before = {sizeof before, 0, 0, 0, 0, 0};
  escrow_worker_stats after = {sizeof after, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_worker_statistics(&before));
  escrow_hoisted* held = NULL;
  EXPECT_OK(escrow_hoist(graph, NULL, 0, &held));
  escrow_hoisted_destroy(held);
  EXPECT_OK(escrow_worker_statistics(&after));
  EXPECT(after.leaked == before.leaked + 1);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_allocator_destroy(memory);
}

static escrow_exec* destroyed_meanwhile;
static int state;  // atomic
static bool is_ended_meanwhile(void) {
  return __atomic_load_n(&state, __ATOMIC_SEQ_CST) == 2;
}
static void* destroy_exec(void* unused) {
  __atomic_store_n(&state, 1, __ATOMIC_SEQ_CST);
  escrow_exec_destroy(destroyed_meanwhile);
  __atomic_store_n(&state, 2, __ATOMIC_SEQ_CST);
  return unused;
}
static bool is_begun(void) {
  return __atomic_load_n(&state, __ATOMIC_SEQ_CST) != 0;
}

static void c_plain_calls_can_lock_graphs(void) {
  escrow_allocator* const memory = new_memory(NULL);
  cudaGraph_t const graph = new_graph(memory, 1, 1);
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &destroyed_meanwhile));
  __atomic_store_n(&state, 0, __ATOMIC_SEQ_CST);
  escrow_graphs_unlock();  // nothing
  escrow_graphs_lock();
  escrow_graphs_lock();
  escrow_graphs_unlock();
  pthread_t other;
  EXPECT(pthread_create(&other, NULL, &destroy_exec, NULL) == 0);
  EXPECT(c_wait_until(&is_begun));
  EXPECT(c_stays_false(&is_ended_meanwhile));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_graphs_unlock();
  EXPECT(pthread_join(other, NULL) == 0);
  end(memory);
}

static void c_null_is_refused_for_pools(void) {
  escrow_pool* pool = NULL;
  escrow_lease* lease = NULL;
  void* resource = NULL;
  size_t length = 0;
  escrow_pool_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  REFUSED(escrow_pool_create(-1, &functions, NULL, NULL));
  REFUSED(escrow_pool_create(-1, NULL, NULL, &pool));
  REFUSED(escrow_pool_claim(NULL, NULL, &lease));
  REFUSED(escrow_pool_statistics(NULL, &stats));
  REFUSED(escrow_pool_describe(NULL, NULL, 0, &length));
  REFUSED(escrow_lease_resource(NULL, &resource));
  REFUSED(escrow_lease_record_stream(NULL, NULL));
  REFUSED(escrow_lease_release(NULL, NULL));
  pool = new_pool(1);
  REFUSED(escrow_pool_claim(pool, c_stream(0), NULL));
  REFUSED(escrow_pool_statistics(pool, NULL));
  REFUSED(escrow_pool_describe(pool, NULL, 0, NULL));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  REFUSED(escrow_lease_resource(lease, NULL));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  escrow_pool_destroy(pool);
  escrow_pool_destroy(NULL);
  EXPECT(c_wait_until(&is_ended));
}

static void c_null_is_refused_for_graphs(void) {
  cudaGraph_t graph = NULL;
  escrow_group* group = NULL;
  escrow_exec* exec = NULL;
  escrow_hoisted* held = NULL;
  escrow_group_stats stats = {.size = sizeof stats};
  EXPECT_CUDA(cudaGraphCreate(&graph, 0));
  REFUSED(escrow_group_create(NULL, NULL));
  REFUSED(escrow_group_statistics(NULL, &stats));
  REFUSED(escrow_exec_create(NULL, 0, NULL, 0, &exec));
  REFUSED(escrow_exec_create(graph, 0, NULL, 1, &exec));
  REFUSED(escrow_exec_create(graph, 0, NULL, 0, NULL));
  REFUSED(escrow_exec_create_with_copies(NULL, 0, 2, &exec));
  REFUSED(escrow_exec_create_with_copies(graph, 0, 2, NULL));
  REFUSED(escrow_exec_launch(NULL, NULL));
  REFUSED(escrow_exec_launch_many(NULL, NULL, 1));
  REFUSED(escrow_exec_update(NULL, graph, NULL, 0));
  REFUSED(escrow_hoist(NULL, NULL, 0, &held));
  REFUSED(escrow_hoist(graph, NULL, 0, NULL));
  REFUSED(escrow_hoisted_launch(NULL, NULL, &launch_exec, NULL, 0));
  REFUSED(escrow_hoisted_release(NULL, NULL));
  REFUSED(escrow_hoisted_release_now(NULL));
  EXPECT_OK(escrow_group_create(NULL, &group));
  REFUSED(escrow_group_statistics(group, NULL));
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  REFUSED(escrow_exec_update(exec, NULL, NULL, 0));
  escrow_exec_destroy(exec);
  EXPECT_OK(escrow_hoist(graph, NULL, 0, &held));
  REFUSED(escrow_hoisted_launch(held, NULL, NULL, NULL, 0));
  EXPECT_OK(escrow_hoisted_release_now(held));
  escrow_group_destroy(group);
  escrow_exec_destroy(NULL);
  escrow_group_destroy(NULL);
  escrow_hoisted_destroy(NULL);
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

c_case const c_graph_cases[] = {
    CASE(c_a_resource_is_claimed_and_released),
    CASE(c_a_graph_keeps_a_resource),
    CASE(c_functions_of_a_pool_may_fail),
    CASE(c_pools_refuse_options_of_allocators),
    CASE(c_an_exec_launches_many_runs_at_once),
    CASE(c_an_exec_launches_and_is_updated),
    CASE(c_graphs_of_a_group_share_scratch),
    CASE(c_a_hoisted_graph_is_released_at_once),
    CASE(c_a_hoisted_graph_that_is_dropped_is_leaked),
    CASE(c_plain_calls_can_lock_graphs),
    CASE(c_null_is_refused_for_pools),
    CASE(c_null_is_refused_for_graphs),
};
size_t const c_graph_cases_count = sizeof c_graph_cases / sizeof *c_graph_cases;
