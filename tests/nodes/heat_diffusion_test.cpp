// Heat diffusion as a graph that is built by hand, with nodes of these kinds: empty, kernel, alloc,
// free, memset, memcpy, child graph, host callback, event record, event wait, while.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "build_integration_fixture.hpp"
#include "wait_until.hpp"

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

// What the graph does, on the host: two steps a round. Says how far it came.
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

class HeatDiffusion : public build_integration_test {
 protected:
  static constexpr heat_limits by_rounds{20, 0};
  static constexpr heat_limits by_residual{100'000, 1e-5};

  HeatDiffusion() { fill_graph(device_memory<double>(fate_, points)); }

  // Waits for the input, prepares, loops, and hands the output to a callback, and to whoever waits
  // for `done_`. Only the nodes keep `now`, where the values are at the end of each round.
  void fill_graph(std::shared_ptr<double> const& now) {
    allocation const memory = build(*heat_)
                                  .add(wait_node(uploaded_))
                                  .add(child_node(preparation(now)))
                                  .add(alloc_node(rod_size));
    auto* const before = static_cast<double*>(memory.address());
    auto const* const read = before;
    kernel const step{kernel_address(kernel_id::heat_step)};
    unfinished_.emplace(build(*heat_).make_condition(1));
    conditional_node const loop = memory.add(while_node(*unfinished_));
    node const round = loop.body()
                           .add(kernel_node(step, {.block = {32}}, before, now, points, ratio))
                           .add(kernel_node(step, {.block = {32}}, now, read, points, ratio));
    go_on_node_ = round.add(
        kernel_node(go_on_, {}, unfinished_->get(), progress_, by_rounds, now, read, points));
    change_ = [this, read, weak = std::weak_ptr(now)](graph_exec& exec, heat_limits limits) {
      escrow::set(exec, go_on_node_,
                  kernel_node(go_on_, {}, unfinished_->get(), progress_, limits, weak.lock(), read,
                              points));
    };
    node const freed = loop.add(free_node(memory.address()));
    node const told = loop.add(memcpy_node(output_.data(), now, rod_size)).add(host_node([this] {
      received_ = output_;
      // Release: whoever sees the count sees what was received.
      callbacks_.fetch_add(1, std::memory_order_release);
    }));
    static_cast<void>(told.join({freed}).add(record_node(done_)));
  }

  // A graph of its own, for embedding: copies the input, and resets the progress.
  [[nodiscard]] graph preparation(std::shared_ptr<double> const& now) {
    graph result(deleter_);
    node const copied = build(result).add(memcpy_node(now, input_, rod_size));
    node const reset = build(result).add(memset_node(progress_, {.width = sizeof(heat_progress)}));
    static_cast<void>(copied.join({reset}));
    return result;
  }

  // Launches with this input, and reads the output in both ways.
  void expect_diffused(graph_exec& exec, rod from, heat_limits const& limits) {
    int const before = callbacks_.load(std::memory_order_acquire);
    must(cudaMemcpyAsync(input_.get(), from.data(), rod_size, cudaMemcpyHostToDevice,
                         other_stream_));
    must(cudaEventRecord(uploaded_.get(), other_stream_));
    exec.launch(stream_);
    heat_progress reached{};
    must(cudaStreamWaitEvent(other_stream_, done_.get()));
    must(cudaMemcpyAsync(&reached, progress_.get(), sizeof(reached), cudaMemcpyDeviceToHost,
                         other_stream_));
    must(cudaStreamSynchronize(other_stream_));
    // Acquire: pairs with the callback's release.
    EXPECT_EQ(callbacks_.load(std::memory_order_acquire), before + 1);
    heat_progress const expected = diffuse(from, limits);
    EXPECT_EQ(reached.rounds, expected.rounds);
    EXPECT_DOUBLE_EQ(reached.residual, expected.residual);
    ASSERT_EQ(received_.size(), from.size());
    for (std::size_t i = 0; i < points; ++i) EXPECT_DOUBLE_EQ(received_[i], from[i]) << i;
    must(cudaStreamSynchronize(stream_));
  }

  std::optional<graph> heat_{std::in_place, deleter_};
  kernel const go_on_{kernel_address(kernel_id::heat_go_on)};
  std::shared_ptr<double> const input_ = device_memory<double>(make_fate(), points);
  std::shared_ptr<heat_progress> const progress_ = device_memory<heat_progress>(make_fate());
  shared_event const uploaded_ = shared_event::make();
  shared_event const done_ = shared_event::make();
  rod output_ = rod(points);  // pageable
  rod received_;
  std::atomic<int> callbacks_{0};
  std::optional<condition> unfinished_;
  node go_on_node_;
  std::function<void(graph_exec&, heat_limits)> change_;
};

TEST_F(HeatDiffusion, IsThatOfTheHostForAsManyRoundsAndForAsSmallAResidual) {
  rod hot_end(points);
  hot_end.back() = 1;
  rod wave(points);
  for (std::size_t i = 0; i < points; ++i) wave[i] = std::sin(static_cast<double>(i));
  std::optional<graph_exec> exec(*heat_);
  EXPECT_TRUE(exec->is_bare());
  expect_diffused(*exec, hot_end, by_rounds);
  expect_diffused(*exec, wave, by_rounds);
  change_(*exec, by_residual);
  EXPECT_TRUE(exec->is_bare());
  heat_.reset();
  expect_diffused(*exec, wave, by_residual);
  expect_diffused(*exec, hot_end, by_residual);
  expect_kept_by(exec);
}

TEST_F(HeatDiffusion, DoesNotBeginBeforeItsInputIsThere) {
  std::optional<graph_exec> exec(*heat_);
  rod spike(points);
  spike[5] = 1;
  expect_diffused(*exec, spike, by_rounds);  // every kernel is loaded
  must(launch_wait_flag(other_stream_, flag_.get()));
  must(cudaEventRecord(uploaded_.get(), other_stream_));
  heat_.reset();
  // Blocks until the copy to pageable memory is done.
  std::thread launching([&] { exec->launch(stream_); });
  EXPECT_TRUE(stays_false(
      [&] { return callbacks_.load(std::memory_order_acquire) != 1 || fate_->was_destroyed(); }));
  flag_.raise();
  launching.join();
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(callbacks_.load(std::memory_order_acquire), 2);
  expect_kept_by(exec);
}

}  // namespace
}  // namespace escrow::test
