// Launches while a call or an allocation fails: all or nothing, and nothing is freed too early.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "../deleter/probe.hpp"
#include "capturing.hpp"
#include "each_failure.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

constexpr int copied = 5;

struct tells {
  fate_ptr fate;
  void operator()(int*) const { probe const goes(fate); }
};

// One launch of a copy kernel: the target is moved in, the source is shared.
struct arguments {
  fate_ptr of_target = make_fate();
  fate_ptr of_source = make_fate();
  std::unique_ptr<int, tells> target;
  std::shared_ptr<int> source;

  explicit arguments(pinned_ints& cells)
      : target(cells.data(), tells{of_target}), source(cells.data() + 1, tells{of_source}) {}
  [[nodiscard]] bool was_taken() const { return target == nullptr; }
  [[nodiscard]] int gone() const { return of_target->times() + of_source->times(); }
};

class LaunchFault : public testing::Test {
 protected:
  // Runs a case with a deleter of its own.
  void for_each_failure(failure_case const& one_case) {
    test::for_each_failure([&](std::uint64_t n, failure const& fail) {
      // Polled by the test, so that each call has its fixed number.
      deleter_.emplace(deleter_options{.own_worker = false});
      cells_.store(0, 0);
      cells_.store(1, copied);
      bool const reached = one_case(n, fail);
      EXPECT_EQ(deleter_->stats().held, 0U);
      deleter_.reset();
      return reached;
    });
  }
  // Whether it threw.
  bool try_launch(arguments& its) {
    launch_config config;
    config.keeper = &*deleter_;
    return throws(
        [&] { launch(stream_, copy_, config, std::move(its.target), its.source, std::size_t{1}); });
  }

  kernel const copy_{kernel_address(kernel_id::copy)};
  pinned_ints cells_{2};
  owned_stream stream_ = make_stream();
  std::optional<deleter> deleter_;
};

TEST_F(LaunchFault, RunsTheKernelAndKeepsItsArgumentsOrDoesNeither) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    pinned_flag flag;
    arguments its(cells_);
    must(launch_wait_flag(stream_, flag.get()));
    bool threw = false;
    bool const reached = fail(n, [&] { threw = try_launch(its); });
    its.source.reset();
    deleter_->poll();
    deleter_->poll();
    bool const runs = its.was_taken();
    EXPECT_TRUE(runs || threw);
    EXPECT_EQ(its.gone(), runs ? 0 : 1) << "only the source may be gone, and only if not in use";
    flag.raise();
    must(cudaStreamSynchronize(stream_));
    EXPECT_EQ(cells_.load(), runs ? copied : 0);
    EXPECT_TRUE(deleter_->drain_for(generous));
    its.target.reset();
    EXPECT_EQ(its.of_target->times(), 1);
    EXPECT_EQ(its.of_source->times(), 1);
    return reached;
  });
}

TEST_F(LaunchFault, InACaptureEitherKeepsItsArgumentsWithTheGraphOrLosesNothing) {
  for_each_failure([this](std::uint64_t n, failure const& fail) {
    arguments its(cells_);
    capture open(stream_, cudaStreamCaptureModeThreadLocal);
    bool threw = false;
    bool const reached = fail(n, [&] { threw = try_launch(its); });
    EXPECT_EQ(open.end(), cudaSuccess) << "a failed launch harmed the capture";
    its.source.reset();
    deleter_->drain();
    if (!threw) {
      EXPECT_TRUE(its.was_taken());
      EXPECT_EQ(its.gone(), 0) << "freed although the graph is there";
    }
    open.graph().reset();
    EXPECT_TRUE(deleter_->drain_for(generous));
    its.target.reset();
    EXPECT_EQ(its.of_target->times(), 1);
    EXPECT_EQ(its.of_source->times(), 1);
    return reached;
  });
}

}  // namespace
}  // namespace escrow::test
