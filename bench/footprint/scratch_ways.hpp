// The ways in which many graphs get their scratch.
#pragma once

#include "launches.hpp"

namespace escrow::bench {

// What: where graphs get their scratch, and how they are instantiated and launched.
// Thread safety: one thread claims and captures; execs as CUDA's.
// Lifetime: must outlive its execs.
struct scratch_way {
  // Both are called in a capture of `stream`.
  std::function<void*(cudaStream_t stream, std::size_t bytes)> claim;
  std::function<void(cudaStream_t stream, void* scratch)> release;
  // What all graphs need of the device, once each was launched.
  std::function<std::size_t()> device_bytes;
  bool is_escrows = false;  // captured and launched by Escrow, not by plain CUDA calls

  // Captures what `enqueue()` enqueues on `stream`. The result launches an exec of it.
  [[nodiscard]] launch_call exec_of(cudaStream_t stream,
                                    std::function<void()> const& enqueue) const;
};

// Makes a way whose graphs need at most `bytes` at a time.
using way_arm = arm<scratch_way(std::size_t bytes)>;

// The arm of this name:
//   shared        a scratch pool with a sharing group
//   private       a scratch pool without: each graph has slots of its own
//   arena         one block that all graphs use, launched by plain CUDA calls: nothing keeps a
//                 program from launching two at a time. The floor. arena_again is the same.
//   memory_nodes  cudaMallocAsync and cudaFreeAsync in the capture
[[nodiscard]] way_arm way_named(std::string_view name);

// Not defined on the simulated runtime, which does not say what memory nodes need.
[[gnu::weak]] scratch_way make_memory_nodes(std::size_t bytes);

// Parts of the footprint bench, in files of their own.
void register_mixed(settings const& how);
void register_races(settings const& how);

}  // namespace escrow::bench
