// SPDX-License-Identifier: Apache-2.0
// A library that keeps a workspace and replaces it when a call needs more, while graphs that have
// captured the old address are still launched. As it is today, and with a claim in each call.
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t small = 4 * mebibyte, large = 16 * mebibyte;

/// The library before: one workspace for all calls.
class cached_workspace {
 public:
  ~cached_workspace() { static_cast<void>(cudaFree(data_)); }
  [[nodiscard]] int* of(std::size_t bytes) {
    if (bytes > bytes_) {
      must(cudaFree(data_));
      must(cudaMalloc(&data_, bytes));
      bytes_ = bytes;
    }
    return static_cast<int*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class WorkspaceGrowth : public arena_world {
 protected:
  /// What the library does with its workspace: writes it and reads it back.
  void work(int* workspace, cudaStream_t on, int value) {
    must(launch_fill(on, workspace, values, value));
    must(launch_check(on, workspace, values, value, mismatches.data()));
  }
  void work(scratch_pool& pool, cudaStream_t on, std::size_t bytes, int value) {
    auto const workspace = pool.claim(on, bytes);
    seen = workspace->data();
    work(data_of(workspace), on, value);
  }
  static bool is_memory(void* address) {
    cudaPointerAttributes its{};
    return cudaPointerGetAttributes(&its, address) == cudaSuccess &&
           its.type == cudaMemoryTypeDevice;
  }

  void* seen = nullptr;  // the last workspace
};

TEST_F(WorkspaceGrowth, OfACachedOneLeavesTheGraphWithFreedMemory) {
  cached_workspace cached;
  static_cast<void>(cached.of(small));  // warm-up: a capture could not allocate
  void* const in_graph = cached.of(small);
  owned_graph const decode =
      captured_plainly([&](cudaStream_t on) { work(cached.of(small), on, 1); });
  ASSERT_TRUE(is_memory(in_graph));
  work(cached.of(large), two, 2);  // a longer prompt
  sync(two);
  auto* const now = reinterpret_cast<char*>(cached.of(large));
  bool const is_anothers = now <= in_graph && in_graph < now + large;
  EXPECT_TRUE(is_anothers || !is_memory(in_graph)) << "the next launch of the graph writes there";
}

TEST_F(WorkspaceGrowth, OfClaimsHarmsNoGraph) {
  scratch_pool pool(options(8));
  graph_exec decode(captured([&](cudaStream_t on) { work(pool, on, small, 1); }));
  void* const in_graph = seen;
  for (int i = 0; i < 20; ++i) {
    decode.launch(two);
    work(pool, three, large + static_cast<std::size_t>(i) * mebibyte, 2);
    EXPECT_NE(seen, in_graph);
    decode.launch(two);
  }
  sync_all();
  EXPECT_TRUE(is_memory(in_graph));
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(WorkspaceGrowth, IsHarmlessInGraphsOfAnySizeInAGroup) {
  scratch_pool pool(in_group());
  std::vector<graph_exec> batches;
  for (std::size_t size = 1; size <= 32; size *= 2) {
    batches.emplace_back(captured(
        [&](cudaStream_t on) { work(pool, on, size * mebibyte, static_cast<int>(size)); }));
    for (graph_exec& each : batches) each.launch(two);
    work(pool, two, 2 * size * mebibyte, 99);  // eager: in memory of its own
  }
  EXPECT_EQ(mebibytes(), 32U);
  sync_all();
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(WorkspaceGrowth, OfAKeptOneIsSafeIfTheGraphIsTold) {
  // The library still caches: its workspace is an owner that captures keep.
  auto cached = std::make_shared<device_buffer<int>>(small / sizeof(int));
  graph_exec decode(captured([&](cudaStream_t on) {
    work(cached->data(), on, 1);
    deleter::global().retire(on, cached);
  }));
  void* const in_graph = cached->data();
  cached = std::make_shared<device_buffer<int>>(large / sizeof(int));
  work(cached->data(), three, 2);
  for (int i = 0; i < 3; ++i) decode.launch(two);
  sync_all();
  EXPECT_TRUE(is_memory(in_graph));
  EXPECT_EQ(mismatches.load(), 0);
}

}  // namespace
}  // namespace escrow::test
