// SPDX-License-Identifier: Apache-2.0
// C tests of errors, scratch memory and the worker, and null where it is refused.
#include <pthread.h>
#include <string.h>

#include "c_world.h"

enum { bytes = 1000 };

static escrow_allocator* new_allocator(size_t bytes_max) {
  escrow_options options = {
      .size = sizeof options, .label = "c scratch", .bytes_max = bytes_max, .track_leases = 1};
  escrow_allocator* made = NULL;
  EXPECT_OK(escrow_allocator_create(-1, &options, &made));
  return made;
}

static escrow_allocator_stats stats_of(escrow_allocator* allocator) {
  escrow_allocator_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_allocator_statistics(allocator, &stats));
  return stats;
}

static escrow_allocator* asked;
static bool has_none_in_graphs(void) {
  return stats_of(asked).bytes_in_graphs == 0;
}

static void c_version_is_the_headers(void) {
  EXPECT(escrow_version() == ESCROW_C_VERSION);
}

static void* look_at_errors(void* unused) {
  (void)unused;
  EXPECT(strcmp(escrow_last_error(), "") == 0);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_retire_now(NULL, NULL));
  EXPECT(strstr(escrow_last_error(), "escrow_retire_now: `destroy` is null") != NULL);
  return NULL;
}

static void c_errors_are_kept_for_each_thread(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* address = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_allocate(memory, NULL, 1, 3, &address));
  char const* const text = escrow_last_error();
  EXPECT(strstr(text, "escrow_allocator_allocate: ") == text);
  EXPECT(strstr(text, "`alignment` is 3; pass a power of two") != NULL);
  pthread_t other;
  EXPECT(pthread_create(&other, NULL, &look_at_errors, NULL) == 0);
  EXPECT(pthread_join(other, NULL) == 0);
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), 1, 0, &address));
  EXPECT(strstr(escrow_last_error(), "`alignment` is 3") != NULL);
  EXPECT(escrow_last_cuda_error() == cudaSuccess);
  EXPECT(!escrow_last_error_took_object());
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  escrow_allocator_destroy(memory);
}

static void c_memory_is_used_again(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* first = NULL;
  void* second = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &first));
  EXPECT(first != NULL && (uintptr_t)first % 256 == 0);
  EXPECT_CUDA(cudaMemsetAsync(first, 1, bytes, c_stream(0)));
  EXPECT(stats_of(memory).bytes_in_use >= bytes);
  EXPECT_OK(escrow_allocator_record_stream(memory, c_stream(1), first));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_record_stream(memory, c_stream(1), NULL));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), first));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 4096, &second));
  EXPECT((uintptr_t)second % 4096 == 0);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), second));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 1, &second));
  EXPECT(second == first);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), second));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), NULL));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_free(memory, c_stream(0), first));
  escrow_allocator_destroy(memory);
}

static void c_memory_without_a_stream(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* address = NULL;
  EXPECT_OK(escrow_allocator_allocate_sync(memory, bytes, 0, &address));
  EXPECT_CUDA(cudaMemsetAsync(address, 1, bytes, c_stream(1)));
  c_sync(1);
  EXPECT_OK(escrow_allocator_free_sync(memory, address));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_free_sync(memory, address));
  EXPECT_OK(escrow_allocator_free_sync(memory, NULL));
  size_t freed = 0;
  EXPECT_OK(escrow_allocator_trim(memory, 0, &freed));
  EXPECT(freed >= bytes);
  EXPECT(stats_of(memory).returned == 1);
  escrow_allocator_destroy(memory);
}

static void c_a_limit_is_reached(void) {
  escrow_allocator* const memory = new_allocator(1024);
  void* address = NULL;
  void* more = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &address));
  EXPECT_STATUS(ESCROW_EXHAUSTED, escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &more));
  EXPECT(more == NULL);
  EXPECT(strstr(escrow_last_error(), "c scratch") != NULL);
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), address));
  escrow_allocator_destroy(memory);
}

static void c_a_graph_keeps_memory(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* scratch = NULL;
  void* output = NULL;
  void* other = NULL;
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeGlobal));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &scratch));
  EXPECT_CUDA(cudaMemsetAsync(scratch, 1, bytes, c_stream(0)));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &output));
  EXPECT(output == scratch);
  EXPECT_OK(escrow_allocator_leave_to_graph(memory, output));
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_leave_to_graph(memory, output));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT(stats_of(memory).bytes_in_graphs >= bytes);
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), bytes, 0, &other));
  EXPECT(other != scratch);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_leave_to_graph(memory, other));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), other));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  asked = memory;
  EXPECT(c_wait_until(&has_none_in_graphs));
  escrow_allocator_destroy(memory);
}

