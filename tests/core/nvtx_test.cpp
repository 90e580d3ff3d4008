// SPDX-License-Identifier: Apache-2.0
// What a profiler is told: the ranges of waits, passes and instantiations, and the worker's name.
#include <cstdint>

// This program is the profiler: NVTX calls this function at its first call.
#define NVTX_STATIC_INJECTION_IMPL
extern "C" int (*InitializeInjectionNvtx2_fnptr)(void const* (*tables)(std::uint32_t));

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace {

std::mutex seen_mutex;  // guards the two below
std::map<std::string, int> seen;
int open = 0;  // ranges that have begun and not ended

void note(std::string const& what, int change) {
  std::lock_guard const lock(seen_mutex);
  ++seen[what];
  open += change;
}
int NVTX_API push(char const* name) {
  note(name, +1);
  return 0;
}
int NVTX_API pop() {
  note("pop", -1);
  return 0;
}
void NVTX_API name_thread(std::uint32_t /*thread*/, char const* name) {
  note(std::string("thread ") + name, 0);
}

void take(NvtxFunctionTable table, NvtxCallbackIdCore id, auto function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API attach(NvtxGetExportTableFunc_t tables) {
  auto const* const callbacks =
      static_cast<NvtxExportTableCallbacks const*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  take(table, NVTX_CBID_CORE_RangePushA, &push);
  take(table, NVTX_CBID_CORE_RangePop, &pop);
  take(table, NVTX_CBID_CORE_NameOsThreadA, &name_thread);
  return 1;
}

}  // namespace

NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &attach;

namespace {

int times(std::string const& what) {
  std::lock_guard const lock(seen_mutex);
  return seen[what];
}

TEST(Profiler, SeesWaitsPassesInstantiationsAndTheWorkersName) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    escrow::deleter worker({.thread_name = "a worker"});
    escrow::resource_pool<int> pool({.slots_max = 1, .deleter = &worker}, [] { return 1; });
    auto held = pool.claim(stream);
    EXPECT_EQ(times("escrow: wait for a slot"), 0);
    EXPECT_FALSE(pool.try_claim_for(stream, std::chrono::milliseconds(1)).has_value());
    EXPECT_EQ(times("escrow: wait for a slot"), 1);
    held.release();
    worker.retire(stream, std::make_unique<int>(1));
    worker.drain();
    EXPECT_GE(times("escrow: pass"), 1);
    EXPECT_EQ(times("thread a worker"), 1);
    EXPECT_EQ(times("escrow: instantiate"), 0);
    escrow::graph const empty;
    escrow::graph_exec const exec(empty);
    EXPECT_EQ(times("escrow: instantiate"), 1);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  auto const all_ended = [] {
    std::lock_guard const lock(seen_mutex);
    return open == 0;
  };
  for (int i = 0; i < 10'000 && !all_ended(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(all_ended());
}

}  // namespace
