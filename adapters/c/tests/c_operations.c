// SPDX-License-Identifier: Apache-2.0
// Functions of the C API, each in a state of its own, to let each call and allocation in it fail:
// those that make, give back or change something. The others run in the same way.
#include "c_world.h"

static struct {
  escrow_group* group;
  escrow_allocator* allocator;
  void* memory;
  escrow_pool* pool;
  escrow_lease* lease;
  cudaGraph_t graph;
  cudaGraph_t other;
  escrow_exec* exec;
  escrow_hoisted* hoisted;
  bool is_capturing;
  int retired;
} all;

// What is prepared.

static void nothing(void) {}
static void allocator(void) {
  escrow_options options = {.size = sizeof options, .label = "faults", .track_leases = 1};
  options.group = all.group;
  EXPECT_OK(escrow_allocator_create(-1, &options, &all.allocator));
}
static void memory(void) {
  allocator();
  EXPECT_OK(escrow_allocator_allocate(all.allocator, c_stream(0), 1, 0, &all.memory));
}
static void two_memories(void) {
  memory();
  EXPECT_OK(escrow_allocator_free(all.allocator, c_stream(0), all.memory));
  EXPECT_OK(escrow_allocator_allocate(all.allocator, c_stream(0), 1, 0, &all.memory));
}
static void begin_capture(void) {
  enum cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
  EXPECT_CUDA(cudaStreamIsCapturing(c_stream(0), &now));
  all.is_capturing = true;
  if (now == cudaStreamCaptureStatusActive) return;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
}
static void end_capture(void) {
  enum cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
  EXPECT_CUDA(cudaStreamIsCapturing(c_stream(0), &now));
  if (now == cudaStreamCaptureStatusNone) return;
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &all.graph));
  all.is_capturing = false;
}
static void capturing_allocator(void) {
  allocator();
  begin_capture();
}
static void captured_memory(void) {
  allocator();
  begin_capture();
  EXPECT_OK(escrow_allocator_allocate(all.allocator, c_stream(0), 1, 0, &all.memory));
}
static cudaError_t make(void* user, void** resource) {
  *resource = user;
  return cudaSuccess;
}
static escrow_resource_functions const functions = {NULL, &make, NULL, NULL};
static void pool(void) {
  EXPECT_OK(escrow_pool_create(-1, &functions, NULL, &all.pool));
}
static void lease(void) {
  pool();
  EXPECT_OK(escrow_pool_claim(all.pool, c_stream(0), &all.lease));
}
static void capturing_pool(void) {
  pool();
  begin_capture();
}
static void lease_after_its_capture(void) {
  capturing_pool();
  EXPECT_OK(escrow_pool_claim(all.pool, c_stream(0), &all.lease));
  end_capture();
}
static void graph(void) {
  EXPECT_OK(escrow_group_create(NULL, &all.group));
  captured_memory();
  EXPECT_CUDA(cudaMemsetAsync(all.memory, 1, 1, c_stream(0)));
  EXPECT_OK(escrow_allocator_free(all.allocator, c_stream(0), all.memory));
  all.memory = NULL;
  end_capture();
}
static void exec(void) {
  graph();
  EXPECT_OK(escrow_exec_create(all.graph, 0, NULL, 0, &all.exec));
}
static void exec_and_other(void) {
  exec();
  EXPECT_CUDA(cudaGraphClone(&all.other, all.graph));
}
static void exec_alone(void) {
  exec();
  EXPECT_CUDA(cudaGraphDestroy(all.graph));
  all.graph = NULL;
}
static void parked(void) {
  exec_alone();
  EXPECT_OK(escrow_group_park(all.group, NULL, NULL));
}
static void hoisted(void) {
  graph();
  EXPECT_OK(escrow_hoist(all.graph, NULL, 0, &all.hoisted));
}

// What is done.