static void c_descriptions_are_cut(void) {
  escrow_allocator* const memory = new_allocator(0);
  char text[2000];
  char part[10] = "123456789";
  size_t length = 0;
  EXPECT_OK(escrow_allocator_describe(memory, text, sizeof text, &length));
  EXPECT(strstr(text, "scratch pool \"c scratch\" on device 0") == text);
  EXPECT(strlen(text) == length);
  size_t again = 0;
  EXPECT_OK(escrow_allocator_describe(memory, part, sizeof part, &again));
  EXPECT(again == length && strlen(part) == 9 && strncmp(part, text, 9) == 0);
  EXPECT_OK(escrow_allocator_describe(memory, NULL, 0, &again));
  EXPECT(again == length);
  length = again = 7;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_describe(memory, NULL, 1, &again));
  EXPECT(again == length);
  escrow_allocator_destroy(memory);
}

static void c_memory_is_reported(void) {
  escrow_allocator* const memory = new_allocator(0);
  void* scratch = NULL;
  char text[20000];
  size_t length = 0;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), 4096, 0, &scratch));
  EXPECT_OK(escrow_memory_report(text, sizeof text, &length));
  EXPECT(strlen(text) == length);
  EXPECT(strstr(text, "pool \"c scratch\" on device 0") != NULL);
  EXPECT_OK(escrow_memory_report_json(text, sizeof text, &length));
  EXPECT(strlen(text) == length);
  EXPECT(strstr(text, "{\"label\": \"c scratch\", \"device\": 0, ") != NULL);
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_memory_report(NULL, 1, &length));
  REFUSED(escrow_memory_report(NULL, 0, NULL));
  REFUSED(escrow_memory_report_json(NULL, 0, NULL));
  EXPECT_OK(escrow_allocator_free(memory, c_stream(0), scratch));
  escrow_allocator_destroy(memory);
}

static void c_structs_may_be_of_an_older_header(void) {
  escrow_options options = {.bytes_max = 1};
  escrow_allocator* memory = NULL;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_create(-1, &options, &memory));
  options.size = sizeof options + 1;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_create(-1, &options, &memory));
  EXPECT(strstr(escrow_last_error(), "`options->size`") != NULL);
  options.size = offsetof(escrow_options, label) + sizeof options.label / 2;
  EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_create(-1, &options, &memory));
  options.size = offsetof(escrow_options, bytes_max);  // which is then as if 0
  EXPECT_OK(escrow_allocator_create(-1, &options, &memory));
  void* address = NULL;
  EXPECT_OK(escrow_allocator_allocate_sync(memory, bytes, 0, &address));
  escrow_allocator_stats stats = {
      offsetof(escrow_allocator_stats, bytes_in_use), 7, 7, 7, 7, 7, 7, 7};
  EXPECT_OK(escrow_allocator_statistics(memory, &stats));
  EXPECT(stats.bytes >= bytes && stats.bytes_in_use == 7);
  size_t const wrong[] = {0, 1, sizeof stats - 1, 0xcccccccc, SIZE_MAX};  // not set, for example
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    stats.size = wrong[i];
    EXPECT_STATUS(ESCROW_USAGE_ERROR, escrow_allocator_statistics(memory, &stats));
    EXPECT(stats.bytes_in_use == 7);
  }
  EXPECT_OK(escrow_allocator_free_sync(memory, address));
  escrow_allocator_destroy(memory);
}

// The worker.

static int destroyed;
static void count(void* object) {
  EXPECT(object == &destroyed);
  ++destroyed;  // read after a drain
}
static void drain(void) {
  bool is_drained = false;
  EXPECT_OK(escrow_drain(5000000000u, &is_drained));
  EXPECT(is_drained);
}

static bool is_pending(void) {
  escrow_worker_stats stats = {sizeof stats, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_worker_statistics(&stats));
  return stats.pending == 1;
}

static void c_objects_are_destroyed_after_the_work(void) {
  destroyed = 0;
  c_hold_up(c_stream(0));
  EXPECT_OK(escrow_retire(c_stream(0), &count, &destroyed));
  bool is_drained = true;
  EXPECT_OK(escrow_drain(1000000, &is_drained));
  EXPECT(!is_drained && destroyed == 0);
  EXPECT(c_wait_until(&is_pending));
  c_go();
  drain();
  EXPECT(destroyed == 1);
  EXPECT_OK(escrow_retire_now(&count, &destroyed));
  drain();
  EXPECT(destroyed == 2);
}

