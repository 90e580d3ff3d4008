// Whole computations as graphs that are built by hand, which together have every kind of node:
//   heat diffusion: empty, kernel, alloc, free, memset, memcpy, child graph, host callback, event
//     record, event wait, while;
//   bisection: if and if-else, in a while;
//   dispatch: switch.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <escrow/deleter.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "../deleter/probe.hpp"
#include "build_fixture.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

// Device memory that ends with its last owner, and tells the fate.
template <class T>
[[nodiscard]] std::shared_ptr<T> device_memory(fate_ptr fate, std::size_t n = 1) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, n * sizeof(T)));
  return {static_cast<T*>(memory), [fate = std::move(fate)](T* freed) {
            static_cast<void>(cudaFree(freed));
            probe const goes(fate);
          }};
}

class BuildIntegration : public build_test {
 protected:
  // Expects that only `exec` keeps what tells the fate, and ends both.
  void expect_kept_by(std::optional<graph_exec>& exec) {
    deleter_.drain();
    EXPECT_FALSE(fate_->was_destroyed());
    exec.reset();
    deleter_.drain();
    EXPECT_TRUE(fate_->wait());
    EXPECT_EQ(fate_->times(), 1);
  }
  template <class T>
  void upload(T* to, T const& value) {
    must(cudaMemcpy(to, &value, sizeof(T), cudaMemcpyHostToDevice));
  }

  deleter deleter_;
  fate_ptr fate_ = make_fate();
};

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

