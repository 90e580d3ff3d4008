// SPDX-License-Identifier: Apache-2.0
// What the other parts build on: errors, streams, events, scopes, a lock, and objects that stay.
#include <escrow/core.hpp>
#include <escrow/internal/never_destroyed.hpp>
#include <escrow/internal/ready_event.hpp>
#include <escrow/internal/spin_lock.hpp>

#include "world.hpp"

namespace escrow::test {
namespace {

TEST(CudaError, NamesTheCallTheStatusAndTheLine) {
  int const line = __LINE__ + 2;
  try {
    escrow::check(cudaErrorInvalidValue, "cudaSomeCall");
    FAIL() << "check() let a failure pass";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorInvalidValue);
    EXPECT_STREQ(error.api(), "cudaSomeCall");
    EXPECT_EQ(static_cast<int>(error.where().line()), line);
    std::string const text = error.what();
    for (std::string const& word :
         {std::string("cudaSomeCall"), std::string(cudaGetErrorName(cudaErrorInvalidValue)),
          std::string(cudaGetErrorString(cudaErrorInvalidValue)),
          "core_test.cpp:" + std::to_string(line)}) {
      EXPECT_NE(text.find(word), std::string::npos) << text;
    }
  }
  EXPECT_NO_THROW(escrow::check(cudaSuccess, "cudaSomeCall"));
}

TEST(CudaError, LeavesNoLastErrorBehind) {
  ASSERT_NE(cudaSetDevice(-1), cudaSuccess);
  ASSERT_NE(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(escrow::check(cudaErrorInvalidDevice, "cudaSetDevice"), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_FALSE(succeeded(cudaSetDevice(-1)));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(succeeded(cudaSuccess));
}

TEST(CudaError, KnowsWhichFailuresLoseTheDevice) {
  for (cudaError_t const lost :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorAssert,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress, cudaErrorLaunchTimeout,
        cudaErrorECCUncorrectable, cudaErrorMpsClientTerminated}) {
    EXPECT_TRUE(is_sticky(lost)) << cudaGetErrorName(lost);
  }
  for (cudaError_t const other :
       {cudaSuccess, cudaErrorNotReady, cudaErrorMemoryAllocation, cudaErrorInvalidValue,
        cudaErrorInvalidResourceHandle, cudaErrorStreamCaptureInvalidated, cudaErrorNotPermitted,
        cudaErrorCapturedEvent, cudaErrorUnknown}) {
    EXPECT_FALSE(is_sticky(other)) << cudaGetErrorName(other);
  }
}

// Streams: which things are streams, and how a stream is told from another.

struct with_get {
  cudaStream_t stream;
  [[nodiscard]] cudaStream_t get() const { return stream; }
};
struct with_value {
  cudaStream_t stream;
  [[nodiscard]] cudaStream_t value() const { return stream; }
};
struct with_conversion {
  cudaStream_t stream;
  operator cudaStream_t() const { return stream; }  // NOLINT(google-explicit-constructor)
};
struct with_explicit_conversion {
  explicit operator cudaStream_t() const { return nullptr; }
};
struct with_other_conversion {
  operator int() const { return 0; }  // NOLINT(google-explicit-constructor)
};
struct with_other_get {
  [[nodiscard]] int get() const { return 0; }
};
struct without {};

template <class To, class... From>
inline constexpr bool all_convert = (std::is_convertible_v<From, To> && ...);
template <class To, class... From>
inline constexpr bool none_constructs = (!std::is_constructible_v<To, From> && ...);

static_assert(all_convert<stream_ref, cudaStream_t, cudaStream_t const&, with_get,
                          with_value const&, with_conversion const&, owned_stream const&>);
static_assert(
    none_constructs<stream_ref, int, std::nullptr_t, long, void*, cudaEvent_t, cudaGraph_t,
                    with_other_get, with_explicit_conversion, with_other_conversion, without>);
static_assert(std::is_trivially_copyable_v<stream_ref>);
static_assert(all_convert<event_ref, cudaEvent_t>);
static_assert(none_constructs<event_ref, int, std::nullptr_t, cudaStream_t>);

TEST(StreamRef, NamesTheStreamThatItWasMadeFrom) {
  owned_stream const stream = make_stream();
  EXPECT_EQ(stream_ref(stream.get()).get(), stream.get());
  EXPECT_EQ(stream_ref(with_get{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(with_value{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(with_conversion{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(cudaStreamPerThread).get(), cudaStreamPerThread);
}

using Devices = world_of_two_devices;

TEST_F(Devices, AreKnownOfAStreamWhateverIsCurrent) {
  std::uint64_t const first = stream_id(cudaStream_t{});
  device_scope const there(1);
  EXPECT_EQ(device_of(elsewhere), 1);
  EXPECT_EQ(device_of(one), 0);
  EXPECT_NE(stream_id(cudaStream_t{}), first);
}

// Scopes put back what they found, also when an exception leaves them.

TEST_F(Devices, ArePutBackByAScope) {
  try {
    device_scope const outer(1);
    EXPECT_EQ(current_device(), 1);
    {
      device_scope const inner(0);
      EXPECT_EQ(current_device(), 0);
    }
    EXPECT_EQ(current_device(), 1);
    throw std::runtime_error("out");
  } catch (std::runtime_error const&) {
  }
  EXPECT_EQ(current_device(), 0);
}

void expect_each_mode_is_put_back() {
  for (cudaStreamCaptureMode const found : all_capture_modes) {
    thread_mode_scope const set(found);
    try {
      relaxed_capture_scope const outer;
      EXPECT_EQ(thread_mode(), cudaStreamCaptureModeRelaxed);
      { relaxed_capture_scope const inner; }
      EXPECT_EQ(thread_mode(), cudaStreamCaptureModeRelaxed);
      throw std::runtime_error("out");
    } catch (std::runtime_error const&) {
    }
    EXPECT_EQ(thread_mode(), found);
  }
}

TEST(RelaxedCaptureScope, PutsBackEachMode) {
  std::thread([] {
    expect_each_mode_is_put_back();
    owned_stream const stream = make_stream();
    EXPECT_TRUE(capture_of(stream).is_none());  // from now on the driver is asked
    expect_each_mode_is_put_back();
  }).join();
}

// Events: owned, borrowed, kept for reuse; and the last error of the caller, which stays.

static_assert(!std::is_copy_constructible_v<event> && !std::is_copy_assignable_v<event>);
static_assert(std::is_nothrow_move_constructible_v<event>);

TEST(Event, IsEmptyOnceMovedFromOrDetached) {
  event first;
  event second;
  cudaEvent_t const handle = first.get();
  ASSERT_NE(handle, nullptr);
  second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the question
  event& same = second;
  second = std::move(same);
  event third = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(third.get(), handle);
  owned_event const kept(third.detach());
  EXPECT_FALSE(third);
  EXPECT_EQ(cudaEventQuery(kept), cudaSuccess) << "the caller owns it";
  EXPECT_FALSE(event::none());
  EXPECT_FALSE(event::none().flags());
  EXPECT_FALSE(event().flags());
}

TEST(Event, IsFoundByItsHandleWhileItHasAnOwner) {
  std::shared_ptr<event const> const waits = event::shared();
  std::shared_ptr<event const> timed = event::shared(cudaEventDefault);
  cudaEvent_t const handle = timed->get();
  EXPECT_EQ(event::from(handle), timed);
  EXPECT_EQ(event::from(handle)->flags(), cudaEventDefault);
  EXPECT_EQ(event::from(waits->get())->flags(), cudaEventDisableTiming);
  float ms = 0;
  must(cudaEventRecord(handle));
  must(cudaEventSynchronize(handle));
  EXPECT_EQ(cudaEventElapsedTime(&ms, handle, handle), cudaSuccess);
  timed.reset();
  event const alone;
  for (cudaEvent_t const other : {handle, alone.get(), cudaEvent_t{}}) {
    expect_error<usage_error>([other] { return event::from(other); },
                              {"event::from", "no event::shared()", "pass the handle"});
  }
  expect_error<cuda_error>([] { return event::shared(0x4000); }, {"cudaEventCreateWithFlags"});
}

TEST(EventCache, GivesBackWhatAnyThreadPut) {
  event taken = event_cache::take(0);
  cudaEvent_t const handle = taken.get();
  std::jthread([&] { event_cache::put(0, std::move(taken)); }).join();
  EXPECT_EQ(event_cache::take(0).get(), handle);
}

TEST_F(Devices, HaveEventsOfTheirOwnInTheCacheWhichLeavesTheCurrentOneAlone) {
  event first = event_cache::take(0);
  event second = event_cache::take(1);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaEventRecord(second.get(), elsewhere), cudaSuccess) << "it is of the other device";
  cudaEvent_t const of_first = first.get();
  cudaEvent_t const of_second = second.get();
  event_cache::put(1, std::move(second));
  event_cache::put(0, std::move(first));
  EXPECT_EQ(event_cache::take(1).get(), of_second);
  EXPECT_EQ(event_cache::take(0).get(), of_first);
}

// An error of the caller's own, which the caller has not looked at yet, while work is in flight.
class LastError : public world {
 protected:
  static cudaError_t make_error() {
    must(cudaEventQuery(nullptr) != cudaSuccess, "a null event is an error");
    return cudaPeekAtLastError();
  }
};

TEST_F(LastError, IsNeitherSetNorClearedByAnEventThatIsNotReady) {
  event const ready;
  EXPECT_TRUE(ready.ref().is_done()) << "it was not recorded";
  hold_up(one);
  ready.ref().record(one);
  EXPECT_FALSE(ready.ref().is_done());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  cudaError_t const earlier = make_error();
  EXPECT_NE(earlier, cudaSuccess);
  EXPECT_FALSE(succeeded(cudaEventQuery(ready.get())));
  EXPECT_EQ(cudaPeekAtLastError(), earlier);
  EXPECT_FALSE(ready.ref().is_done());
  EXPECT_EQ(cudaGetLastError(), earlier);
  flag.raise();
  ready.ref().sync();
  EXPECT_TRUE(ready.ref().is_done());
}

TEST_F(LastError, SurvivesAClaimWhileASlotIsInUse) {
  int made_so_far = 0;
  resource_pool<int> pool(options(4), [&] { return made_so_far++; });
  {
    auto const lease = pool.claim(one);
    hold_up(one);
  }
  cudaError_t const earlier = make_error();
  static_cast<void>(pool.claim(two));
  EXPECT_EQ(cudaGetLastError(), earlier);
  EXPECT_EQ(made_so_far, 2) << "the claim looked at a slot that was in use";
}

// The model checker explores the lock; here a thread waits for one whose holder does not run.
TEST(SpinLock, IsWaitedForAsleepIfTheHolderDoesNotRun) {
  auto const cpu_time = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  spin_lock lock;
  lock.lock();
  std::chrono::nanoseconds used{};
  std::jthread waiter([&] {
    auto const before = cpu_time();
    lock.lock();
    used = cpu_time() - before;
    lock.unlock();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  lock.unlock();
  waiter.join();
  EXPECT_LT(used, std::chrono::milliseconds(50));
}

struct sets_flag {
  explicit sets_flag(bool* given) : ended(given) {}
  ~sets_flag() { *ended = true; }
  bool* ended;
};

constinit never_destroyed<int> at_compile_time(7);

TEST(NeverDestroyed, IsConstantInitializedWhereItCanBeAndRunsNoDestructor) {
  bool ended = false;
  { never_destroyed<sets_flag> const held(&ended); }
  EXPECT_FALSE(ended);
  EXPECT_EQ(*at_compile_time, 7);
}

}  // namespace
}  // namespace escrow::test
