// SPDX-License-Identifier: Apache-2.0
// Scratch memory that a graph keeps, from C.
#include <escrow/escrow.h>
#include <stdio.h>

static void library_work(escrow_allocator* memory, cudaStream_t stream) {
  void* scratch = NULL;
  if (escrow_allocator_allocate(memory, stream, 1 << 20, 0, &scratch) != ESCROW_OK) {
    printf("%s\n", escrow_last_error());
    return;
  }
  cudaMemsetAsync(scratch, 0, 1 << 20, stream);
  escrow_allocator_free(memory, stream, scratch);
}

int main(void) {
  escrow_allocator* memory = NULL;
  escrow_exec* exec = NULL;
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  escrow_allocator_create(-1, NULL, &memory);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  library_work(memory, stream);
  cudaStreamEndCapture(stream, &graph);
  escrow_status status = escrow_exec_create(graph, 0, NULL, 0, &exec);
  cudaGraphDestroy(graph);
  for (int i = 0; i < 1000 && status == ESCROW_OK; ++i) status = escrow_exec_launch(exec, stream);
  library_work(memory, stream);  // gets other memory
  escrow_exec_destroy(exec);
  cudaStreamSynchronize(stream);
  escrow_allocator_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  escrow_allocator_statistics(memory, &stats);
  printf("status %d, %llu blocks\n", status, (unsigned long long)stats.grown);
  escrow_allocator_destroy(memory);
  cudaStreamDestroy(stream);
  return status == ESCROW_OK && stats.grown == 2 ? 0 : 1;
}
