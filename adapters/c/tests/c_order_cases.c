// SPDX-License-Identifier: Apache-2.0
// C tests of scratch memory: its order for other streams and the host, what stays with a graph, and
// frees in callbacks.
#include <string.h>

#include "c_world.h"

enum { bytes = 1000 };

static escrow_allocator* new_allocator(size_t bytes_max) {
  escrow_options const options = {.size = sizeof options, .bytes_max = bytes_max};
  escrow_allocator* made = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &made));
  return made;
}

static escrow_allocator_stats stats_of(escrow_allocator* allocator) {
  escrow_allocator_stats stats = {.size = sizeof stats};
  EXPECT_OK(escrow_allocator_statistics(allocator, &stats));
  return stats;
}

static escrow_allocator* asked;
static bool has_none_in_graphs(void) {
  return stats_of(asked).bytes_in_graphs == 0;
}
static bool has_only_idle(void) {
  return stats_of(asked).bytes_in_graphs == 0 && stats_of(asked).bytes_in_use == 0;
}

static void c_memory_of_another_stream_is_ordered_on_both_sides(void) {
  escrow_allocator* const memory = new_allocator(1024);
  void* first = NULL;
  void* second = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(2), bytes, 0, &first));
  c_hold_up(c_stream(2));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(2), first));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &second));
  EXPECT(second == first);
  EXPECT_OK(escrow_allocator_record_stream(memory, c_stream(1), second));
  EXPECT(cudaStreamQuery(c_stream(1)) == cudaErrorNotReady);  // after the user before
  c_go();
  c_sync(1);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), second));
  escrow_allocator_destroy(memory);
}

static void c_a_recording_in_a_capture_gives_its_graph_the_memory(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* address = NULL;
  void* other = NULL;
  cudaGraph_t graph = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(1), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_record_stream(memory, c_stream(1), address));
  EXPECT_CUDA(cudaMemsetAsync(address, 1, bytes, c_stream(1)));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(1), &graph));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  EXPECT(stats_of(memory).bytes_in_graphs >= bytes);
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &other));
  EXPECT(other != address);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), other));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  asked = memory;
  EXPECT(c_wait_until(&has_none_in_graphs));
  escrow_allocator_destroy(memory);
}

// A staging loop: the host writes what no copy reads any more.
static void c_pinned_memory_is_ordered_for_the_host(void) {
  escrow_options const options = {.size = sizeof options, .pinned_host = 1};
  escrow_allocator* memory = NULL;
  void* busy = NULL;
  void* address = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &busy));
  memset(busy, 1, bytes);
  c_hold_up(c_stream(0));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), busy));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  EXPECT(address != busy);
  memset(address, 2, bytes);
  EXPECT(((char*)busy)[0] == 1);
  c_go();
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  escrow_allocator_destroy(memory);
}

static void memory_for_the_host(bool is_default) {
  escrow_options const options = {.size = sizeof options,
                                  .bytes_max = 1024,
                                  .capture_wait_max_ns = 1000000,
                                  .host_ordered = is_default};
  escrow_allocator* memory = NULL;
  void* busy = NULL;
  void* address = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &busy));
  c_hold_up(c_stream(0));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), busy));
  EXPECT_STATUS(ESCROW_EXHAUSTED,
                is_default
                    ? escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address)
                    : escrow_allocator_allocate_for_host(memory, c_stream(0), bytes, 0, &address));
  c_go();
  c_sync(0);
  EXPECT_OK(escrow_allocator_allocate_for_host(memory, c_stream(0), bytes, 0, &address));
  EXPECT(address == busy);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  escrow_allocator_destroy(memory);
}
static void c_memory_for_the_host_is_used_by_no_work(void) {
  memory_for_the_host(false);
}
static void c_memory_is_for_the_host_by_an_option(void) {
  memory_for_the_host(true);
}

static void c_kept_memory_is_shared_with_no_graph(void) {
  escrow_options options = {.size = sizeof options};
  EXPECT_OK(escrow_group_create(NULL, &options.group));
  escrow_allocator* memory = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  void* output = NULL;
  void* scratch = NULL;
  cudaGraph_t graphs[2] = {NULL, NULL};
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate_kept(memory, c_stream(0), bytes, 0, &output));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), output));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graphs[0]));
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &scratch));
  EXPECT(scratch != output);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graphs[1]));
  for (int i = 0; i < 2; ++i) EXPECT_CUDA(cudaGraphDestroy(graphs[i]));
  escrow_allocator_destroy(memory);
  escrow_group_destroy(options.group);
}

