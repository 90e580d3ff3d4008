// SPDX-License-Identifier: Apache-2.0
// C tests of what ports of engines use: execs that are updated or made, a group's eager work,
// flushes, callers' lines, and the statistics of the process.
#include <escrow/callers.h>
#include <string.h>

#include "c_world.h"

enum { mib = 1 << 20 };

static escrow_allocator* new_memory(escrow_options options) {
  escrow_allocator* memory = NULL;
  options.size = sizeof options;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  return memory;
}
static escrow_allocator_stats stats_of(escrow_allocator* memory) {
  escrow_allocator_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_allocator_statistics(memory, &stats));
  return stats;
}
static escrow_process_stats process_stats(int device) {
  escrow_process_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_process_statistics(device, &stats));
  return stats;
}

static escrow_allocator* asked;
static bool has_none_in_graphs(void) {
  return stats_of(asked).bytes_in_graphs == 0;
}
static void end(escrow_allocator* memory) {
  asked = memory;
  EXPECT(c_wait_until(&has_none_in_graphs));
  escrow_allocator_destroy(memory);
}

static cudaGraph_t new_graph(escrow_allocator* memory, int nodes) {
  cudaGraph_t graph = NULL;
  void* scratch = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeRelaxed));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), mib, 0, &scratch));
  for (int i = 0; i < nodes; ++i) EXPECT_CUDA(cudaMemsetAsync(scratch, i, mib, c_stream(0)));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  return graph;
}

// An engine that captures each step anew, and destroys what it captured before.
static void c_an_exec_is_updated_or_made(void) {
  escrow_allocator* const memory = new_memory((escrow_options){.label = "steps"});
  escrow_exec* exec = NULL;
  int const nodes[] = {1, 1, 3, 3, 1};
  bool const are_new[] = {true, false, true, false, true};
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; ++i) {
    cudaGraph_t const graph = new_graph(memory, nodes[i]);
    bool is_created = !are_new[i];
    EXPECT_OK(escrow_exec_update_or_create(&exec, graph, 0, NULL, 0, &is_created));
    EXPECT(is_created == are_new[i]);
    EXPECT_OK(escrow_graph_destroy(graph));
    EXPECT_OK(escrow_exec_launch(exec, c_stream(i % 2)));
  }
  escrow_exec_destroy(exec);
  c_sync(0);
  c_sync(1);
  end(memory);
}

static void c_an_exec_that_cannot_be_made_anew_stays(void) {
  escrow_allocator* const memory = new_memory((escrow_options){.label = "steps"});
  cudaGraph_t const first = new_graph(memory, 1);
  cudaGraph_t const other = new_graph(memory, 2);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create_with_copies(first, 0, 2, &exec));
  escrow_exec* const before = exec;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_exec_update_or_create(&exec, other, 0, NULL, 1, NULL));
  EXPECT_STATUS(ESCROW_CUDA_ERROR,
                escrow_exec_update_or_create(&exec, other, 1ull << 60, NULL, 0, NULL));
  EXPECT(exec == before);
  EXPECT_OK(escrow_exec_launch_many(exec, c_stream(0), 5));
  EXPECT_OK(escrow_exec_update_or_create(&exec, other, 0, NULL, 0, NULL));
  EXPECT_OK(escrow_exec_launch_many(exec, c_stream(0), 5));
  escrow_exec_destroy(exec);
  EXPECT_OK(escrow_graph_destroy(first));
  EXPECT_OK(escrow_graph_destroy(other));
  EXPECT_OK(escrow_graph_destroy(NULL));
  end(memory);
}

// Beside somebody else's capture, which goes on.
static void c_a_graph_is_destroyed_beside_a_capture(void) {
  escrow_allocator* const memory = new_memory((escrow_options){.label = "one"});
  cudaGraph_t const graph = new_graph(memory, 1);
  cudaGraph_t captured = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(1), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_graph_destroy(graph));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(1), &captured));
  EXPECT_OK(escrow_graph_destroy(captured));
  end(memory);
}

// A group's eager work.

typedef struct eager_work {
  escrow_allocator* memory;
  escrow_group* group;
  void* address;
  bool is_freed;
  cudaError_t result;
} eager_work;

static cudaError_t work_eagerly(void* data) {
  eager_work* const work = data;
  EXPECT_OK(escrow_allocator_allocate(work->memory, c_stream(0), mib, 0, &work->address));
  EXPECT_CUDA(cudaMemsetAsync(work->address, 1, mib, c_stream(0)));
  EXPECT_STATUS(ESCROW_USAGE_ERROR,
                escrow_group_run(work->group, c_stream(0), &work_eagerly, work, 0));
  if (work->is_freed) EXPECT_OK(escrow_allocator_free(work->memory, c_stream(0), work->address));
  return work->result;
}