static escrow_status create_allocator(void) {
  return escrow_allocator_create(-1, NULL, &all.allocator);
}
static escrow_status allocate(void) {
  return escrow_allocator_allocate(all.allocator, c_stream(0), 1, 0, &all.memory);
}
static escrow_status allocate_for_host(void) {
  return escrow_allocator_allocate_for_host(all.allocator, c_stream(0), 1, 0, &all.memory);
}
static escrow_status allocate_kept(void) {
  return escrow_allocator_allocate_kept(all.allocator, c_stream(0), 1, 0, &all.memory);
}
static escrow_status allocate_sync(void) {
  return escrow_allocator_allocate_sync(all.allocator, 1, 0, &all.memory);
}
static escrow_status record_stream(void) {
  return escrow_allocator_record_stream(all.allocator, c_stream(1), all.memory);
}
static escrow_status close_allocator(void) {
  size_t holders = 0;
  return escrow_allocator_close(all.allocator, 0, &holders);
}
static escrow_status free_it(void) {
  escrow_status const status = escrow_allocator_free(all.allocator, c_stream(0), all.memory);
  if (status == ESCROW_OK) all.memory = NULL;
  return status;
}
static escrow_status leave(void) {
  escrow_status const status = escrow_allocator_leave_to_graph(all.allocator, all.memory);
  if (status == ESCROW_OK) all.memory = NULL;
  return status;
}
static escrow_status create_pool(void) {
  return escrow_pool_create(-1, &functions, NULL, &all.pool);
}
static escrow_status claim(void) {
  return escrow_pool_claim(all.pool, c_stream(0), &all.lease);
}
static escrow_status claim_for_host(void) {
  return escrow_pool_claim_for_host(all.pool, c_stream(0), &all.lease);
}
static escrow_status claim_kept(void) {
  return escrow_pool_claim_kept(all.pool, c_stream(0), &all.lease);
}
static escrow_status close_pool(void) {
  size_t holders = 0;
  return escrow_pool_close(all.pool, 0, &holders);
}
static escrow_status record_lease(void) {
  return escrow_lease_record_stream(all.lease, c_stream(1));
}
static escrow_status leave_lease(void) {
  escrow_status const status = escrow_lease_leave_to_graph(all.lease);
  if (status == ESCROW_OK) all.lease = NULL;
  return status;
}
static escrow_status destroy_lease(void) {
  escrow_lease_destroy(all.lease);
  all.lease = NULL;
  return ESCROW_OK;
}
static escrow_status release(void) {
  escrow_status const status = escrow_lease_release(all.lease, c_stream(0));
  if (status == ESCROW_OK) all.lease = NULL;
  return status;
}
static void count(void* object) {
  ++*(int*)object;  // read after a drain
}
static escrow_status retire(void) {
  return escrow_retire(c_stream(0), &count, &all.retired);
}
static escrow_status retire_now(void) {
  return escrow_retire_now(&count, &all.retired);
}
static escrow_status retire_with_graph(void) {
  return escrow_retire_with_graph(all.graph, &count, &all.retired);
}
static escrow_status create_group(void) {
  return escrow_group_create("a label that is longer than a short string", &all.group);
}
static escrow_status park(void) {
  return escrow_group_park(all.group, NULL, NULL);
}
static escrow_status unpark(void) {
  return escrow_group_unpark(all.group, NULL);
}
static escrow_status create_exec(void) {
  return escrow_exec_create(all.graph, 0, NULL, 0, &all.exec);
}
static escrow_status launch(void) {
  return escrow_exec_launch(all.exec, c_stream(0));
}
static escrow_status create_exec_with_copies(void) {
  return escrow_exec_create_with_copies(all.graph, 0, 3, &all.exec);
}
static void exec_with_copies(void) {
  graph();
  EXPECT_OK(create_exec_with_copies());
}
static escrow_status launch_many(void) {
  return escrow_exec_launch_many(all.exec, c_stream(0), 7);
}
static escrow_status update(void) {
  return escrow_exec_update(all.exec, all.other, NULL, 0);
}
static escrow_status update_or_create(void) {
  return escrow_exec_update_or_create(&all.exec, all.other, 0, NULL, 0, NULL);
}
static void exec_and_misfit(void) {
  exec();
  cudaGraphNode_t node = NULL;
  EXPECT_CUDA(cudaGraphCreate(&all.other, 0));
  EXPECT_CUDA(cudaGraphAddEmptyNode(&node, all.other, NULL, 0));
}
static void graph_in_other(void) {
  graph();
  all.other = all.graph;
  all.graph = NULL;
}
static escrow_status destroy_graph(void) {
  escrow_status const status = escrow_graph_destroy(all.other);
  if (status == ESCROW_OK) all.other = NULL;
  return status;
}
static escrow_status end_by_escrow(void) {
  escrow_captured* captured = NULL;
  if (!all.is_capturing) begin_capture();  // again, after a failure
  escrow_status const status = escrow_capture_end(c_stream(0), &captured);
  all.is_capturing = false;
  EXPECT((status == ESCROW_OK) == (captured != NULL));
  escrow_captured_destroy(captured);
  return status;
}
static cudaError_t work(void* data) {
  (void)data;
  return cudaSuccess;
}
static escrow_status run_in_group(void) {
  return escrow_group_run(all.group, c_stream(0), &work, NULL, 0);
}
static void lasting_memory(void) {
  escrow_options const options = {.size = sizeof options, .streams_outlive_pool = 1};
  EXPECT_OK(escrow_allocator_create(-1, &options, &all.allocator));
  EXPECT_OK(escrow_allocator_allocate(all.allocator, c_stream(0), 1, 0, &all.memory));
  EXPECT_OK(escrow_allocator_free(all.allocator, c_stream(0), all.memory));
  all.memory = NULL;
}
static escrow_status flush_allocator(void) {
  return escrow_allocator_flush(all.allocator, c_stream(0));
}
static escrow_status flush_pool(void) {
  return escrow_pool_flush(all.pool, c_stream(0));
}
static escrow_status process_statistics(void) {
  escrow_process_stats stats = {.size = sizeof stats};
  return escrow_process_statistics(-1, &stats);
}
static escrow_status audit(void) {
  size_t findings = 0;
  size_t length = 0;
  return escrow_graph_audit(all.graph, NULL, 0, &findings, NULL, 0, &length);
}
static escrow_status hoist(void) {
  return escrow_hoist(all.graph, NULL, 0, &all.hoisted);
}
static cudaError_t launch_nothing(void* data) {
  (void)data;
  return cudaSuccess;
}
static escrow_status launch_hoisted(void) {
  return escrow_hoisted_launch(all.hoisted, c_stream(0), &launch_nothing, NULL, 0);
}
static escrow_status release_hoisted(void) {
  escrow_status const status = escrow_hoisted_release(all.hoisted, c_stream(0));
  if (status == ESCROW_OK) all.hoisted = NULL;
  return status;
}
static escrow_status release_hoisted_now(void) {
  escrow_status const status = escrow_hoisted_release_now(all.hoisted);
  if (status == ESCROW_OK) all.hoisted = NULL;
  return status;
}