static void c_outputs_that_graphs_overwrite_are_counted(void) {
  escrow_group_stats stats = {.size = sizeof stats};
  escrow_options options = {.size = sizeof options};
  EXPECT_OK(escrow_group_create(NULL, &options.group));
  escrow_allocator* memory = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  void* output = NULL;
  cudaGraph_t graph = NULL;
  escrow_exec* exec = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeRelaxed));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), 1, 0, &output));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  EXPECT_OK(escrow_group_statistics(options.group, &stats));
  EXPECT(stats.outliving == 1);
  EXPECT_OK(escrow_allocator_leave_to_graph(memory, output));
  EXPECT_OK(escrow_group_statistics(options.group, &stats));
  EXPECT(stats.outliving == 0);
  escrow_exec_destroy(exec);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  escrow_allocator_destroy(memory);
  escrow_group_destroy(options.group);
}

static escrow_exec* exec_of(escrow_allocator* memory) {
  void* scratch = NULL;
  cudaGraph_t graph = NULL;
  escrow_exec* exec = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &scratch));
  EXPECT_CUDA(cudaMemsetAsync(scratch, 1, bytes, c_stream(0)));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT_OK(escrow_exec_create(graph, 0, NULL, 0, &exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  return exec;
}
static void count_parked(void* user, char const* label, size_t parked, char const* refusal) {
  if (strcmp(label, "c parked") == 0 && refusal == NULL) *(size_t*)user += parked;
}

static void c_a_group_is_parked(void) {
  escrow_group_stats stats = {.size = sizeof stats};
  escrow_options options = {.size = sizeof options};
  escrow_park_options how = {.size = sizeof how, .keep_contents = 1};
  escrow_allocator* memory = NULL;
  size_t parked = 0;
  size_t mapped = 0;
  EXPECT_OK(escrow_group_create("c parked", &options.group));
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  escrow_exec* const exec = exec_of(memory);
  EXPECT_OK(escrow_exec_launch(exec, c_stream(1)));
  EXPECT_OK(escrow_group_park(options.group, NULL, &parked));
  EXPECT_OK(escrow_group_statistics(options.group, &stats));
  EXPECT(stats.is_parked == 1 && stats.bytes == 0 && parked >= bytes);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_exec_launch(exec, c_stream(1)));
  EXPECT(strstr(escrow_last_error(), "the sharing group \"c parked\" is parked") != NULL);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_park(options.group, NULL, NULL));
  EXPECT_OK(escrow_group_unpark(options.group, &mapped));
  EXPECT(mapped == parked);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_unpark(options.group, NULL));
  EXPECT_OK(escrow_exec_launch(exec, c_stream(1)));
  EXPECT_OK(escrow_group_park(options.group, &how, NULL));
  EXPECT_OK(escrow_group_unpark(options.group, NULL));
  c_hold_up(c_stream(1));
  EXPECT_OK(escrow_exec_launch(exec, c_stream(1)));
  how.wait_max_ns = 1000;
  EXPECT_STATUS(ESCROW_GROUP_BUSY, escrow_group_park(options.group, &how, NULL));
  c_go();
  parked = mapped = 0;
  EXPECT_OK(escrow_park_all(NULL, &count_parked, &parked));
  EXPECT_OK(escrow_park_all(NULL, NULL, NULL));
  EXPECT_OK(escrow_unpark_all(&count_parked, &mapped));
  EXPECT(parked >= bytes && parked == mapped);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_park(NULL, NULL, NULL));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_unpark(NULL, NULL));
  how.size = 1;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_group_park(options.group, &how, NULL));
  EXPECT(strstr(escrow_last_error(), "`options->size`") != NULL);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_park_all(&how, NULL, NULL));
  escrow_exec_destroy(exec);
  c_sync(1);
  escrow_allocator_destroy(memory);
  escrow_group_destroy(options.group);
}