static void c_eager_work_shares_the_memory_of_a_groups_graphs(void) {
  escrow_group* group = NULL;
  EXPECT_OK(escrow_group_create("engine", &group));
  escrow_allocator* const memory = new_memory((escrow_options){.label = "steps", .group = group});
  eager_work work = {memory, group, NULL, true, cudaSuccess};
  EXPECT_OK(escrow_group_run(group, c_stream(0), &work_eagerly, &work, 0));
  EXPECT(stats_of(memory).bytes_in_use == 0);
  cudaGraph_t const graph = new_graph(memory, 1);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  EXPECT_OK(escrow_graph_destroy(graph));
  EXPECT_OK(escrow_exec_launch(exec, c_stream(1)));
  EXPECT_OK(escrow_group_run(group, c_stream(0), &work_eagerly, &work, 0));
  escrow_group_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_group_statistics(group, &stats));
  EXPECT(stats.bytes == 2 * mib && stats.launches == 3 && stats.stream_waits >= 1);

  work.result = cudaErrorInvalidValue;
  EXPECT_STATUS(ESCROW_CUDA_ERROR, escrow_group_run(group, c_stream(0), &work_eagerly, &work, 0));
  EXPECT(escrow_last_cuda_error() == cudaErrorInvalidValue);
  work.result = cudaSuccess;
  work.is_freed = false;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_run(group, c_stream(0), &work_eagerly, &work, 0));
  EXPECT(strstr(escrow_last_error(), "outlives the call") != NULL);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), work.address));

  escrow_exec_destroy(exec);
  escrow_group_destroy(group);
  c_sync(0);
  c_sync(1);
  end(memory);
}

static void c_eager_work_does_not_run_in_a_capture(void) {
  escrow_group* group = NULL;
  cudaGraph_t captured = NULL;
  EXPECT_OK(escrow_group_create("engine", &group));
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_run(group, c_stream(0), &work_eagerly, NULL, 0));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &captured));
  EXPECT_OK(escrow_graph_destroy(captured));
  escrow_group_destroy(group);
}

// Flushes.

static void c_a_flush_lets_a_trim_reach_what_a_stream_keeps(void) {
  escrow_allocator* const memory = new_memory((escrow_options){.streams_outlive_pool = 1});
  void* blocks[2];
  for (size_t i = 0; i < 2; ++i)
    EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), (i + 1) * mib, 0, &blocks[i]));
  for (size_t i = 0; i < 2; ++i) EXPECT_OK(escrow_allocator_free(memory, c_stream(0), blocks[i]));
  size_t freed = 1;
  c_sync(0);
  EXPECT_OK(escrow_allocator_trim(memory, 0, &freed));
  EXPECT(freed == 0);
  EXPECT_OK(escrow_allocator_flush(memory, c_stream(0)));
  c_sync(0);
  EXPECT_OK(escrow_allocator_trim(memory, 0, &freed));
  EXPECT(freed == 3 * mib && stats_of(memory).bytes == 0);

  cudaGraph_t captured = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_flush(memory, c_stream(0)));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &captured));
  EXPECT_OK(escrow_graph_destroy(captured));
  escrow_allocator_destroy(memory);
}

static char thing;
static cudaError_t make(void* user, void** resource) {
  (void)user;
  *resource = &thing;
  return cudaSuccess;
}

static void c_a_flush_lets_other_streams_claim_what_one_keeps(void) {
  escrow_resource_functions const functions = {.make = &make};
  escrow_options const options = {
      .size = sizeof options, .slots_max = 2, .streams_outlive_pool = 1};
  escrow_pool* pool = NULL;
  escrow_lease* first = NULL;
  escrow_lease* second = NULL;
  EXPECT_OK(escrow_pool_create(-1, &functions, &options, &pool));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &first));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(1), &second));
  EXPECT_OK(escrow_lease_release(first, c_stream(0)));
  EXPECT_STATUS(ESCROW_EXHAUSTED, escrow_pool_claim(pool, c_stream(1), &first));
  EXPECT_OK(escrow_pool_flush(pool, c_stream(0)));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(1), &first));
  EXPECT_OK(escrow_lease_release(first, c_stream(1)));
  EXPECT_OK(escrow_lease_release(second, c_stream(1)));
  escrow_pool_destroy(pool);
}

// Callers.

static char const* described(escrow_allocator* memory) {
  static char text[2000];
  size_t length = 0;
  EXPECT_OK(escrow_allocator_describe(memory, text, sizeof text, &length));
  return text;
}

