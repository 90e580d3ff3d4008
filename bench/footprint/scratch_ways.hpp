// SPDX-License-Identifier: Apache-2.0
// The ways in which many graphs get their scratch.
#pragma once

#include <thread>
#include <unordered_map>

#include "graphs.hpp"
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
  std::shared_ptr<event> recorded = nullptr;  // after each plain launch

  // Captures what `enqueue()` enqueues on `stream`. The result launches an exec of it.
  template <class Enqueue>
  [[nodiscard]] launch_call exec_of(cudaStream_t stream, Enqueue enqueue) const {
    if (recorded != nullptr) {
      launch_call const launch = form_of(captured(stream, enqueue)).launch;
      return [launch, ready = recorded](cudaStream_t on) {
        launch(on);
        test::must(cudaEventRecord(ready->get(), on));
      };
    }
    if (!is_escrows) return form_of(captured(stream, enqueue)).launch;
    return form_of(capture(stream_ref(stream), [&](stream_ref) { enqueue(); })).launch;
  }
};

// A scratch pool with a sharing group, whose streams outlive it or may not, or without: then each
// graph has slots of its own.
template <bool is_shared, bool is_lasting = false>
scratch_way make_slots(std::size_t /*bytes_max*/) {
  struct slots {
    escrow::deleter deleter;
    sharing_group group{{.label = "footprint", .streams_outlive_group = is_lasting}};
    scratch_pool pool{{
        .slots_max = 1024,
        .label = "footprint",
        .deleter = &deleter,
        .group = is_shared ? std::optional(group) : std::nullopt,
    }};
    std::unordered_map<void*, lease<device_block>> out;
  };
  auto const its = std::make_shared<slots>();
  auto const bytes_of_all = [=] {
    if constexpr (is_shared) return its->group.stats().bytes;
    return its->pool.bytes();
  };
  auto const claim = [=](cudaStream_t stream, std::size_t bytes) {
    lease<device_block> claimed = its->pool.claim(stream, bytes);
    void* const scratch = claimed->data();
    its->out.emplace(scratch, std::move(claimed));
    return scratch;
  };
  return {.claim = claim,
          .release = [=](cudaStream_t, void* scratch) { its->out.erase(scratch); },
          .device_bytes = bytes_of_all,
          .is_escrows = true};
}

// One block that all graphs use, launched by plain CUDA calls: nothing keeps a program from
// launching two at a time. The floor.
inline scratch_way make_arena(std::size_t bytes) {
  auto const memory = std::make_shared<device_block>(bytes);
  return {.claim = [=](cudaStream_t, std::size_t) { return memory->data(); },
          .release = [](cudaStream_t, void*) {},
          .device_bytes = [=] { return memory->size(); }};
}

// The same, and the end of each launch is recorded: the least that a program does which knows when
// the memory is free.
inline scratch_way make_recorded_arena(std::size_t bytes) {
  scratch_way its = make_arena(bytes);
  its.recorded = std::make_shared<event>();
  return its;
}

// cudaMallocAsync and cudaFreeAsync in the capture. Null on the simulated runtime, which does not
// say what memory nodes need.
[[gnu::weak]] scratch_way make_memory_nodes(std::size_t bytes);

// Makes a way whose graphs need at most `bytes` at a time.
using way_arm = arm<scratch_way(std::size_t bytes)>;

inline way_arm const ways[]{
    {"arena_recorded", &make_recorded_arena},
    {"shared", &make_slots<true>},
    {"lasting", &make_slots<true, true>},
    {"private", &make_slots<false>},
    {"arena", &make_arena},
    {"arena_again", &make_arena},
    {"memory_nodes", &make_memory_nodes},
};

// Of the footprint bench, in a file of its own.
// The device's free memory, once all is back that earlier benchmarks destroyed: the end of a
// deleter waits for no memory.
[[nodiscard]] inline double settled_free_bytes() {
  constexpr int looks_max = 20;
  constexpr auto apart = std::chrono::milliseconds(50);
  test::must(cudaDeviceSynchronize());
  double free = 0, last = -1;
  for (int i = 0; i < looks_max && free != last; ++i) {
    if (i != 0) std::this_thread::sleep_for(apart);
    escrow::deleter::global().drain();
    static_cast<void>(trim_device_memory(0));
    last = std::exchange(free, free_device_bytes());
  }
  return free;
}

void register_mixed(settings const& how);
void register_kept(settings const& how);    // kept.cpp
void register_parked(settings const& how);  // parked.cpp

}  // namespace escrow::bench
