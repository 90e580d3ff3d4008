// SPDX-License-Identifier: Apache-2.0
// C tests of leases: for the host, kept, left to a graph, and ended in callbacks and destructors.
#include <string.h>

#include "c_world.h"

static char things[256];
static int next;
static cudaError_t make(void* user, void** resource) {
  (void)user;
  *resource = &things[++next % (int)sizeof things];
  return cudaSuccess;
}
static cudaError_t recycle(void* user, void* resource, cudaStream_t stream) {
  (void)user, (void)resource, (void)stream;
  return cudaSuccess;
}

static int seen_device;
static cudaError_t recycle_on_its_device(void* user, void* resource, cudaStream_t stream) {
  (void)user, (void)resource, (void)stream;
  return cudaGetDevice(&seen_device);
}

static void c_resources_are_recycled_on_the_pools_device(void) {
  int devices = 0;
  EXPECT(cudaGetDeviceCount(&devices) == cudaSuccess);
  int const other = devices - 1;  // the same, if there is one
  EXPECT(cudaSetDevice(other) == cudaSuccess);
  cudaStream_t stream = NULL;
  EXPECT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(cudaSetDevice(0) == cudaSuccess);
  escrow_options const options = {.size = sizeof options, .slots_max = 1};
  escrow_resource_functions const functions = {.make = &make, .recycle = &recycle_on_its_device};
  escrow_pool* pool = NULL;
  EXPECT_OK(escrow_pool_create(other, &functions, &options, &pool));
  seen_device = -1;
  for (int i = 0; i < 2; ++i) {
    escrow_lease* lease = NULL;
    EXPECT_OK(escrow_pool_claim(pool, stream, &lease));
    EXPECT_OK(escrow_lease_release(lease, stream));
  }
  EXPECT(seen_device == other);
  int now = -1;
  EXPECT(cudaGetDevice(&now) == cudaSuccess && now == 0);
  escrow_pool_destroy(pool);
  EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
}

static escrow_pool* new_pool(escrow_options options) {
  escrow_resource_functions const functions = {.make = &make};
  escrow_pool* pool = NULL;
  options.size = sizeof options;
  EXPECT_OK(escrow_pool_create(-1, &functions, &options, &pool));
  return pool;
}
static escrow_pool_stats pool_stats_of(escrow_pool* pool) {
  escrow_pool_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_pool_statistics(pool, &stats));
  return stats;
}
static void* resource_of(escrow_lease* lease) {
  void* resource = NULL;
  EXPECT_OK(escrow_lease_resource(lease, &resource));
  return resource;
}

static void resources_for_the_host(bool is_default) {
  escrow_pool* const pool = new_pool((escrow_options){.host_ordered = is_default});
  escrow_lease* busy = NULL;
  escrow_lease* lease = NULL;
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &busy));
  void* const resource = resource_of(busy);
  c_hold_up(c_stream(0));
  EXPECT_OK(escrow_lease_release(busy, c_stream(0)));
  EXPECT_OK(is_default ? escrow_pool_claim(pool, c_stream(0), &lease)
                       : escrow_pool_claim_for_host(pool, c_stream(0), &lease));
  EXPECT(resource_of(lease) != resource);
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  c_go();
  escrow_pool_destroy(pool);
}
static void c_resources_for_the_host_are_used_by_no_work(void) {
  resources_for_the_host(false);
}
static void c_resources_are_for_the_host_by_an_option(void) {
  resources_for_the_host(true);
  escrow_options const options = {.size = sizeof options, .host_ordered = 1};
  escrow_resource_functions const functions = {.make = &make, .recycle = &recycle};
  escrow_pool* pool = NULL;
  escrow_lease* lease = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_pool_create(-1, &functions, &options, &pool));
  EXPECT_OK(escrow_pool_create(-1, &functions, NULL, &pool));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_pool_claim_for_host(pool, c_stream(0), &lease));
  escrow_pool_destroy(pool);
}

// The resource that a graph's capture claimed and released.
static void* captured_resource(escrow_pool* pool, cudaGraph_t* graph,
                               escrow_status (*claim)(escrow_pool*, cudaStream_t, escrow_lease**)) {
  escrow_lease* lease = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(claim(pool, c_stream(0), &lease));
  void* const resource = resource_of(lease);
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), graph));
  return resource;
}

static void c_kept_resources_are_shared_with_no_graph(void) {
  escrow_options options = {.slots_max = 4};
  EXPECT_OK(escrow_group_create(NULL, &options.group));
  escrow_pool* const pool = new_pool(options);
  cudaGraph_t graphs[3] = {NULL, NULL, NULL};
  void* const output = captured_resource(pool, &graphs[0], &escrow_pool_claim_kept);
  void* const scratch = captured_resource(pool, &graphs[1], &escrow_pool_claim);
  EXPECT(scratch != output);
  EXPECT(captured_resource(pool, &graphs[2], &escrow_pool_claim) == scratch);
  for (int i = 0; i < 3; ++i) EXPECT_CUDA(cudaGraphDestroy(graphs[i]));
  escrow_pool_destroy(pool);
  escrow_group_destroy(options.group);
}

static void c_a_lease_is_left_to_its_graph_when_its_stream_is_gone(void) {
  escrow_pool* const pool = new_pool((escrow_options){.slots_max = 2});
  escrow_lease* eager = NULL;
  escrow_lease* lease = NULL;
  cudaStream_t temporary = NULL;
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamCreate(&temporary));
  EXPECT_CUDA(cudaStreamBeginCapture(temporary, cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(escrow_pool_claim(pool, temporary, &lease));
  EXPECT_CUDA(cudaStreamEndCapture(temporary, &graph));
  EXPECT_CUDA(cudaStreamDestroy(temporary));
  EXPECT_OK(escrow_lease_leave_to_graph(lease));
  EXPECT(pool_stats_of(pool).in_graphs == 1 && pool_stats_of(pool).leased == 0);
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &eager));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_lease_leave_to_graph(eager));
  EXPECT_OK(escrow_lease_release(eager, c_stream(0)));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_pool_destroy(pool);
}