static void c_held_memory_stays_until_the_close(void) {
  escrow_options const options = {.size = sizeof options, .label = "held", .held_until_closed = 1};
  escrow_allocator* memory = NULL;
  void* address = NULL;
  cudaGraph_t graph = NULL;
  size_t holders = 7;
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  asked = memory;
  EXPECT(c_stays_false(&has_none_in_graphs));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  EXPECT_OK(escrow_allocator_close(memory, 0, &holders));
  EXPECT(holders != 0);
  char text[2000];
  size_t length = 0;
  EXPECT_OK(escrow_allocator_describe(memory, text, sizeof text, &length));
  EXPECT(strstr(text, "\n  \"held of") != NULL);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  EXPECT_OK(escrow_allocator_close(memory, 5000000000u, &holders));
  EXPECT(holders == 0 && stats_of(memory).bytes_in_graphs == 0);
  EXPECT_STATUS(ESCROW_USAGE_ERROR,
                escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  escrow_allocator_destroy(memory);
}

// In a CUDA callback, where CUDA may not be called.
static struct {
  escrow_allocator* memory;
  void* address;
  cudaStream_t stream;
  escrow_status status;
} freed;
static void CUDART_CB free_in_a_callback(void* unused) {
  (void)unused;
  freed.status = escrow_allocator_free(freed.memory, freed.stream, freed.address);
}
static void CUDART_CB free_in_a_callback_as_done(void* unused) {
  (void)unused;
  freed.status = escrow_allocator_free_sync(freed.memory, freed.address);
}
static void free_in(cudaHostFn_t callback, cudaStream_t stream, escrow_status expected) {
  EXPECT_CUDA(cudaLaunchHostFunc(stream, callback, NULL));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT(freed.status == expected);
}

static void c_memory_is_freed_in_callbacks(void) {
  escrow_allocator* const memory = freed.memory = new_allocator(0);
  cudaStream_t const streams[] = {c_stream(0), NULL, cudaStreamLegacy};
  for (size_t i = 0; i < sizeof streams / sizeof *streams; ++i) {
    void* again = NULL;
    freed.stream = streams[i];
    EXPECT_OK(escrow_allocator_allocate(memory, streams[i], bytes, 0, &freed.address));
    free_in(&free_in_a_callback, streams[i], ESCROW_OK);
    EXPECT_OK(escrow_allocator_allocate(memory, streams[i], bytes, 0, &again));
    EXPECT(again == freed.address);  // given the stream, it records
    freed.address = again;
    free_in(&free_in_a_callback_as_done, streams[i], ESCROW_OK);
    EXPECT(stats_of(memory).bytes_in_use == 0);
  }
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &freed.address));
  freed.stream = c_stream(1);
  free_in(&free_in_a_callback, c_stream(1), ESCROW_USAGE_ERROR);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), freed.address));
  escrow_allocator_destroy(memory);
}

static void c_memory_of_a_capture_is_freed_in_callbacks(void) {
  escrow_allocator* const memory = freed.memory = new_allocator(0);
  cudaGraph_t graph = NULL;
  freed.stream = c_stream(0);
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &freed.address));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  free_in(&free_in_a_callback, c_stream(1), ESCROW_OK);
  EXPECT(stats_of(memory).bytes_in_graphs >= bytes);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  asked = memory;
  EXPECT(c_wait_until(&has_only_idle));  // on its way from a graph it counts as in use
  escrow_allocator_destroy(memory);
}

c_case const c_order_cases[] = {
    CASE(c_memory_of_another_stream_is_ordered_on_both_sides),
    CASE(c_a_recording_in_a_capture_gives_its_graph_the_memory),
    CASE(c_pinned_memory_is_ordered_for_the_host),
    CASE(c_memory_for_the_host_is_used_by_no_work),
    CASE(c_memory_is_for_the_host_by_an_option),
    CASE(c_kept_memory_is_shared_with_no_graph),
    CASE(c_outputs_that_graphs_overwrite_are_counted),
    CASE(c_a_group_is_parked),
    CASE(c_held_memory_stays_until_the_close),
    CASE(c_memory_is_freed_in_callbacks),
    CASE(c_memory_of_a_capture_is_freed_in_callbacks),
};
size_t const c_order_cases_count = sizeof c_order_cases / sizeof *c_order_cases;
