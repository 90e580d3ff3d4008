// Launches while a call or an allocation fails: all or nothing, and nothing is freed too early.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/sim.hpp>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "../deleter/probe.hpp"
#include "../pool/allocation_watch.hpp"
#include "capturing.hpp"
#include "escrow/core/cuda_error.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown};
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

// Calls `operation` with its n-th call or allocation failing and returns whether it came to that.
using failure = std::function<bool(std::uint64_t n, std::function<void()> const& operation)>;

bool with_failing_call(std::uint64_t n, cudaError_t error, std::function<void()> const& operation) {
  failing_call const failing(n, error);
  operation();
  return failing.was_reached();
}

bool with_failing_allocation(std::uint64_t n, std::function<void()> const& operation) {
  allocation_watch const watch{n};
  operation();
  return n <= watch.count();
}

class LaunchFault : public testing::Test {
 protected:
  void for_each_failure(std::function<bool(std::uint64_t, failure const&)> const& one_case) {
    for (cudaError_t const error : errors) {
      SCOPED_TRACE(cudaGetErrorName(error));
      for_each(one_case, [error](std::uint64_t n, auto const& operation) {
        return with_failing_call(n, error, operation);
      });
    }
    SCOPED_TRACE("operator new");
    for_each(one_case, with_failing_allocation);
  }
  // Whether it threw.
  bool try_launch(arguments& its) {
    launch_config config;
    config.keeper = &*deleter_;
    try {
      launch(stream_, copy_, config, std::move(its.target), its.source, std::size_t{1});
      return false;
    } catch (cuda_error const&) {
      return true;
    } catch (std::bad_alloc const&) {
      return true;
    }
  }

  kernel const copy_{kernel_address(kernel_id::copy)};
  pinned_ints cells_{2};
  owned_stream stream_ = make_stream();
  std::optional<deleter> deleter_;

 private:
  void for_each(std::function<bool(std::uint64_t, failure const&)> const& one_case,
                failure const& fail) {
    bool reached = true;
    for (std::uint64_t n = 1; reached; ++n) {
      SCOPED_TRACE(n);
      ASSERT_LT(n, 100U);
      // Polled by the test, so that each call has its fixed number.
      deleter_.emplace(deleter_options{.own_worker = false});
      cells_.store(0, 0);
      cells_.store(1, copied);
      reached = one_case(n, fail);
      EXPECT_EQ(deleter_->stats().held, 0U);
      deleter_.reset();
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      if (HasFailure()) return;
    }
  }
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
