// Every CUDA call of every operation fails once, with several errors: nothing is lost, destroyed
// early or twice, and everything works again.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <escrow/sim.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "probe.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue,
                            cudaErrorInvalidResourceHandle, cudaErrorUnknown,
                            cudaErrorNotPermitted};

// What must be as before once a case is over. Events are kept by the event cache: see below.
struct balance {
  std::size_t graphs, execs, user_objects, captures, device_allocations, pending_ops;
  static balance now() {
    sim::counts const it = sim::alive();
    return {it.graphs,     it.execs, it.user_objects, it.captures, it.device_allocations,
            it.pending_ops};
  }
  bool operator==(balance const&) const = default;
};

// Polled by the test, so that each call of each operation has its fixed number.
class RetireFault : public testing::Test {
 protected:
  // Runs `operation` with its n-th call failing. True if the call was reached.
  template <class Operation>
  bool with_failure(std::uint64_t n, cudaError_t error, Operation operation) {
    test::failing_call const failing(n, error);
    operation();
    return failing.was_reached();
  }

  // `one_case(n, error)` returns whether the n-th call was reached.
  void for_each_call(std::function<bool(std::uint64_t, cudaError_t)> const& one_case) {
    for (cudaError_t const error : errors) {
      bool reached = true;
      for (std::uint64_t n = 1; reached; ++n) {
        SCOPED_TRACE(testing::Message() << "call " << n << " fails: " << cudaGetErrorName(error));
        ASSERT_LT(n, 1000U);
        deleter_.emplace(deleter_options{.own_worker = false});
        balance const before = balance::now();
        reached = one_case(n, error);
        expect_to_work();
        deleter_.reset();
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        EXPECT_TRUE(before == balance::now()) << "something is left";
        if (HasFailure()) return;
      }
    }
  }

  // For `owner` retired with a failure: it is the caller's or the deleter's, never both or
  // nobody's.
  template <class Retire>
  bool retired(std::uint64_t n, cudaError_t error, bool& is_deleters, probe& owner, Retire retire) {
    return with_failure(n, error, [&] {
      bool threw = false;
      try {
        retire(std::move(owner));
      } catch (cuda_error const& what) {
        threw = true;
        EXPECT_EQ(what.status(), error);
      }
      is_deleters = !owner.is_owner();
      EXPECT_TRUE(threw || is_deleters);
    });
  }

  void expect_to_work() {
    auto const fate = make_fate();
    test::must(test::launch_tiny(stream_));
    deleter_->retire(stream_, probe(fate));
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), 1);
    EXPECT_EQ(deleter_->stats().in_graphs, 0U);
    EXPECT_EQ(deleter_->stats().held, 0U);
  }

  test::owned_stream stream_ = test::make_stream();
  std::optional<deleter> deleter_;
};

TEST_F(RetireFault, AnEagerRetireLosesNothingAndIsNeverEarly) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    test::pinned_flag flag;
    auto const fate = make_fate();
    bool is_deleters = false;
    bool reached = false;
    {
      probe owner(fate);
      test::must(test::launch_wait_flag(stream_, flag.get()));
      reached = retired(n, error, is_deleters, owner,
                        [this](probe&& it) { deleter_->retire(stream_, std::move(it)); });
      deleter_->poll();
      deleter_->poll();
      EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
      flag.raise();
      test::must(cudaStreamSynchronize(stream_));
      EXPECT_TRUE(deleter_->drain_for(test::generous));
      EXPECT_EQ(fate->times(), is_deleters ? 1 : 0);
    }
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, ARetireInACaptureLosesNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    bool is_deleters = false;
    bool reached = false;
    {
      probe owner(fate);
      test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
      bool threw = true;
      reached = retired(n, error, is_deleters, owner, [&](probe&& it) {
        deleter_->retire(stream_, std::move(it));
        threw = false;
      });
      EXPECT_EQ(capturing.end(), cudaSuccess) << "a failed retire harmed the capture";
      deleter_->drain();
      if (!threw) {
        EXPECT_EQ(fate->times(), 0) << "destroyed although the graph is there";
      }
      capturing.graph().reset();
      deleter_->drain();
      EXPECT_EQ(fate->times(), is_deleters ? 1 : 0);
    }
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, RetiringWithoutAStreamLosesNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    std::array const fates{make_fate(), make_fate(), make_fate()};
    std::array<bool, 3> is_deleters{};
    bool reached = false;
    {
      std::array owners{probe(fates[0]), probe(fates[1]), probe(fates[2])};
      test::owned_graph graph = test::make_graph();
      test::owned_event const event = test::make_event();
      reached |= retired(n, error, is_deleters[0], owners[0],
                         [&](probe&& it) { deleter_->retire(std::move(it)); });
      reached |= retired(n, error, is_deleters[1], owners[1],
                         [&](probe&& it) { deleter_->retire_after(event.get(), std::move(it)); });
      reached |= retired(n, error, is_deleters[2], owners[2],
                         [&](probe&& it) { deleter_->retire(graph.get(), std::move(it)); });
      graph.reset();
      deleter_->drain();
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(fates[i]->times(), is_deleters[i] ? 1 : 0);
    }
    for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, AFailingPollDestroysNothingEarlyAndForgetsNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    test::pinned_flag flag;
    auto const done = make_fate();
    auto const running = make_fate();
    test::owned_stream const other = test::make_stream();
    test::must(test::launch_wait_flag(stream_, flag.get()));
    deleter_->retire(stream_, probe(running));
    deleter_->retire(other, probe(done));
    bool const reached = with_failure(n, error, [this] {
      try {
        deleter_->poll();
      } catch (cuda_error const&) {  // the calling thread could not be made ready for it
      }
    });
    EXPECT_EQ(running->times(), 0);
    EXPECT_TRUE(test::wait_until([&] {
      deleter_->poll();
      return done->was_destroyed();
    }));
    EXPECT_EQ(running->times(), 0);
    flag.raise();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(done->times() + running->times(), 2);
    return reached;
  });
}

TEST_F(RetireFault, AFailingDrainMayBeRepeated) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    deleter_->retire(stream_, probe(fate));
    test::must(cudaStreamSynchronize(stream_));
    bool const reached = with_failure(n, error, [this] {
      try {
        static_cast<void>(deleter_->drain_for(test::generous));
      } catch (cuda_error const&) {  // as for poll()
      }
    });
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, EventsDoNotPileUp) {
  auto const all_cases = [this] {
    for_each_call([this](std::uint64_t n, cudaError_t error) {
      auto const fate = make_fate();
      bool is_deleters = false;
      probe owner(fate);
      return retired(n, error, is_deleters, owner,
                     [this](probe&& it) { deleter_->retire(stream_, std::move(it)); });
    });
  };
  all_cases();
  std::size_t const before = sim::alive().events;
  all_cases();
  all_cases();
  EXPECT_LE(sim::alive().events, before + 1);
}

}  // namespace
}  // namespace escrow
