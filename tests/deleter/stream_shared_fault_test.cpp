// Shared objects while calls fail: never destroyed while a noted use runs, never lost.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <escrow/sim.hpp>
#include <memory>
#include <new>
#include <optional>

#include "allocation_watch.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/shared_object.hpp"
#include "escrow/detail/device.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown};

// Polled by the test, so that each call has its fixed number.
class StreamSharedFault : public testing::Test {
 protected:
  // Calls `operation` with its n-th call failing; whether there were as many.
  template <class Operation>
  bool with_failure(std::uint64_t n, cudaError_t error, Operation operation) {
    test::failing_call const failing(n, error);
    operation();
    return failing.was_reached();
  }
  template <class OneCase>
  void for_each_call(OneCase one_case) {
    for (cudaError_t const error : errors) {
      bool reached = true;
      for (std::uint64_t n = 1; reached; ++n) {
        SCOPED_TRACE(testing::Message() << "call " << n << " fails: " << cudaGetErrorName(error));
        ASSERT_LT(n, 1000U);
        deleter_.emplace(deleter_options{.own_worker = false});
        reached = one_case(n, error);
        deleter_.reset();
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        if (HasFailure()) return;
      }
    }
  }
  [[nodiscard]] std::shared_ptr<probe> share(test::fate_ptr const& fate) {
    return make_stream_shared_by<probe>(*deleter_, fate);
  }
  // Whether noting the use worked.
  static bool note(std::shared_ptr<probe> const& shared, cudaStream_t stream) {
    try {
      record_stream(shared, stream);
      return true;
    } catch (cuda_error const&) {
      return false;
    } catch (std::bad_alloc const&) {
      return false;
    }
  }
  // Two streams use an object whose share goes at once, while `fail(operation)` lets one thing of
  // the notes fail. Returns whether it came to that.
  template <class Fail>
  bool use_goes_wrong(Fail fail) {
    auto const fate = make_fate();
    test::pinned_flag flag;
    auto shared = share(fate);
    test::must(test::launch_wait_flag(stream_, flag.get()));
    bool are_noted = false;
    bool const reached = fail([&] {
      bool const is_first_noted = note(shared, other_);
      are_noted = note(shared, stream_) && is_first_noted;
    });
    EXPECT_TRUE(are_noted || reached);
    shared.reset();
    deleter_->poll();
    deleter_->poll();
    EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
    flag.raise();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), are_noted ? 1 : 0);
    EXPECT_EQ(deleter_->stats().leaked, are_noted ? 0U : 1U);
    EXPECT_EQ(deleter_->stats().errors, are_noted ? 0U : 1U);
    return reached;
  }

  test::owned_stream stream_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  std::optional<deleter> deleter_;
};

TEST_F(StreamSharedFault, MakingOneWorksOrLeavesNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    std::shared_ptr<probe> shared;
    bool const reached = with_failure(n, error, [&] {
      try {
        shared = share(fate);
      } catch (cuda_error const& what) {
        EXPECT_EQ(what.status(), error);
      }
    });
    bool const was_made = shared != nullptr;
    shared.reset();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), was_made ? 1 : 0);
    return reached;
  });
}

TEST_F(StreamSharedFault, AUseIsWaitedForAlsoIfItCouldNotBeNoted) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    return use_goes_wrong([&](auto const& operation) { return with_failure(n, error, operation); });
  });
}

TEST_F(StreamSharedFault, AUseIsWaitedForAlsoIfThereIsNoMemoryToNoteIt) {
  bool reached = true;
  for (std::uint64_t n = 1; reached; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100U);
    deleter_.emplace(deleter_options{.own_worker = false});
    reached = use_goes_wrong([n](auto const& operation) {
      test::allocation_watch const watch{n};
      operation();
      return n <= watch.count();
    });
    deleter_.reset();
    if (HasFailure()) return;
  }
}

TEST_F(StreamSharedFault, AUseOnAStreamThatNothingCanBeRecordedOnKeepsItForEver) {
  deleter_.emplace();
  auto const fate = make_fate();
  auto shared = share(fate);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
  EXPECT_THROW(record_stream(shared, stream_), cuda_error);
  sim::clear_faults();
  shared.reset();
  deleter_->drain();
  EXPECT_EQ(fate->times(), 0);
  EXPECT_EQ(deleter_->stats().leaked, 1U);
}