class HeatDiffusion : public BuildIntegration {
 protected:
  static constexpr heat_limits by_rounds{20, 0};
  static constexpr heat_limits by_residual{100'000, 1e-5};

  HeatDiffusion() { fill_graph(device_memory<double>(fate_, points)); }

  // Waits for the input, prepares, loops, and hands the output to a callback, and to whoever waits
  // for `done_`. Only the nodes keep `now`, where the values are at the end of each round.
  void fill_graph(std::shared_ptr<double> const& now) {
    allocation const memory = heat_->wait(uploaded_).embed(preparation(now)).alloc(rod_size);
    auto* const before = static_cast<double*>(memory.address());
    auto const* const read = before;
    kernel const step{kernel_address(kernel_id::heat_step)};
    unfinished_.emplace(heat_->make_condition(1));
    conditional_node const loop = memory.while_loop(*unfinished_);
    node const round = loop.body()
                           .launch(step, {.block = {32}}, before, now, points, ratio)
                           .launch(step, {.block = {32}}, now, read, points, ratio);
    go_on_node_ =
        round.launch(go_on_, {}, unfinished_->get(), progress_, by_rounds, now, read, points);
    change_ = [this, read, weak = std::weak_ptr(now)](graph_exec& exec, heat_limits limits) {
      exec.set_launch(go_on_node_, go_on_, {}, unfinished_->get(), progress_, limits, weak.lock(),
                      read, points);
    };
    node const freed = loop.free(memory);
    node const told = loop.memcpy(output_.data(), now, rod_size).call([this] {
      received_ = output_;
      // Release: whoever sees the count sees what was received.
      callbacks_.fetch_add(1, std::memory_order_release);
    });
    static_cast<void>(told.join({freed}).record(done_));
  }

  // A graph of its own, for embedding: copies the input, and resets the progress.
  [[nodiscard]] graph preparation(std::shared_ptr<double> const& now) {
    graph result(deleter_);
    node const copied = result.memcpy(now, input_, rod_size);
    node const reset = result.memset(progress_, {.width = sizeof(heat_progress)});
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

class Bisection : public BuildIntegration {
 protected:
  static constexpr double width = 1e-12;

  // Halves the bracket until it is narrow. An if-else takes the half; an if takes the middle when
  // that is the root, and counts that in cell 0. Returns the node that probes.
  node fill_graph(std::shared_ptr<bracket> const& around, cubic const& function) {
    auto const part = [&](double bracket::*member) {
      return std::shared_ptr<double>(around, &(around.get()->*member));
    };
    auto const low = part(&bracket::low);
    auto const high = part(&bracket::high);
    auto const middle = part(&bracket::middle);
    condition const is_wide = bisect_->make_condition(1);
    body_graph const loop = bisect_->while_loop(is_wide).body();
    side_.emplace(loop.make_condition(0));
    hit_.emplace(loop.make_condition(0));
    node const probed = loop.launch(probe_, {}, side_->get(), hit_->get(), around, function);
    conditional_node const half = probed.if_else(*side_);
    half.body().memcpy(low, middle, sizeof(double));
    half.otherwise().memcpy(high, middle, sizeof(double));
    conditional_node const found = half.if_then(*hit_);
    node const both = found.body().join({found.body().memcpy(low, middle, sizeof(double)),
                                         found.body().memcpy(high, middle, sizeof(double))});
    add_to(both, 0, 1);
    found.launch(kernel(kernel_address(kernel_id::bisect_go_on)), {}, is_wide.get(),
                 std::shared_ptr<bracket const>(around), width);
    return probed;
  }

  std::optional<graph> bisect_{std::in_place, deleter_};
  kernel const probe_{kernel_address(kernel_id::bisect_probe)};
  std::optional<condition> side_;
  std::optional<condition> hit_;
};

TEST_F(Bisection, FindsRootsWithinTheWidthAndAtOnceWhenItHitsThem) {
  std::shared_ptr<bracket> around = device_memory<bracket>(fate_);
  cubic const wallis{-2, -5};         // its root is the one below
  cubic const dyadic{-1, -0.703125};  // 1.25 is its root, exactly
  cubic const falling{-3, 1};         // between 0 and 1 from above to below
  node const probed = fill_graph(around, wallis);
  std::optional<graph_exec> exec(*bisect_);
  EXPECT_TRUE(exec->is_bare());
  bracket* const place = around.get();
  auto const root_of = [&](double low, double high) {
    upload(place, bracket{low, high, 0});
    run(*exec);
    bracket found{};
    must(cudaMemcpy(&found, place, sizeof(found), cudaMemcpyDeviceToHost));
    EXPECT_LE(found.high - found.low, width);
    return found.low;
  };
  EXPECT_NEAR(root_of(2, 3), 2.0945514815423265, width);
  EXPECT_NEAR(root_of(-8, 64), 2.0945514815423265, width);
  EXPECT_EQ(cells_.load(), 0);
  exec->set_launch(probed, probe_, {}, side_->get(), hit_->get(), around, dyadic);
  EXPECT_EQ(root_of(1, 2), 1.25);
  EXPECT_EQ(cells_.load(), 1);
  EXPECT_EQ(root_of(1, 1.5), 1.25);
  EXPECT_EQ(cells_.load(), 2);
  exec->set_launch(probed, probe_, {}, side_->get(), hit_->get(), around, falling);
  around.reset();
  bisect_.reset();
  EXPECT_NEAR(root_of(0, 1), 0.3472963553338607, width);
  EXPECT_EQ(cells_.load(), 2);
  expect_kept_by(exec);
}

class Dispatch : public BuildIntegration {
 protected:
  static constexpr unsigned cases = 4;

  // Looks at cell 0 and does what it says: 0 fills by a kernel, 1 by a memset, 2 copies, 3 runs a
  // child graph; anything else nothing. Then the memory goes to the cells from 4 on, and cell 1
  // counts.
  void fill_graph(std::shared_ptr<int> const& memory) {
    constexpr std::size_t size = 4 * sizeof(int);
    condition const chosen = dispatch_->make_condition(0);
    node const reset = dispatch_->memset(memory, {.width = size});
    conditional_node const what = look(reset, chosen, 0).switch_to(chosen, cases);
    what.bodies()[0].launch(fill, {.block = {4}}, memory, 4U, 100);
    what.bodies()[1].memset(memory, {.value = 7, .element_bytes = 4, .width = 4});
    what.bodies()[2].memcpy(memory, device_.data(), size);
    graph child(deleter_);
    child.launch(fill, {.block = {4}}, memory, 3U, 300);
    static_cast<void>(what.bodies()[3].embed(child));
    node const copied = what.memcpy(cells_.data() + 4, memory, size);
    add_to(copied, 1, 1);
  }

  std::optional<graph> dispatch_{std::in_place, deleter_};
};

TEST_F(Dispatch, RunsTheCaseThatIsChosenAndNoneForAValueOutOfRange) {
  must(launch_fill(stream_, device_.data(), 4, 200));
  fill_graph(device_memory<int>(fate_, 4));
  std::optional<graph_exec> exec(*dispatch_);
  EXPECT_TRUE(exec->is_bare());
  dispatch_.reset();
  struct outcome {
    int chosen;
    int first;
    int last;
  };
  int launches = 0;
  for (outcome const& each : {outcome{0, 100, 100},
                              {1, 7, 7},
                              {2, 200, 200},
                              {3, 300, 0},
                              {4, 0, 0},
                              {-1, 0, 0},
                              {2, 200, 200},
                              {0, 100, 100}}) {
    cells_.store(0, each.chosen);
    run(*exec);
    EXPECT_EQ(cells_.load(4), each.first) << each.chosen;
    EXPECT_EQ(cells_.load(7), each.last) << each.chosen;
    EXPECT_EQ(cells_.load(1), ++launches);
  }
  expect_kept_by(exec);
}

}  // namespace
}  // namespace escrow::test
