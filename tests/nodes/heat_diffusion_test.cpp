// A whole computation as a graph built by hand, compared with the host: heat diffusion, with nodes
// of these kinds: empty, kernel, alloc, free, memset, memcpy, child graph, host callback, event
// record, event wait, while.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

// Heat in a rod whose ends stay as they are.
using rod = std::vector<double>;
constexpr std::size_t points = 24;
constexpr std::size_t rod_size = points * sizeof(double);
constexpr double ratio = 0.4;

[[nodiscard]] rod stepped(rod const& from) {
  rod to = from;
  for (std::size_t i = 1; i + 1 < from.size(); ++i) {
    to[i] = std::fma(ratio, (from[i - 1] - 2 * from[i]) + from[i + 1], from[i]);
  }
  return to;
}

/// What the graph does, on the host: two steps a round.
[[nodiscard]] heat_progress diffuse(rod& values, heat_limits const& limits) {
  heat_progress progress{0, 0};
  do {
    rod const before = stepped(values);
    values = stepped(before);
    progress.residual = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      progress.residual = std::max(progress.residual, std::fabs(values[i] - before[i]));
    }
    ++progress.rounds;
  } while (progress.residual > limits.residual && progress.rounds < limits.rounds_max);
  return progress;
}

/// Device memory that its last owner frees.
template <class T>
[[nodiscard]] std::shared_ptr<T> device_memory(fate_ptr const& fate, std::size_t n = 1) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, n * sizeof(T)));
  return {static_cast<T*>(memory), [fate](T* freed) {
            static_cast<void>(cudaFree(freed));
            probe const ends(fate);
          }};
}

class HeatDiffusion : public nodes_world {
 protected:
  static constexpr heat_limits by_rounds{20, 0};
  static constexpr heat_limits by_residual{100'000, 1e-5};

  HeatDiffusion() { fill_graph(device_memory<double>(fate, points)); }

  // Waits for the input, prepares, loops, and hands the output to a callback, and to the streams
  // that wait for `done`. Only the nodes keep `now`, which has the values at the end of each round.
  void fill_graph(std::shared_ptr<double> const& now) {
    allocation const memory = build(*built)
                                  .add(wait_node(uploaded))
                                  .add(child_node(preparation(now)))
                                  .add(alloc_node(rod_size));
    auto* const before = static_cast<double*>(memory.address());
    auto const* const read = before;
    kernel const step{kernel_address(kernel_id::heat_step)};
    condition const unfinished = build(*built).make_condition(1);
    conditional_node const loop = memory.add(while_node(unfinished));
    auto const go_on_kind = [this, unfinished, read](auto const& values, heat_limits limits) {
      kernel const go_on{kernel_address(kernel_id::heat_go_on)};
      return kernel_node(go_on, {}, unfinished.get(), progress, limits, values, read, points);
    };
    node const go_on_node = loop.body()
                                .add(kernel_node(step, {.block = {32}}, before, now, points, ratio))
                                .add(kernel_node(step, {.block = {32}}, now, read, points, ratio))
                                .add(go_on_kind(now, by_rounds));
    set_limits = [=, weak = std::weak_ptr(now)](graph_exec& exec, heat_limits limits) {
      escrow::set(exec, go_on_node, go_on_kind(weak.lock(), limits));
    };
    node const freed = loop.add(free_node(memory.address()));
    node const told = loop.add(memcpy_node(output.data(), now, rod_size)).add(host_node([this] {
      received = output;
      // Release: a thread that sees the count sees what was received.
      callbacks.fetch_add(1, std::memory_order_release);
    }));
    static_cast<void>(told.join({freed}).add(record_node(done)));
  }

  // A graph of its own, for embedding: copies the input, and resets the progress.
  [[nodiscard]] graph preparation(std::shared_ptr<double> const& now) {
    graph result(*worker);
    node const copied = build(result).add(memcpy_node(now, input, rod_size));
    node const reset = build(result).add(memset_node(progress, {.width = sizeof(heat_progress)}));
    static_cast<void>(copied.join({reset}));
    return result;
  }

  // Launches with this input, and reads the output in both ways.
  void expect_diffused(graph_exec& exec, rod from, heat_limits const& limits) {
    int const before = callbacks.load(std::memory_order_acquire);
    must(cudaMemcpyAsync(input.get(), from.data(), rod_size, cudaMemcpyHostToDevice, one));
    uploaded->ref().record(one.get());
    exec.launch(two);
    heat_progress reached{};
    done->ref().wait(one.get());
    must(cudaMemcpyAsync(&reached, progress.get(), sizeof(reached), cudaMemcpyDeviceToHost, one));
    sync(one);
    // Acquire: pairs with the callback's release.
    EXPECT_EQ(callbacks.load(std::memory_order_acquire), before + 1);
    heat_progress const expected = diffuse(from, limits);
    EXPECT_EQ(reached.rounds, expected.rounds);
    EXPECT_DOUBLE_EQ(reached.residual, expected.residual);
    ASSERT_EQ(received.size(), from.size());
    for (std::size_t i = 0; i < points; ++i) EXPECT_DOUBLE_EQ(received[i], from[i]) << i;
    sync(two);
  }

  fate_ptr fate = make_fate();
  std::shared_ptr<double> const input = device_memory<double>(make_fate(), points);
  std::shared_ptr<heat_progress> const progress = device_memory<heat_progress>(make_fate());
  std::shared_ptr<event const> const uploaded = std::make_shared<event>();
  std::shared_ptr<event const> const done = std::make_shared<event>();
  rod output = rod(points);  // pageable
  rod received;
  std::atomic<int> callbacks{0};
  std::function<void(graph_exec&, heat_limits)> set_limits;
};

TEST_F(HeatDiffusion, IsThatOfTheHostForAsManyRoundsAndForAsSmallAResidual) {
  rod hot_end(points);
  hot_end.back() = 1;
  rod wave(points);
  for (std::size_t i = 0; i < points; ++i) wave[i] = std::sin(static_cast<double>(i));
  std::optional<graph_exec> exec(*built);
  expect_diffused(*exec, hot_end, by_rounds);
  expect_diffused(*exec, wave, by_rounds);
  set_limits(*exec, by_residual);
  EXPECT_TRUE(exec->is_bare());
  built.reset();
  expect_diffused(*exec, wave, by_residual);
  expect_diffused(*exec, hot_end, by_residual);
  EXPECT_TRUE(is_kept(fate)) << "only the exec keeps the values";
  exec.reset();
  EXPECT_TRUE(is_released(fate));
}

}  // namespace
}  // namespace escrow::test
