// A plugin: Escrow is inside, with a pool and the global deleter.
#include "plugin.hpp"

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

#include <cstdlib>
#include <memory>

#include "../support/handles.hpp"

namespace {

plugin_counts* counts = nullptr;

// Counts in the program's memory; relaxed but for the last, which publishes the destruction.
std::shared_ptr<void> counted(std::atomic<int>& alive) {
  alive.fetch_add(1, std::memory_order_relaxed);
  return {nullptr, [&alive](void*) {
            alive.fetch_sub(1, std::memory_order_relaxed);
            counts->destroyed.fetch_add(1, std::memory_order_release);
          }};
}

struct resource {
  std::shared_ptr<void> alive = counted(counts->resources);
  escrow::device_block memory{256};
};

// Destroyed with the process, like all statics of a plugin that stays loaded.
escrow::resource_pool<resource>& pool() {
  static escrow::resource_pool<resource> only({.slots_max = 64}, [] { return resource{}; });
  return only;
}

// Some plugins have a deleter from their loading on.
std::unique_ptr<escrow::deleter> const early =
    std::getenv(plugin_early) == nullptr ? nullptr : std::make_unique<escrow::deleter>();

void work(cudaStream_t stream) {
  escrow::lease<resource> held = pool().claim(stream);
  escrow::check(cudaMemsetAsync(held->memory.data(), 1, held->memory.size(), stream),
                "cudaMemsetAsync");
  held.release();
  escrow::deleter::global().retire(escrow::stream_ref(stream), counted(counts->owners));
}

void launch(cudaStream_t stream) {
  escrow::test::owned_stream const recording = escrow::test::make_stream();
  escrow::graph_exec exec(
      escrow::capture(recording.get(), [](escrow::stream_ref on) { work(on.get()); }));
  exec.launch(stream);
}

}  // namespace

extern "C" plugin_calls exit_plugin(plugin_counts* given) {
  counts = given;
  return {&work, &launch};
}
