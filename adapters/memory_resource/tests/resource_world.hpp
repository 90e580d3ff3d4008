// SPDX-License-Identifier: Apache-2.0
// What tests of memory resources add to the world of pools: memory that kernels fill and check, and
// graphs that must not allocate.
#pragma once

#include <escrow/internal/graph_query.hpp>
#include <escrow/memory_resource.hpp>

#include "pool_world.hpp"

namespace escrow::test {

class resource_world : public pool_world {
 protected:
  static constexpr std::size_t ints = 256, size = ints * sizeof(int), alignment = 256;

  [[nodiscard]] memory_resource make_resource(std::size_t slots_max = 8) {
    return memory_resource(stream_allocator(options(slots_max)));
  }
  void check(void const* memory, cudaStream_t stream, int value) {
    must(launch_check(stream, static_cast<int const*>(memory), ints, value, mismatches.data()));
  }
  void fill_and_check(void* memory, cudaStream_t stream, int value) {
    must(launch_fill(stream, static_cast<int*>(memory), ints, value));
    check(memory, stream, value);
  }
  /// Allocates, and has the memory filled and checked.
  template <class Resource>
  [[nodiscard]] void* filled(Resource& from, cudaStream_t stream, int value) {
    void* const made = from.allocate(cuda::stream_ref(stream), size, alignment);
    fill_and_check(made, stream, value);
    return made;
  }
  template <class Resource>
  static void free_on(Resource& from, cudaStream_t stream, void* memory) {
    from.deallocate(cuda::stream_ref(stream), memory, size, alignment);
  }
  /// What a library does that knows nothing of captures.
  template <class Resource>
  void use(Resource& from, cudaStream_t stream, int value) {
    free_on(from, stream, filled(from, stream, value));
  }

  /// Launches the graph many times, which does not allocate: all memory has the right content.
  void expect_right_runs(cudaGraph_t graph) {
    for (cudaGraphNode_t const each : nodes_of(graph)) {
      cudaGraphNodeType type{};
      must(cudaGraphNodeGetType(each, &type));
      EXPECT_NE(type, cudaGraphNodeTypeMemAlloc);
      EXPECT_NE(type, cudaGraphNodeTypeMemFree);
    }
    expect_right_results(graph);
  }

  memory_resource resource = make_resource();
};

}  // namespace escrow::test
