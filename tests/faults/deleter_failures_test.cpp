// Calls that fail more than once, or on the worker's thread: it reports, tries again, or leaks and
// counts.
#include <escrow/detail/device.hpp>
#include <escrow/nodes.hpp>
#include <escrow/sim.hpp>
#include <stdexcept>
#include <string>

#include "world.hpp"

namespace escrow::test {
namespace {

class failing_test : public world {
 protected:
  failing_test() { errors_expected = true; }
  void TearDown() override {
    sim::clear_faults();
    world::TearDown();
  }
  /// How many errors that name the call were reported.
  [[nodiscard]] std::size_t told(std::string const& call) const {
    std::string const all = errors->all();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = all.find(call, at)) != std::string::npos; ++at) ++count;
    return count;
  }
};

class WorkerFault : public failing_test {};

TEST_F(WorkerFault, AQueryThatFailsForAWhileIsReportedOnceAndTriedAgain) {
  auto const fate = make_fate();
  hold_up(one);
  retire(one, fate);
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 20);
  EXPECT_TRUE(wait_until([&] { return told("cudaEventQuery") != 0; }));
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(told("cudaEventQuery"), 1U);
  EXPECT_EQ(worker->stats().errors, 1U);
}

TEST_F(WorkerFault, AnOwnerWhoseEventWasDestroyedIsLeakedAndBlocksNothing) {
  auto const fate = make_fate();
  owned_event event = make_event();
  hold_up(one);
  must(cudaEventRecord(event, one));
  worker->retire_after(event.get(), probe(fate));
  event.reset();  // too early
  EXPECT_TRUE(drained());
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(worker->stats().pending, 0U);
  EXPECT_EQ(told("cudaEventQuery"), 1U);
}

TEST_F(WorkerFault, WithoutRelaxedModeTheWorkerWaitsUntilItGetsIt) {
  auto const fate = make_fate();
  sim::fail_call("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown, 1, 5);
  retire(one, fate);
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(told("cudaThreadExchangeStreamCaptureMode"), 5U);
  worker->drain();
}

TEST_F(WorkerFault, AHandlerThatThrowsStopsNothing) {
  deleter its(deleter_options{.on_error = [](std::exception const&) {
    throw std::runtime_error("a handler must not do this");
  }});
  auto const fate = make_fate();
  sim::fail_call("cudaEventQuery", cudaErrorUnknown, 1, 3);
  its.retire(one, probe(fate));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(its.stats().errors, 1U);
}

TEST_F(WorkerFault, AnOwnerForWhichNothingCanBeRecordedIsLeakedAndCounted) {
  auto const fate = make_fate();
  hold_up(one);
  sim::fail_call_here("cudaEventRecord", cudaErrorInvalidValue, 1, 2);
  probe owner(fate);
  EXPECT_THROW(worker->retire(one, std::move(owner)), cuda_error);
  EXPECT_FALSE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(told("cudaEventRecord"), 1U);
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_FALSE(worker->stop_for(generous)) << "not everything has been reclaimed";
}

TEST_F(WorkerFault, AReferenceThatCannotBeReleasedAtOnceIsReleasedAtTheNextTry) {
  auto const fate = make_fate();
  owned_graph const graph = tiny_graph();
  sim::fail_call("cudaGraphRetainUserObject", cudaErrorMemoryAllocation);
  sim::fail_call("cudaUserObjectRelease", cudaErrorUnknown, 1, 2);
  EXPECT_THROW(worker->retire(graph.get(), probe(fate)), cuda_error);
  EXPECT_TRUE(is_released(fate));
  worker->drain();
  EXPECT_EQ(worker->stats().in_graphs, 0U);
}

/// Uses of a shared object that cannot be recorded.
class StreamSharedFault : public failing_test {
 protected:
  /// Whether the use was recorded.
  static bool record(std::shared_ptr<probe> const& shared, cudaStream_t stream) {
    try {
      record_stream(shared, stream);
      return true;
    } catch (cuda_error const&) {
      return false;
    }
  }
  /// Drops the last share and expects that the object is leaked, and counted once.
  void expect_leaked(std::shared_ptr<probe> last) {
    last.reset();
    EXPECT_TRUE(drained());
    EXPECT_EQ(fate->times(), 0);
    EXPECT_EQ(worker->stats().leaked, 1U);
  }

  fate_ptr fate = make_fate();
  std::shared_ptr<probe> shared = make_stream_shared_by<probe>(*worker, fate);
};

TEST_F(StreamSharedFault, AUseThatIsNeverRecordedLeaksTheObject) {
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  EXPECT_FALSE(record(shared, one));
  expect_leaked(std::move(shared));
}

TEST_F(StreamSharedFault, AUseThatIsNotRecordedLeaksTheObjectThoughALaterOneOfTheStreamIs) {
  sim::fail_call_here("cudaStreamGetId", cudaErrorUnknown, 1, 2);
  EXPECT_FALSE(record(shared, one));
  EXPECT_FALSE(record(shared, one));
  EXPECT_TRUE(record(shared, one));
  expect_leaked(std::move(shared));
}

// The work may have been eager.
TEST_F(StreamSharedFault, AUseOfAStreamOfWhichNoCallTellsWhetherItCapturesLeaksTheObject) {
  capture open(one, cudaStreamCaptureModeGlobal);
  sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorUnknown, 1, 100);
  EXPECT_FALSE(record(shared, one));
  sim::clear_faults();
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(worker->stats().errors, 1U);
  expect_leaked(std::move(shared));
}

TEST_F(StreamSharedFault, TheErrorHandlerMayRecordAUse) {
  deleter_options chosen{.own_worker = false};
  chosen.on_error = [&](std::exception const&) { EXPECT_TRUE(record(shared, two)); };
  worker = std::make_unique<deleter>(chosen);
  shared = make_stream_shared_by<probe>(*worker, fate);
  sim::fail_call_here("cudaStreamGetId", cudaErrorUnknown);
  EXPECT_FALSE(record(shared, one));
  EXPECT_EQ(worker->stats().errors, 1U);
  expect_leaked(std::move(shared));
}

TEST_F(StreamSharedFault, BesideALostDeviceAUseOnAnotherLeaksTheObject) {
  owned_stream healthy;
  {
    device_scope const there(1);
    healthy = make_stream();
    hold_up(healthy);
    record_stream(shared, healthy);
  }
  record_stream(shared, one);
  sim::fail_device(0, cudaErrorIllegalAddress);
  shared.reset();
  EXPECT_TRUE(drained()) << "a drain waits for what no call tells";
  EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
  EXPECT_EQ(worker->stats().leaked, 2U) << "one for each use";
  flag.raise();
  sim::clear_faults();
  must(cudaStreamSynchronize(healthy));  // before the flag is freed
}

TEST(LibraryFault, AnUnloadThatFailsIsTriedAgainAndReportedIfItAlwaysFails) {
  for (auto const& [times, errors] : {std::pair{2U, 0U}, std::pair{1000U, 1U}}) {
    SCOPED_TRACE(times);
    std::size_t const before = sim::alive().libraries;
    deleter its;
    sim::fail_call("cudaLibraryUnload", cudaErrorUnknown, 1, times);
    static_cast<void>(library::load(library_code(), its));
    its.drain();
    sim::clear_faults();
    EXPECT_EQ(sim::alive().libraries, before + errors);
    EXPECT_EQ(its.stats().errors, errors);
  }
}

}  // namespace
}  // namespace escrow::test
