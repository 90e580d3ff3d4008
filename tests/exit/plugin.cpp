// A library as somebody would load it: Escrow is inside, with a pool and the global deleter.
#include "plugin.hpp"

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

#include <cstdlib>
#include <memory>

#include "../support/handles.hpp"

namespace {

plugin_counts* counts = nullptr;

// Counts in the program's memory; relaxed but for the last, which publishes that it is gone.
class counted {
 public:
  explicit counted(std::atomic<int>& alive) : alive_(&alive) {
    alive_->fetch_add(1, std::memory_order_relaxed);
  }
  counted(counted&& other) noexcept : alive_(std::exchange(other.alive_, nullptr)) {}
  counted& operator=(counted&&) = delete;
  ~counted() {
    if (alive_ == nullptr) return;
    alive_->fetch_sub(1, std::memory_order_relaxed);
    counts->destroyed.fetch_add(1, std::memory_order_release);
  }

 private:
  std::atomic<int>* alive_;
};

struct resource {
  counted alive{counts->resources};
  escrow::device_block memory{256};
};

// Of the plugin's own: destroyed with the process, like all statics of a plugin that stays.
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

}  // namespace

extern "C" {

void exit_plugin_count_in(plugin_counts* given) {
  counts = given;
}

void exit_plugin_work(cudaStream_t stream) {
  work(stream);
}

void exit_plugin_launch(cudaStream_t stream) {
  escrow::test::owned_stream const recording = escrow::test::make_stream();
  escrow::graph_exec exec(
      escrow::capture(recording.get(), [](escrow::stream_ref on) { work(on.get()); }));
  exec.launch(stream);
}
}
