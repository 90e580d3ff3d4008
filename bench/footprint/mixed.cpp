// SPDX-License-Identifier: Apache-2.0
// The memory of graphs for a model's batch sizes, which claim several blocks each.
//
// The trace: a graph for one token of each of 1, 8, 16, ... 512 sequences, of a model with 8
// billion parameters. Each of its layers claims what it needs, in 16 bits, when it needs it, and
// releases it after the last use; two matrix products use 32 MiB more, whatever the batch. All
// layers are alike, so a few are enough. Graphs are captured largest first, and in one arm smallest
// first.
//
// over_best is the device's memory over the best packing: no less than the most that one graph has
// out at a time.
#include <list>

#include "scratch_ways.hpp"

namespace escrow::bench {
namespace {

// `scale` divides all sizes.
void enqueue_model(scratch_way const& way, cudaStream_t stream, std::size_t batch,
                   std::size_t scale) {
  constexpr std::size_t hidden = 4096, keys = 1024, inner = 14336, words = 128256;
  constexpr std::size_t heads = 32, splits = 8, of_a_split = 130;
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20U;
  constexpr int layers = 4;
  auto const claim = [&](std::size_t bytes) {
    void* const scratch = way.claim(stream, std::max<std::size_t>(bytes / scale, 1));
    test::must(test::launch_tiny(stream));
    return scratch;
  };
  auto const release = [&](std::initializer_list<void*> blocks) {
    for (void* const each : blocks) way.release(stream, each);
  };
  // The output is added to what goes from layer to layer.
  auto const project = [&](void* input) {
    void* const workspace = claim(workspace_bytes);
    void* const output = claim(2 * batch * hidden);
    release({workspace, input, output});
  };
  void* const between_layers = claim(2 * batch * hidden);
  for (int i = 0; i < layers; ++i) {
    void* const normed = claim(2 * batch * hidden);
    void* const queries = claim(2 * batch * (hidden + 2 * keys));
    release({normed});
    void* const partial = claim(4 * batch * heads * splits * of_a_split);
    void* const attended = claim(2 * batch * hidden);
    release({queries, partial});
    project(attended);
    void* const normed_again = claim(2 * batch * hidden);
    void* const both = claim(2 * batch * 2 * inner);
    release({normed_again});
    void* const gated = claim(2 * batch * inner);
    release({both});
    project(gated);
  }
  void* const scores = claim(4 * batch * words);
  release({between_layers});
  void* const sorted = claim(4 * batch * words);
  void* const tokens = claim(4 * batch);
  release({scores, sorted, tokens});
}

// No memory: tells the most bytes that are out at a time.
scratch_way make_meter() {
  struct meter {
    std::list<std::size_t> claimed;
    std::size_t out = 0, peak = 0;
  };
  auto const its = std::make_shared<meter>();
  auto const claim = [=](cudaStream_t, std::size_t bytes) {
    its->peak = std::max(its->peak, its->out += bytes);
    return &its->claimed.emplace_back(bytes);
  };
  auto const release = [=](cudaStream_t, void* scratch) {
    its->out -= *static_cast<std::size_t*>(scratch);
  };
  return {.claim = claim, .release = release, .device_bytes = [=] { return its->peak; }};
}

// Layers with 500 MiB each, one after another, and a scalar of each that stays.
void enqueue_layers(scratch_way const& way, cudaStream_t stream, std::size_t layers,
                    std::size_t scale) {
  std::vector<void*> scalars;
  for (std::size_t i = 0; i < layers; ++i) {
    void* const large = way.claim(stream, (std::size_t{500} << 20U) / scale);
    scalars.push_back(way.claim(stream, sizeof(float)));
    test::must(test::launch_tiny(stream));
    way.release(stream, large);
  }
  for (void* const each : scalars) way.release(stream, each);
}

using model = void(scratch_way const& way, cudaStream_t stream, std::size_t size,
                   std::size_t scale);

// Captures, instantiates and launches graphs of all sizes, in this order, and returns what they
// need of the device.
double device_bytes(scratch_way const& way, model* enqueue, std::vector<std::size_t> const& sizes,
                    std::size_t scale) {
  test::owned_stream const stream = test::make_stream();
  std::vector<launch_call> execs;
  for (std::size_t const size : sizes) {
    execs.push_back(way.exec_of(stream, [&] { enqueue(way, stream, size, scale); }));
    execs.back()(stream);
  }
  test::must(cudaStreamSynchronize(stream));
  return static_cast<double>(way.device_bytes());
}

// The time is microseconds for a graph.
void run_mixed(benchmark::State& state, way_arm const& which, model* enqueue,
               std::vector<std::size_t> const& sizes, std::size_t scale) {
  double const best = device_bytes(make_meter(), enqueue, sizes, scale);
  auto const graphs = static_cast<double>(sizes.size());
  repeat(state, [&] {
    double const before = settled_free_bytes();
    scratch_way const way = which.setup(0);
    double bytes = 0;
    double const us = us_of([&] { bytes = device_bytes(way, enqueue, sizes, scale); });
    state.counters["device_mib"] = bytes / (1 << 20U);
    // After the execs are gone: with what CUDA keeps for them.
    state.counters["missing_mib"] = (before - free_device_bytes()) / (1 << 20U);
    state.counters["over_best"] = bytes / best;
    return us / graphs;
  });
}

}  // namespace

void register_mixed(settings const& how) {
  std::size_t const scale = how.is_simulated ? 64U : 1U;
  std::vector<std::size_t> batches{1};
  for (std::size_t batch = 8; batch <= 512; batch += 8) batches.push_back(batch);
  auto const add_way = [&](std::string const& name, way_arm const& which, model* enqueue,
                           std::vector<std::size_t> const& sizes) {
    if (which.setup == nullptr) return;
    add(name, {1, how.choose(3, 1)}, &run_mixed, which, enqueue, sizes, scale);
  };
  add_way("footprint_mixed/shared_smallest_first", arm_named("shared", ways), &enqueue_model,
          batches);
  std::ranges::reverse(batches);
  for (std::string const name : {"shared", "memory_nodes", "private"}) {
    add_way("footprint_mixed/" + name, arm_named(name, ways), &enqueue_model, batches);
    add_way("footprint_scalars/" + name, arm_named(name, ways), &enqueue_layers, {8});
  }
}

}  // namespace escrow::bench