static void c_errors_and_reports_name_the_callers_line(void) {
  escrow_allocator* const memory =
      new_memory((escrow_options){.track_leases = 1, .bytes_max = mib});
  void* address = NULL;
  void* other = NULL;
#line 1000 "engine.c"
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), mib, 0, &address));
  EXPECT_STATUS(ESCROW_EXHAUSTED, escrow_allocator_allocate(memory, c_stream(0), mib, 0, &other));
  char const* const text = "engine.c:1001: escrow_allocator_allocate: ";
  EXPECT(strncmp(escrow_last_error(), text, strlen(text)) == 0);
  EXPECT(strstr(escrow_last_error(), "the claim at engine.c:1000") != NULL);
  EXPECT(strstr(described(memory), "since the claim at engine.c:1000") != NULL);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));

  escrow_set_caller("library.c", 7);  // by hand, for the next call alone
  EXPECT_STATUS(ESCROW_USAGE_ERROR, (escrow_allocator_leave_to_graph)(memory, &thing));
  EXPECT(strstr(escrow_last_error(), "library.c:7: escrow_allocator_leave_to_graph: ") ==
         escrow_last_error());
  EXPECT_STATUS(ESCROW_USAGE_ERROR, (escrow_allocator_leave_to_graph)(memory, &thing));
  EXPECT(strstr(escrow_last_error(), "escrow_allocator_leave_to_graph: ") == escrow_last_error());

  EXPECT_OK((escrow_allocator_allocate)(memory, c_stream(0), mib, 0, &address));
  EXPECT(strstr(described(memory), "a lease holds 1") != NULL);
  EXPECT(strstr(described(memory), "since the claim") == NULL);  // nobody said where
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  escrow_allocator_destroy(memory);
}

static void expect_error_is(char const* text) {
  EXPECT(strncmp(escrow_last_error(), text, strlen(text)) == 0);
}

static void c_a_handle_that_was_destroyed_is_refused_by_name(void) {
  escrow_allocator* const memory = new_memory((escrow_options){0});
  escrow_group* group = NULL;
  EXPECT_OK(escrow_group_create("engine", &group));
  escrow_allocator_destroy(memory);
  escrow_group_destroy(group);
  char const* const rest = "destroyed; destroy a handle once, after its last use";
#line 2000 "engine.c"
  escrow_allocator_destroy(memory);
  expect_error_is("engine.c:2000: escrow_allocator_destroy: `handle` was ");
  EXPECT(strstr(escrow_last_error(), rest) != NULL);
  void* address = NULL;
#line 2010 "engine.c"
  EXPECT_STATUS(ESCROW_USAGE_ERROR,
                escrow_allocator_allocate(memory, c_stream(0), mib, 0, &address));
  EXPECT(strstr(escrow_last_error(), "escrow_allocator_allocate: `allocator` was destroyed") !=
         NULL);
  escrow_group_destroy(group);
  EXPECT(strstr(escrow_last_error(), "escrow_group_destroy: `handle` was destroyed") != NULL);
  escrow_group_destroy(NULL);
  escrow_allocator* late = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR,
                escrow_allocator_create(
                    -1, &(escrow_options){.size = sizeof(escrow_options), .group = group}, &late));
  EXPECT(strstr(escrow_last_error(), "`options->group` was destroyed") != NULL);
  cudaGraph_t graph = NULL;
  EXPECT(cudaGraphCreate(&graph, 0) == cudaSuccess);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  escrow_exec_destroy(exec);
  bool is_created = false;
  EXPECT_STATUS(ESCROW_USAGE_ERROR,
                escrow_exec_update_or_create(&exec, graph, 0, NULL, 0, &is_created));
  EXPECT(strstr(escrow_last_error(), "`*exec` was destroyed") != NULL);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
  escrow_process_stats of_all = {.size = sizeof(escrow_process_stats)};
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_process_statistics(-7, &of_all));
  EXPECT(strstr(escrow_last_error(), "`device` is no device") != NULL);
  escrow_captured* const other = (escrow_captured*)new_memory((escrow_options){0});
  EXPECT(escrow_captured_graph(other) == NULL);
  EXPECT(strstr(escrow_last_error(), "`captured` is no handle of this type") != NULL);
  escrow_allocator_destroy((escrow_allocator*)other);
  EXPECT(escrow_captured_graph(other) == NULL);
  EXPECT(strstr(escrow_last_error(), "`captured` was destroyed") != NULL);
}

// Statistics of the process.

