// Every CUDA call of every operation on graphs fails once: nothing leaks and no stream is left
// capturing.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <escrow/sim.hpp>
#include <functional>
#include <stdexcept>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"

namespace escrow {
namespace {

constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown,
                            cudaErrorNotPermitted};

class GraphFault : public testing::Test {
 protected:
  // Whether just one graph or exec is left: CUDA refused to destroy it, there is nobody to tell,
  // and trying again would destroy it twice where the status was that of earlier work.
  static bool is_refused_destroy(sim::counts const& before, sim::counts after) {
    if (after.graphs == before.graphs + 1) {
      --after.graphs;
    } else if (after.execs == before.execs + 1) {
      --after.execs;
    }
    return after == before;
  }

  // `operation` as a whole, with its n-th call failing, for all n.
  void for_each_call(std::function<void()> const& operation) {
    operation();  // once in peace
    test::must(cudaStreamSynchronize(stream_));
    sim::run_until_idle();
    sim::counts before = sim::alive();
    for (cudaError_t const error : errors) {
      bool reached = true;
      for (std::uint64_t n = 1; reached; ++n) {
        SCOPED_TRACE(testing::Message() << "call " << n << " fails: " << cudaGetErrorName(error));
        bool threw = true;
        {
          test::failing_call const failing(n, error);
          try {
            operation();
            threw = false;
          } catch (cuda_error const& what) {
            EXPECT_EQ(what.status(), error);
          } catch (std::runtime_error const& what) {
            EXPECT_STREQ(what.what(), "out");
          }
          reached = failing.was_reached();
        }
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        EXPECT_TRUE(capture_of(stream_).is_none()) << "the stream is left capturing";
        test::must(cudaStreamSynchronize(stream_));
        sim::run_until_idle();
        sim::counts const after = sim::alive();
        if (!threw && is_refused_destroy(before, after)) before = after;
        EXPECT_TRUE(after == before) << "something is left";
        if (HasFailure()) return;
      }
    }
    EXPECT_NO_THROW(operation());
  }

  test::owned_stream stream_ = test::make_stream();
};

TEST_F(GraphFault, CapturingLeavesNothing) {
  for_each_call([this] {
    static_cast<void>(capture(stream_, [](stream_ref stream) {
      check(test::launch_tiny(stream.get()), "cudaLaunchKernel");
    }));
  });
}

TEST_F(GraphFault, ACaptureThatThrowsLeavesNothing) {
  sim::counts const before = sim::alive();
  for (int round = 0; round < 2; ++round) {
    sim::fail_call_here("cudaStreamEndCapture", cudaErrorUnknown, 1,
                        static_cast<std::uint64_t>(round));
    EXPECT_THROW(
        static_cast<void>(capture(stream_, [](stream_ref) { throw std::runtime_error("out"); })),
        std::runtime_error);
    sim::clear_faults();
    EXPECT_TRUE(capture_of(stream_).is_none()) << "the stream is left capturing";
    EXPECT_TRUE(sim::alive() == before) << "something is left";
  }
}

TEST_F(GraphFault, AnEndThatFailsIsOver) {
  capture_scope scope(stream_);
  sim::fail_call_here("cudaStreamEndCapture", cudaErrorUnknown);
  EXPECT_THROW(static_cast<void>(scope.end()), cuda_error);
  EXPECT_TRUE(capture_of(stream_).is_none()) << "the capture goes on";
}

TEST_F(GraphFault, ACaptureOnALostDeviceIsOverAndItsGraphIsGone) {
  sim::counts const before = sim::alive();
  {
    capture_scope const dropped(stream_);
    sim::fail_device(0, cudaErrorIllegalAddress);
  }
  sim::clear_faults();
  EXPECT_TRUE(capture_of(stream_).is_none()) << "the capture goes on";
  EXPECT_TRUE(sim::alive() == before) << "something is left";
  {
    capture_scope scope(stream_);
    sim::fail_device(0, cudaErrorIllegalAddress);
    EXPECT_THROW(static_cast<void>(scope.end()), cuda_error);
  }
  sim::clear_faults();
  EXPECT_TRUE(capture_of(stream_).is_none()) << "the capture goes on";
  EXPECT_TRUE(sim::alive() == before) << "something is left";
}

TEST_F(GraphFault, MakingAndCloningLeavesNothing) {
  for_each_call([] {
    graph const it;
    graph const copy = it.clone();
    graph parent;
    parent.add_child(copy);
    parent.add_child(it);
  });
}

TEST_F(GraphFault, InstantiatingLaunchingAndUpdatingLeavesNothing) {
  for_each_call([this] {
    graph const source;
    graph_exec exec(source);
    exec.upload(stream_);
    exec.launch(stream_);
    exec.update(source);
    exec.launch(stream_);
  });
}

TEST_F(GraphFault, AnEndWithoutRelaxedModeHarmsNoCapture) {
  sim::counts const before = sim::alive();
  graph const source;
  test::owned_stream const other = test::make_stream();
  graph_exec* const exec = new graph_exec(source);
  test::capture capturing(other, cudaStreamCaptureModeGlobal);
  sim::fail_call_here("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown);
  delete exec;
  EXPECT_EQ(capturing.end(), cudaSuccess);
  EXPECT_EQ(sim::alive().execs, before.execs);
}

}  // namespace
}  // namespace escrow