static void c_held_resources_stay_until_the_close(void) {
  escrow_pool* const pool = new_pool((escrow_options){.held_until_closed = 1});
  cudaGraph_t graph = NULL;
  escrow_lease* lease = NULL;
  size_t holders = 7;
  (void)captured_resource(pool, &graph, &escrow_pool_claim);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT(pool_stats_of(pool).in_graphs == 1);
  EXPECT_OK(escrow_pool_close(pool, 0, &holders));
  EXPECT(holders != 0);
  EXPECT_OK(escrow_lease_release(lease, c_stream(0)));
  EXPECT_OK(escrow_pool_close(pool, 5000000000u, &holders));
  EXPECT(holders == 0 && pool_stats_of(pool).slots == 0);
  escrow_pool_destroy(pool);
}

// A request that owns a lease: it ends with it.
static void end_lease(void* lease) {
  escrow_lease_destroy(lease);
}
static void CUDART_CB end_lease_in_a_callback(void* lease) {
  escrow_lease_destroy(lease);
}
static escrow_pool* waited_for;
static bool is_idle(void) {
  bool is_drained = false;
  EXPECT_OK(escrow_drain(5000000000u, &is_drained));
  return pool_stats_of(waited_for).idle == 1;
}

static void c_a_lease_ends_in_a_destroy_and_in_a_callback(void) {
  escrow_pool* const pool = waited_for = new_pool((escrow_options){.slots_max = 1});
  escrow_lease* lease = NULL;
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  EXPECT_OK(escrow_retire(c_stream(0), &end_lease, lease));
  bool is_drained = false;
  c_sync(0);
  EXPECT_OK(escrow_drain(5000000000u, &is_drained));
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));  // records what was deferred
  EXPECT_CUDA(cudaLaunchHostFunc(c_stream(0), &end_lease_in_a_callback, lease));
  c_sync(0);
  EXPECT_OK(escrow_pool_claim(pool, c_stream(0), &lease));
  escrow_lease_destroy(lease);
  EXPECT(c_wait_until(&is_idle));
  escrow_pool_destroy(pool);
}

static void c_an_audit_finds_memory_that_the_graph_does_not_keep(void) {
  escrow_options const options = {.size = sizeof options, .label = "c audits"};
  escrow_allocator* allocator = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &allocator));
  void* memory = NULL;
  EXPECT_OK(escrow_allocator_allocate(allocator, c_stream(0), 64, 0, &memory));
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(cudaMemsetAsync(memory, 0, 64, c_stream(0)));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  char text[512] = "";
  size_t findings = 7;
  size_t length = 7;
  EXPECT_OK(escrow_graph_audit(graph, NULL, 0, &findings, text, sizeof text, &length));
  EXPECT(findings == 0 && length == 0);  // it is allocated
  EXPECT_OK(escrow_allocator_free(allocator, c_stream(0), memory));
  EXPECT_OK(escrow_graph_audit(graph, NULL, 0, &findings, text, sizeof text, &length));
  EXPECT(findings == 1 && length == strlen(text));
  EXPECT(strstr(text, "c audits") != NULL && strstr(text, "where it is free") != NULL);
  REFUSED(escrow_graph_audit(NULL, NULL, 0, &findings, NULL, 0, &length));
  REFUSED(escrow_graph_audit(graph, NULL, 1, &findings, NULL, 0, &length));
  REFUSED(escrow_graph_audit(graph, NULL, 0, NULL, NULL, 0, &length));
  REFUSED(escrow_graph_audit(graph, NULL, 0, &findings, NULL, 0, NULL));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_allocator_destroy(allocator);
}

static void c_null_is_refused_for_ends_of_leases(void) {
  escrow_lease* lease = NULL;
  size_t holders = 0;
  REFUSED(escrow_pool_claim_for_host(NULL, NULL, &lease));
  REFUSED(escrow_pool_claim_kept(NULL, NULL, &lease));
  REFUSED(escrow_pool_close(NULL, 0, &holders));
  REFUSED(escrow_lease_leave_to_graph(NULL));
  escrow_pool* const pool = new_pool((escrow_options){.slots_max = 1});
  REFUSED(escrow_pool_claim_for_host(pool, NULL, NULL));
  REFUSED(escrow_pool_claim_kept(pool, NULL, NULL));
  REFUSED(escrow_pool_close(pool, 0, NULL));
  escrow_pool_destroy(pool);
  escrow_lease_destroy(NULL);
}

c_case const c_lease_cases[] = {
    CASE(c_resources_are_recycled_on_the_pools_device),
    CASE(c_resources_for_the_host_are_used_by_no_work),
    CASE(c_resources_are_for_the_host_by_an_option),
    CASE(c_kept_resources_are_shared_with_no_graph),
    CASE(c_a_lease_is_left_to_its_graph_when_its_stream_is_gone),
    CASE(c_held_resources_stay_until_the_close),
    CASE(c_a_lease_ends_in_a_destroy_and_in_a_callback),
    CASE(c_an_audit_finds_memory_that_the_graph_does_not_keep),
    CASE(c_null_is_refused_for_ends_of_leases),
};
size_t const c_lease_cases_count = sizeof c_lease_cases / sizeof *c_lease_cases;
