// What the worker does when CUDA fails under it: it reports, tries again, and goes on.
#include <gtest/gtest.h>

#include <chrono>
#include <escrow/sim.hpp>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/device.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class WorkerFault : public testing::Test {
 protected:
  WorkerFault() {
    device_scope const there(1);
    elsewhere_ = test::make_stream();
  }
  void TearDown() override { sim::clear_faults(); }

  [[nodiscard]] deleter_options telling() {
    return {.on_error = [this](std::exception const& error) {
      std::lock_guard const lock(mutex_);
      texts_.emplace_back(error.what());
    }};
  }
  [[nodiscard]] std::size_t told(std::string const& of) {
    std::lock_guard const lock(mutex_);
    std::size_t count = 0;
    for (std::string const& text : texts_) count += text.find(of) != std::string::npos ? 1 : 0;
    return count;
  }

  std::mutex mutex_;  // guards texts_
  std::vector<std::string> texts_;
  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  test::owned_stream elsewhere_;
  deleter deleter_{telling()};
};

TEST_F(WorkerFault, AQueryThatFailsForAWhileIsReportedOnceAndTriedAgain) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_.retire(stream_, probe(fate));
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 20);
  EXPECT_TRUE(test::wait_until([&] { return told("cudaEventQuery") != 0; }));
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(told("cudaEventQuery"), 1U);
  EXPECT_EQ(deleter_.stats().errors, 1U);
}

TEST_F(WorkerFault, AnOwnerWhoseEventIsGoneIsKeptForEverAndHoldsNobodyUp) {
  auto const fate = make_fate();
  test::owned_event event = test::make_event();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  test::must(cudaEventRecord(event, stream_));
  deleter_.retire_after(event.get(), probe(fate));
  event.reset();  // too early: nobody can ask it any more
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_EQ(deleter_.stats().leaked, 1U);
  EXPECT_EQ(deleter_.stats().pending, 0U);
  EXPECT_EQ(told("cudaEventQuery"), 1U);
  flag_.raise();
}

TEST_F(WorkerFault, AQueryThatIsSentAwayOnceLosesNothing) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  sim::fail_call("cudaEventQuery", cudaErrorInvalidResourceHandle);
  deleter_.retire(stream_, probe(fate));
  EXPECT_TRUE(test::wait_until([&] { return told("cudaEventQuery") != 0; }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(deleter_.stats().leaked, 0U);
}

TEST_F(WorkerFault, WithoutRelaxedModeTheWorkerWaitsUntilItGetsIt) {
  auto const fate = make_fate();
  sim::fail_call("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown, 1, 5);
  deleter_.retire(stream_, probe(fate));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(told("cudaThreadExchangeStreamCaptureMode"), 5U);
  deleter_.drain();
}

TEST_F(WorkerFault, ADeviceThatCannotBeSetOnceIsSetAtTheNextTry) {
  deleter_options options = telling();
  options.own_worker = false;
  deleter polled(options);
  auto const fate = make_fate();
  {
    device_scope const there(1);
    polled.retire(probe(fate));
  }
  sim::fail_call_here("cudaSetDevice", cudaErrorUnknown);
  polled.poll();
  polled.drain();
  ASSERT_EQ(fate->times(), 1);
  EXPECT_EQ(fate->device, 1);
  EXPECT_EQ(told("cudaSetDevice"), 1U);
}

TEST_F(WorkerFault, AHandlerThatThrowsStopsNothing) {
  deleter its(deleter_options{.on_error = [](std::exception const&) {
    throw std::runtime_error("a handler must not do this");
  }});
  auto const fate = make_fate();
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 3);
  its.retire(stream_, probe(fate));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(its.stats().errors, 1U);
}

TEST_F(WorkerFault, WhenNothingCanBeRecordedTheOwnerIsHeldAndCounted) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  sim::fail_call_here("cudaEventRecord", cudaErrorInvalidValue, 1, 2);
  probe owner(fate);
  EXPECT_THROW(deleter_.retire(stream_, std::move(owner)), cuda_error);
  EXPECT_FALSE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(deleter_.stats().leaked, 1U);
  EXPECT_EQ(told("cudaEventRecord"), 1U);
  flag_.raise();
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_FALSE(deleter_.stop_for(test::generous)) << "not everything has been reclaimed";
}

TEST_F(WorkerFault, AUserObjectThatCannotBeMadeOrMovedLosesNoOwner) {
  for (char const* call : {"cudaUserObjectCreate", "cudaGraphRetainUserObject"}) {
    SCOPED_TRACE(call);
    auto const fate = make_fate();
    test::owned_graph const graph = test::tiny_graph();
    sim::fail_call(call, cudaErrorMemoryAllocation);
    EXPECT_THROW(deleter_.retire(graph.get(), probe(fate)), cuda_error);
    EXPECT_TRUE(fate->wait());
    deleter_.drain();
    EXPECT_EQ(fate->times(), 1);
    EXPECT_EQ(deleter_.stats().in_graphs, 0U);
    EXPECT_EQ(sim::alive().user_objects, 0U);
  }
}

TEST_F(WorkerFault, AReferenceThatCannotBeReleasedAtOnceIsReleasedAtTheNextTry) {
  auto const fate = make_fate();
  test::owned_graph const graph = test::tiny_graph();
  sim::fail_call("cudaGraphRetainUserObject", cudaErrorMemoryAllocation);
  sim::fail_call("cudaUserObjectRelease", cudaErrorUnknown, 1, 2);
  EXPECT_THROW(deleter_.retire(graph.get(), probe(fate)), cuda_error);
  EXPECT_TRUE(fate->wait());
  deleter_.drain();
  EXPECT_EQ(deleter_.stats().in_graphs, 0U);
}

}  // namespace
}  // namespace escrow