// How it ends, in the order of use.

static void end(c_outcome how) {
  (void)how;
  if (all.memory != NULL) EXPECT_OK(free_it());
  if (all.lease != NULL) EXPECT_OK(release());
  end_capture();
  if (all.hoisted != NULL) EXPECT_OK(release_hoisted());
  escrow_exec_destroy(all.exec);
  if (all.other != NULL) EXPECT_CUDA(cudaGraphDestroy(all.other));
  if (all.graph != NULL) EXPECT_CUDA(cudaGraphDestroy(all.graph));
  c_sync(0);
  escrow_pool_destroy(all.pool);
  escrow_allocator_destroy(all.allocator);
  escrow_group_destroy(all.group);
  all.group = NULL;
  all.allocator = NULL;
  all.pool = NULL;
  all.exec = NULL;
  all.graph = all.other = NULL;
}
static bool is_counted(void) {
  bool is_drained = false;
  EXPECT_OK(escrow_drain(5000000000u, &is_drained));
  return all.retired == 1;
}
// The object is destroyed once; not at all if it was not retired; if it was taken, maybe.
static void end_retired(c_outcome how) {
  end(how);
  EXPECT(how == c_done ? c_wait_until(&is_counted) : !is_counted() || how == c_taken);
  EXPECT(all.retired <= (how == c_not_done ? 0 : 1));
  all.retired = 0;
}