static void c_objects_are_destroyed_after_their_graph(void) {
  destroyed = 0;
  cudaGraph_t graph = NULL;
  EXPECT_CUDA(cudaStreamBeginCapture(c_stream(0), cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(escrow_retire(c_stream(0), &count, &destroyed));
  EXPECT_CUDA(cudaStreamEndCapture(c_stream(0), &graph));
  EXPECT_OK(escrow_retire_with_graph(graph, &count, &destroyed));
  drain();
  EXPECT(destroyed == 0);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 1000 && destroyed < 2; ++i) drain();
  EXPECT(destroyed == 2);
}

static escrow_status reported;
static char report[100];
static void note(void* user, escrow_status status, cudaError_t cuda_error, char const* text) {
  EXPECT(user == &reported && cuda_error == cudaSuccess);
  reported = status;
  strncpy(report, text, sizeof report - 1);
}

static void c_errors_without_a_call_are_reported(void) {
  EXPECT_OK(escrow_on_error(&note, &reported));
  escrow_allocator* const memory = new_allocator(0);
  void* address = NULL;
  EXPECT_OK(escrow_allocator_allocate(memory, c_stream(0), 1, 0, &address));
  escrow_allocator_destroy(memory);
  EXPECT(reported == ESCROW_USAGE_ERROR);
  EXPECT(strstr(report, "stream_allocator: 1 allocation of ") == report);
  escrow_worker_stats stats = {sizeof stats, 0, 0, 0, 0, 0};
  EXPECT_OK(escrow_worker_statistics(&stats));
  EXPECT(stats.errors >= 1 && stats.leaked >= 1);
  EXPECT_OK(escrow_on_error(NULL, NULL));
}

static void c_null_is_refused_for_memory(void) {
  escrow_allocator* memory = NULL;
  void* address = NULL;
  size_t number = 0;
  escrow_allocator_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  REFUSED(escrow_allocator_create(-1, NULL, NULL));
  REFUSED(escrow_allocator_allocate(NULL, NULL, 1, 0, &address));
  REFUSED(escrow_allocator_free(NULL, NULL, NULL));
  REFUSED(escrow_allocator_record_stream(NULL, NULL, &number));
  REFUSED(escrow_allocator_allocate_for_host(NULL, NULL, 1, 0, &address));
  REFUSED(escrow_allocator_allocate_kept(NULL, NULL, 1, 0, &address));
  REFUSED(escrow_allocator_close(NULL, 0, &number));
  REFUSED(escrow_allocator_allocate_sync(NULL, 1, 0, &address));
  REFUSED(escrow_allocator_free_sync(NULL, NULL));
  REFUSED(escrow_allocator_leave_to_graph(NULL, &number));
  REFUSED(escrow_allocator_trim(NULL, 0, &number));
  REFUSED(escrow_allocator_statistics(NULL, &stats));
  REFUSED(escrow_allocator_describe(NULL, NULL, 0, &number));
  EXPECT_OK(escrow_allocator_create(-1, NULL, &memory));
  REFUSED(escrow_allocator_allocate(memory, NULL, 1, 0, NULL));
  REFUSED(escrow_allocator_allocate_for_host(memory, NULL, 1, 0, NULL));
  REFUSED(escrow_allocator_allocate_kept(memory, NULL, 1, 0, NULL));
  REFUSED(escrow_allocator_close(memory, 0, NULL));
  REFUSED(escrow_allocator_allocate_sync(memory, 1, 0, NULL));
  REFUSED(escrow_allocator_leave_to_graph(memory, NULL));
  REFUSED(escrow_allocator_trim(memory, 0, NULL));
  REFUSED(escrow_allocator_statistics(memory, NULL));
  REFUSED(escrow_allocator_describe(memory, NULL, 0, NULL));
  escrow_allocator_destroy(memory);
  escrow_allocator_destroy(NULL);
  REFUSED(escrow_drain(0, NULL));
  REFUSED(escrow_worker_statistics(NULL));
  REFUSED(escrow_retire(NULL, NULL, NULL));
  REFUSED(escrow_retire_now(NULL, NULL));
  REFUSED(escrow_retire_with_graph(NULL, &count, NULL));
  EXPECT(!escrow_last_error_took_object());
}

c_case const c_memory_cases[] = {
    CASE(c_version_is_the_headers),
    CASE(c_errors_are_kept_for_each_thread),
    CASE(c_memory_is_used_again),
    CASE(c_memory_without_a_stream),
    CASE(c_a_limit_is_reached),
    CASE(c_a_graph_keeps_memory),
    CASE(c_descriptions_are_cut),
    CASE(c_memory_is_reported),
    CASE(c_structs_may_be_of_an_older_header),
    CASE(c_objects_are_destroyed_after_the_work),
    CASE(c_objects_are_destroyed_after_their_graph),
    CASE(c_errors_without_a_call_are_reported),
    CASE(c_null_is_refused_for_memory),
};
size_t const c_memory_cases_count = sizeof c_memory_cases / sizeof *c_memory_cases;
