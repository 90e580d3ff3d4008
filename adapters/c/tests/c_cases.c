// The list of the C tests, and null in every place that may not be null.
#include "c_cases.h"

#include <string.h>

#define REFUSED(call)                                                             \
  do {                                                                            \
    EXPECT_STATUS(ESCROW_USAGE_ERROR, call);                                      \
    EXPECT(strstr(escrow_last_error(), "` is null; pass what it names") != NULL); \
  } while (0)

static cudaError_t make(void* user, void** resource) {
  *resource = user;
  return cudaSuccess;
}
static void ignore(void* object) {
  (void)object;
}

static void refuses_null_memory(void) {
  escrow_allocator* memory = NULL;
  void* address = NULL;
  size_t number = 0;
  escrow_allocator_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  REFUSED(escrow_allocator_create(-1, NULL, NULL));
  REFUSED(escrow_allocator_allocate(NULL, NULL, 1, 0, &address));
  REFUSED(escrow_allocator_free(NULL, NULL, NULL));
  REFUSED(escrow_allocator_record_stream(NULL, NULL, &number));
  REFUSED(escrow_allocator_allocate_sync(NULL, 1, 0, &address));
  REFUSED(escrow_allocator_free_sync(NULL, NULL));
  REFUSED(escrow_allocator_leave_to_graph(NULL, &number));
  REFUSED(escrow_allocator_trim(NULL, 0, &number));
  REFUSED(escrow_allocator_statistics(NULL, &stats));
  REFUSED(escrow_allocator_describe(NULL, NULL, 0, &number));
  EXPECT_OK(escrow_allocator_create(-1, NULL, &memory));
  REFUSED(escrow_allocator_allocate(memory, NULL, 1, 0, NULL));
  REFUSED(escrow_allocator_allocate_sync(memory, 1, 0, NULL));
  REFUSED(escrow_allocator_leave_to_graph(memory, NULL));
  REFUSED(escrow_allocator_trim(memory, 0, NULL));
  REFUSED(escrow_allocator_statistics(memory, NULL));
  REFUSED(escrow_allocator_describe(memory, NULL, 0, NULL));
  escrow_allocator_destroy(memory);
  escrow_allocator_destroy(NULL);
}

static void refuses_null_pools(void) {
  escrow_resource_functions const functions = {NULL, &make, NULL, NULL};
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
  EXPECT_OK(escrow_pool_create(-1, &functions, NULL, &pool));
  REFUSED(escrow_pool_claim(pool, c_stream(0), NULL));
  REFUSED(escrow_pool_statistics(pool, NULL));
  REFUSED(escrow_pool_describe(pool, NULL, 0, NULL));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  REFUSED(escrow_lease_resource(lease, NULL));
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  escrow_pool_destroy(pool);
  escrow_pool_destroy(NULL);
}

static void refuses_null_graphs(void) {
  cudaGraph_t graph = NULL;
  escrow_group* group = NULL;
  escrow_exec* exec = NULL;
  escrow_hoisted* held = NULL;
  escrow_group_stats stats = {sizeof stats, 0, 0, 0, 0, 0};
  EXPECT_CUDA(cudaGraphCreate(&graph, 0));
  REFUSED(escrow_group_create(NULL, NULL));
  REFUSED(escrow_group_statistics(NULL, &stats));
  REFUSED(escrow_exec_create(NULL, 0, NULL, 0, &exec));
  REFUSED(escrow_exec_create(graph, 0, NULL, 1, &exec));
  REFUSED(escrow_exec_create(graph, 0, NULL, 0, NULL));
  REFUSED(escrow_exec_launch(NULL, NULL));
  REFUSED(escrow_exec_update(NULL, graph, NULL, 0));
  REFUSED(escrow_hoist(NULL, NULL, 0, &held));
  REFUSED(escrow_hoist(graph, NULL, 0, NULL));
  REFUSED(escrow_hoisted_enter(NULL, NULL, 0));
  REFUSED(escrow_hoisted_leave(NULL, NULL));
  REFUSED(escrow_hoisted_release(NULL, NULL));
  REFUSED(escrow_hoisted_release_now(NULL));
  EXPECT_OK(escrow_group_create(NULL, &group));
  REFUSED(escrow_group_statistics(group, NULL));
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  REFUSED(escrow_exec_update(exec, NULL, NULL, 0));
  escrow_exec_destroy(exec);
  escrow_group_destroy(group);
  escrow_exec_destroy(NULL);
  escrow_group_destroy(NULL);
  escrow_hoisted_destroy(NULL);
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

void c_null_is_refused(void) {
  refuses_null_memory();
  refuses_null_pools();
  refuses_null_graphs();
  REFUSED(escrow_drain(0, NULL));
  REFUSED(escrow_worker_statistics(NULL));
  REFUSED(escrow_retire(NULL, NULL, NULL));
  REFUSED(escrow_retire_now(NULL, NULL));
  REFUSED(escrow_retire_with_graph(NULL, &ignore, NULL));
  EXPECT(!escrow_last_error_took_object());
}

#define CASE(name) \
  { #name, &name }
c_case const c_cases[] = {
    CASE(c_version_is_the_headers),
    CASE(c_errors_are_kept_for_each_thread),
    CASE(c_memory_is_used_again),
    CASE(c_memory_without_a_stream),
    CASE(c_a_limit_is_reached),
    CASE(c_a_graph_keeps_memory),
    CASE(c_descriptions_are_cut),
    CASE(c_structs_may_be_of_an_older_header),
    CASE(c_objects_are_destroyed_after_the_work),
    CASE(c_objects_are_destroyed_after_their_graph),
    CASE(c_errors_without_a_call_are_reported),
    CASE(c_a_resource_is_claimed_and_released),
    CASE(c_a_graph_keeps_a_resource),
    CASE(c_functions_of_a_pool_may_fail),
    CASE(c_pools_refuse_options_of_allocators),
    CASE(c_an_exec_launches_and_is_updated),
    CASE(c_graphs_of_a_group_share_scratch),
    CASE(c_a_hoisted_graph_is_released_at_once),
    CASE(c_a_hoisted_graph_that_is_dropped_is_leaked),
    CASE(c_plain_calls_can_lock_graphs),
    CASE(c_null_is_refused),
};
size_t const c_case_count = sizeof c_cases / sizeof *c_cases;