c_operation const c_operations[] = {
    {"escrow_capture_end", &captured_memory, &end_by_escrow, &end},
    {"escrow_allocator_create", &nothing, &create_allocator, &end},
    {"escrow_allocator_allocate", &allocator, &allocate, &end},
    {"escrow_allocator_allocate, captured", &capturing_allocator, &allocate, &end},
    {"escrow_allocator_allocate_for_host", &allocator, &allocate_for_host, &end},
    {"escrow_allocator_allocate_for_host, captured", &capturing_allocator, &allocate_for_host,
     &end},
    {"escrow_allocator_allocate_kept", &allocator, &allocate_kept, &end},
    {"escrow_allocator_allocate_kept, captured", &capturing_allocator, &allocate_kept, &end},
    {"escrow_allocator_allocate_sync", &allocator, &allocate_sync, &end},
    {"escrow_allocator_record_stream", &two_memories, &record_stream, &end},
    {"escrow_allocator_close", &memory, &close_allocator, &end},
    {"escrow_allocator_free", &memory, &free_it, &end},
    {"escrow_allocator_free, captured", &captured_memory, &free_it, &end},
    {"escrow_allocator_leave_to_graph", &captured_memory, &leave, &end},
    {"escrow_pool_create", &nothing, &create_pool, &end},
    {"escrow_pool_claim", &pool, &claim, &end},
    {"escrow_pool_claim_for_host", &pool, &claim_for_host, &end},
    {"escrow_pool_claim_for_host, captured", &capturing_pool, &claim_for_host, &end},
    {"escrow_pool_claim_kept", &pool, &claim_kept, &end},
    {"escrow_pool_claim_kept, captured", &capturing_pool, &claim_kept, &end},
    {"escrow_pool_close", &lease, &close_pool, &end},
    {"escrow_lease_record_stream", &lease, &record_lease, &end},
    {"escrow_lease_release", &lease, &release, &end},
    {"escrow_lease_leave_to_graph", &lease_after_its_capture, &leave_lease, &end},
    {"escrow_lease_destroy", &lease, &destroy_lease, &end},
    {"escrow_retire", &nothing, &retire, &end_retired},
    {"escrow_retire, captured", &begin_capture, &retire, &end_retired},
    {"escrow_retire_now", &nothing, &retire_now, &end_retired},
    {"escrow_retire_with_graph", &graph, &retire_with_graph, &end_retired},
    {"escrow_group_create", &nothing, &create_group, &end},
    {"escrow_group_park", &exec_alone, &park, &end},
    {"escrow_group_unpark", &parked, &unpark, &end},
    {"escrow_exec_create", &graph, &create_exec, &end},
    {"escrow_exec_create_with_copies", &graph, &create_exec_with_copies, &end},
    {"escrow_exec_launch", &exec, &launch, &end},
    {"escrow_exec_launch_many", &exec_with_copies, &launch_many, &end},
    {"escrow_exec_update", &exec_and_other, &update, &end},
    {"escrow_exec_update_or_create", &exec_and_other, &update_or_create, &end},
    {"escrow_exec_update_or_create, made anew", &exec_and_misfit, &update_or_create, &end},
    {"escrow_graph_destroy", &graph_in_other, &destroy_graph, &end},
    {"escrow_group_run", &graph, &run_in_group, &end},
    {"escrow_allocator_flush", &lasting_memory, &flush_allocator, &end},
    {"escrow_pool_flush", &pool, &flush_pool, &end},
    {"escrow_process_statistics", &memory, &process_statistics, &end},
    {"escrow_graph_audit", &graph, &audit, &end},
    {"escrow_hoist", &graph, &hoist, &end},
    {"escrow_hoisted_launch", &hoisted, &launch_hoisted, &end},
    {"escrow_hoisted_release", &hoisted, &release_hoisted, &end},
    {"escrow_hoisted_release_now", &hoisted, &release_hoisted_now, &end},
};
size_t const c_operation_count = sizeof c_operations / sizeof *c_operations;
