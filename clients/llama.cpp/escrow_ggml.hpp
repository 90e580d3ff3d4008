// SPDX-License-Identifier: Apache-2.0
// ggml-cuda on Escrow: what its common.cuh includes behind its own pool, once the edits are made.
//
// ggml has no exceptions: what fails ends the process with the text, as its CUDA_CHECK does.
#pragma once

#include <cuda_runtime_api.h>
#include <escrow/callers.h>
#include <escrow/escrow.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

inline void escrow_ggml_check(escrow_status status) {
  if (status != ESCROW_OK) GGML_ABORT("Escrow: %s", escrow_last_error());
}

// Graphs and execs. The calls keep CUDA's names, for other types: ggml's lines stay as they are.

inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, escrow_captured** graph) {
  escrow_ggml_check(escrow_capture_end(stream, graph));
  return cudaSuccess;
}

inline cudaError_t cudaGraphDestroy(escrow_captured* graph) {
  escrow_captured_destroy(graph);
  return cudaSuccess;
}

inline cudaError_t cudaGraphInstantiate(escrow_exec** exec, escrow_captured* graph,
                                        cudaGraphNode_t*, char*, std::size_t) {
  escrow_ggml_check(escrow_exec_create(escrow_captured_graph(graph), 0, nullptr, 0, exec));
  return cudaSuccess;
}

// cudaErrorGraphExecUpdateFailure if the graph does not fit.
inline cudaError_t cudaGraphExecUpdate(escrow_exec* exec, escrow_captured* graph,
                                       cudaGraphExecUpdateResultInfo*) {
  escrow_status const status = escrow_exec_update(exec, escrow_captured_graph(graph), nullptr, 0);
  if (status == ESCROW_CUDA_ERROR) return escrow_last_cuda_error();
  escrow_ggml_check(status);
  return cudaSuccess;
}

inline cudaError_t cudaGraphLaunch(escrow_exec* exec, cudaStream_t stream) {
  escrow_ggml_check(escrow_exec_launch(exec, stream));
  return cudaSuccess;
}

inline cudaError_t cudaGraphExecDestroy(escrow_exec* exec) {
  escrow_exec_destroy(exec);
  return cudaSuccess;
}

// Scratch of a device. Its graphs, and the eager work in escrow_ggml_run(), share one arena.
struct escrow_ggml_memory {
  escrow_group* group = nullptr;
  escrow_allocator* allocator = nullptr;

  explicit escrow_ggml_memory(int device) {
    escrow_ggml_check(escrow_group_create("ggml-cuda", &group));
    escrow_options options = {};
    options.size = sizeof options;
    options.label = "ggml-cuda";
    options.group = group;
    escrow_ggml_check(escrow_allocator_create(device, &options, &allocator));
  }
  escrow_ggml_memory(escrow_ggml_memory const&) = delete;
  escrow_ggml_memory& operator=(escrow_ggml_memory const&) = delete;
  // Graphs keep what they hold until they are gone.
  ~escrow_ggml_memory() {
    escrow_allocator_destroy(allocator);
    escrow_group_destroy(group);
  }

  // For a context of its own or, with ESCROW_GGML_GROUP=process, one for all contexts, whose work
  // then runs one after another.
  static std::shared_ptr<escrow_ggml_memory> of(int device) {
    char const* const wanted = std::getenv("ESCROW_GGML_GROUP");
    if (wanted == nullptr || std::strcmp(wanted, "process") != 0) {
      return std::make_shared<escrow_ggml_memory>(device);
    }
    static std::mutex mutex;
    static std::weak_ptr<escrow_ggml_memory> known[GGML_CUDA_MAX_DEVICES];
    std::lock_guard<std::mutex> const lock(mutex);
    std::shared_ptr<escrow_ggml_memory> its = known[device].lock();
    if (its == nullptr) known[device] = its = std::make_shared<escrow_ggml_memory>(device);
    return its;
  }
};

// The pool of one stream.
struct escrow_ggml_pool : public ggml_cuda_pool {
  // `first`: the context's pool of its first stream, whose memory the others use; null: this is it.
  escrow_ggml_pool(int device, cudaStream_t on, ggml_cuda_pool* first)
      : memory(first != nullptr ? static_cast<escrow_ggml_pool*>(first)->memory
                                : escrow_ggml_memory::of(device)),
        stream(on) {}

  void* alloc(std::size_t bytes, std::size_t* actual_bytes) override {
    void* claimed = nullptr;
    escrow_ggml_check(escrow_allocator_allocate(memory->allocator, stream, bytes, 0, &claimed));
    *actual_bytes = bytes;
    return claimed;
  }
  void free(void* claimed, std::size_t) override {
    escrow_ggml_check(escrow_allocator_free(memory->allocator, stream, claimed));
  }

  std::shared_ptr<escrow_ggml_memory> memory;
  cudaStream_t stream;
};

// Runs `work`, which evaluates, captures or launches on the stream of `pool`. Eager work is one
// more launch of the group, so that it uses what the graphs use.
template <class Work>
void escrow_ggml_run(bool is_graph, ggml_cuda_pool& pool, Work work) {
  if (is_graph) return work();
  constexpr std::uint64_t hour_ns = 3600ULL * 1000 * 1000 * 1000;
  auto& its = static_cast<escrow_ggml_pool&>(pool);
  auto const call = [](void* given) {
    (*static_cast<Work*>(given))();
    return cudaSuccess;
  };
  escrow_ggml_check(escrow_group_run(its.memory->group, its.stream, call, &work, hour_ns));
}