TEST_F(StreamSharedFault, AFailedUseKeepsItThoughALaterOneOfTheStreamIsNoted) {
  deleter_.emplace();
  auto const fate = make_fate();
  auto shared = share(fate);
  sim::fail_call_here("cudaStreamGetId", cudaErrorUnknown, 1, 2);
  EXPECT_FALSE(note(shared, stream_));
  EXPECT_FALSE(note(shared, stream_));
  EXPECT_TRUE(note(shared, stream_));
  shared.reset();
  deleter_->drain();
  EXPECT_EQ(fate->times(), 0);
  EXPECT_EQ(deleter_->stats().leaked, 1U) << "one object";
}

TEST_F(StreamSharedFault, ACaptureHoldsItOrDoesNotAndIsNotHarmed) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    auto shared = share(fate);
    test::capture open(stream_, cudaStreamCaptureModeGlobal);
    bool is_held = false;
    bool const reached = with_failure(n, error, [&] { is_held = note(shared, stream_); });
    EXPECT_EQ(open.end(), cudaSuccess) << "a failed call harmed the capture";
    shared.reset();
    deleter_->drain();
    EXPECT_TRUE(!is_held || fate->times() == 0) << "destroyed although the graph is there";
    open.graph().reset();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(deleter_->stats().leaked, 0U);
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

// The work may have been eager.
TEST_F(StreamSharedFault, AUseOfAStreamThatDoesNotSayWhetherItCapturesKeepsIt) {
  deleter_.emplace();
  auto const fate = make_fate();
  auto shared = share(fate);
  test::capture open(stream_, cudaStreamCaptureModeGlobal);
  sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorUnknown, 1, 100);
  EXPECT_FALSE(note(shared, stream_));
  sim::clear_faults();
  EXPECT_EQ(open.end(), cudaSuccess);
  shared.reset();
  deleter_->drain();
  EXPECT_EQ(fate->times(), 0);
  EXPECT_EQ(deleter_->stats().leaked, 1U);
  EXPECT_EQ(deleter_->stats().errors, 1U);
}

TEST_F(StreamSharedFault, AFailingPollDestroysNothingEarlyAndForgetsNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    test::pinned_flag flag;
    auto shared = share(fate);
    test::must(test::launch_wait_flag(stream_, flag.get()));
    record_stream(shared, stream_);
    record_stream(shared, other_);
    shared.reset();
    bool const reached = with_failure(n, error, [this] {
      try {
        deleter_->poll();
        deleter_->poll();
      } catch (cuda_error const&) {  // the calling thread could not be made ready for it
      }
    });
    EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
    flag.raise();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(StreamSharedFault, WhoIsToldOfAUseThatCouldNotBeNotedMayNoteOne) {
  auto const fate = make_fate();
  std::shared_ptr<probe> shared;
  deleter_options chosen{.own_worker = false};
  chosen.on_error = [&](std::exception const&) { EXPECT_TRUE(note(shared, other_)); };
  deleter_.emplace(chosen);
  shared = share(fate);
  sim::fail_call_here("cudaStreamGetId", cudaErrorUnknown);
  EXPECT_FALSE(note(shared, stream_));
  EXPECT_EQ(deleter_->stats().errors, 1U);
  shared.reset();
  EXPECT_TRUE(deleter_->drain_for(test::generous));
  EXPECT_EQ(deleter_->stats().leaked, 1U);
}

TEST_F(StreamSharedFault, BesideALostDeviceAUseOfAnotherIsNeverOver) {
  deleter_.emplace();
  auto const fate = make_fate();
  test::pinned_flag flag;
  device_scope const there(1);
  test::owned_stream const healthy = test::make_stream();
  auto shared = share(fate);
  test::must(test::launch_wait_flag(healthy, flag.get()));
  record_stream(shared, healthy);
  record_stream(shared, stream_);
  sim::fail_device(0, cudaErrorIllegalAddress);
  shared.reset();
  EXPECT_TRUE(deleter_->drain_for(test::generous)) << "a drain waits for what nothing tells";
  EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
  EXPECT_EQ(deleter_->stats().leaked, 2U) << "one for each use";
  flag.raise();
  deleter_.reset();
  sim::clear_faults();
  test::must(cudaStreamSynchronize(healthy));  // before the flag goes
}

}  // namespace
}  // namespace escrow