static void c_the_process_is_summed_up(void) {
  escrow_process_stats const before = process_stats(-1);
  escrow_group* group = NULL;
  EXPECT_OK(escrow_group_create("engine", &group));
  escrow_allocator* const one = new_memory((escrow_options){.label = "one"});
  escrow_allocator* const two = new_memory((escrow_options){.label = "two", .group = group});
  void* address = NULL;
  EXPECT_OK(escrow_allocator_allocate(one, c_stream(0), mib, 0, &address));
  cudaGraph_t const graph = new_graph(two, 1);
  escrow_process_stats now = process_stats(-1);
  EXPECT(now.pools == before.pools + 2 && now.groups == before.groups + 1);
  EXPECT(now.bytes_in_use == before.bytes_in_use + mib);
  EXPECT(now.bytes_in_arenas == before.bytes_in_arenas + 2 * mib);
  EXPECT(now.graphs == before.graphs + 1 && now.bytes_reserved >= now.bytes_in_arenas);
  EXPECT(now.bytes >= now.bytes_in_use + now.bytes_idle);
  escrow_exec* exec = NULL;
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  now = process_stats(0);
  EXPECT(now.execs == before.execs + 1);
  EXPECT(process_stats(1000).pools == 0 && process_stats(1000).bytes == 0);
  escrow_exec_destroy(exec);
  EXPECT_OK(escrow_graph_destroy(graph));
  EXPECT_OK(escrow_allocator_free(one, c_stream(0), address));
  end(two);
  escrow_allocator_destroy(one);
  escrow_group_destroy(group);
}

static void c_null_is_refused_for_clients(void) {
  cudaGraph_t graph = NULL;
  escrow_exec* exec = NULL;
  escrow_group* group = NULL;
  EXPECT_CUDA(cudaGraphCreate(&graph, 0));
  EXPECT_OK(escrow_group_create(NULL, &group));
  REFUSED(escrow_exec_update_or_create(NULL, graph, 0, NULL, 0, NULL));
  REFUSED(escrow_exec_update_or_create(&exec, NULL, 0, NULL, 0, NULL));
  REFUSED(escrow_group_run(NULL, c_stream(0), &work_eagerly, NULL, 0));
  REFUSED(escrow_group_run(group, c_stream(0), NULL, NULL, 0));
  REFUSED(escrow_allocator_flush(NULL, c_stream(0)));
  REFUSED(escrow_pool_flush(NULL, c_stream(0)));
  REFUSED(escrow_process_statistics(-1, NULL));
  escrow_process_stats unset = {0};
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_process_statistics(-1, &unset));
  EXPECT(exec == NULL);
  escrow_group_destroy(group);
  EXPECT_OK(escrow_graph_destroy(graph));
}

// As an engine that captures anew, and updates its exec if the graph fits.
static void c_ends_captures_of_others(void) {
  escrow_allocator* const memory = new_memory((escrow_options){.label = "captures"});
  escrow_exec* exec = NULL;
  for (int i = 0; i < 3; ++i) {
    void* scratch = NULL;
    escrow_captured* captured = NULL;
    bool is_created = false;
    EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeThreadLocal));
    EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), 64, 0, &scratch));
    EXPECT_CUDA(cudaMemsetAsync(scratch, i, 64, c_stream(0)));
    EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
    EXPECT_OK(escrow_capture_end(c_stream(0), &captured));
    EXPECT(escrow_captured_graph(captured) != NULL);
    EXPECT_OK(escrow_exec_update_or_create(&exec, escrow_captured_graph(captured), 0, NULL, 0,
                                           &is_created));
    EXPECT(is_created == (i == 0));
    escrow_captured_destroy(captured);
    EXPECT_OK(escrow_exec_launch(exec, c_stream(0)));
  }
  escrow_exec_destroy(exec);
  c_sync(0);
  escrow_captured* none = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_capture_end(c_stream(0), &none));
  EXPECT(none == NULL);
  EXPECT(escrow_captured_graph(NULL) == NULL);
  escrow_captured_destroy(NULL);
  escrow_allocator_destroy(memory);
}

c_case const c_client_cases[] = {
    CASE(c_ends_captures_of_others),
    CASE(c_an_exec_is_updated_or_made),
    CASE(c_an_exec_that_cannot_be_made_anew_stays),
    CASE(c_a_graph_is_destroyed_beside_a_capture),
    CASE(c_eager_work_shares_the_memory_of_a_groups_graphs),
    CASE(c_eager_work_does_not_run_in_a_capture),
    CASE(c_a_flush_lets_a_trim_reach_what_a_stream_keeps),
    CASE(c_a_flush_lets_other_streams_claim_what_one_keeps),
    CASE(c_errors_and_reports_name_the_callers_line),
    CASE(c_a_handle_that_was_destroyed_is_refused_by_name),
    CASE(c_the_process_is_summed_up),
    CASE(c_null_is_refused_for_clients),
};
size_t const c_client_cases_count = sizeof c_client_cases / sizeof *c_client_cases;
