// What the other parts build on: errors, streams, scopes, a lock, and objects that stay.
#include <escrow/core.hpp>
#include <escrow/detail/never_destroyed.hpp>
#include <escrow/detail/spin_lock.hpp>
#include <set>
#include <thread>
#include <type_traits>

#include "world.hpp"

namespace escrow::test {
namespace {

void expect_words(std::string const& text, std::vector<std::string> const& words) {
  for (auto const& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(CudaError, NamesTheCallTheStatusAndTheLine) {
  int const line = __LINE__ + 2;
  try {
    escrow::check(cudaErrorInvalidValue, "cudaSomeCall");
    FAIL() << "check() let a failure pass";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorInvalidValue);
    EXPECT_STREQ(error.api(), "cudaSomeCall");
    EXPECT_EQ(static_cast<int>(error.where().line()), line);
    expect_words(error.what(), {"cudaSomeCall", cudaGetErrorName(cudaErrorInvalidValue),
                                cudaGetErrorString(cudaErrorInvalidValue),
                                "core_test.cpp:" + std::to_string(line)});
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

TEST(UsageError, NamesTheCallTheProblemAndWhatToDo) {
  expect_words(usage_error("some::call", "`x` is wrong", "make it right").what(),
               {"some::call", "`x` is wrong", "make it right"});
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
struct with_other_get {
  [[nodiscard]] int get() const { return 0; }
};
struct without {};

template <class To, class... From>
inline constexpr bool all_convert = (std::is_convertible_v<From, To> && ...);
template <class To, class... From>
inline constexpr bool none_constructs = (!std::is_constructible_v<To, From> && ...);

static_assert(all_convert<stream_ref, cudaStream_t, cudaStream_t const&, with_get,
                          with_value const&, owned_stream const&>);
static_assert(none_constructs<stream_ref, int, std::nullptr_t, long, void*, cudaEvent_t,
                              cudaGraph_t, with_other_get, without>);
static_assert(std::is_trivially_copyable_v<stream_ref>);
static_assert(all_convert<event_ref, cudaEvent_t>);
static_assert(none_constructs<event_ref, int, std::nullptr_t, cudaStream_t>);

TEST(StreamRef, NamesTheStreamThatItWasMadeFrom) {
  owned_stream const stream = make_stream();
  EXPECT_EQ(stream_ref(stream.get()).get(), stream.get());
  EXPECT_EQ(stream_ref(with_get{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(with_value{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(cudaStreamPerThread).get(), cudaStreamPerThread);
}

TEST(StreamId, IsNeverReusedAlthoughHandlesAre) {
  constexpr int streams = 100;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < streams; ++i) ids.insert(stream_id(make_stream()));
  EXPECT_EQ(ids.size(), streams);
}

TEST(StreamId, OfThePerThreadStreamDiffersFromThreadToThread) {
  std::uint64_t const here = stream_id(cudaStreamPerThread);
  std::uint64_t there = here;
  std::jthread([&there] { there = stream_id(cudaStreamPerThread); }).join();
  EXPECT_NE(here, there);
  EXPECT_EQ(here, stream_id(cudaStreamPerThread));
}

class Devices : public world_of_two_devices {};

TEST_F(Devices, AreKnownOfAStreamWhateverIsCurrent) {
  EXPECT_EQ(device_of(elsewhere), 1);
  EXPECT_EQ(device_of(one), 0);
  std::uint64_t const first = stream_id(cudaStream_t{});
  device_scope const there(1);
  EXPECT_NE(stream_id(cudaStream_t{}), first);
}

// Scopes put back what they found, also when an exception leaves them.

TEST_F(Devices, ArePutBackByAScope) {
  {
    device_scope const outer(1);
    EXPECT_EQ(current_device(), 1);
    {
      device_scope const inner(0);
      EXPECT_EQ(current_device(), 0);
    }
    EXPECT_EQ(current_device(), 1);
  }
  EXPECT_EQ(current_device(), 0);
  try {
    device_scope const scope(1);
    throw std::runtime_error("out");
  } catch (std::runtime_error const&) {
  }
  EXPECT_EQ(current_device(), 0);
}

TEST(DeviceScope, ThatCannotBeMadeHasChangedNothing) {
  EXPECT_THROW(static_cast<void>(device_scope(1000)), cuda_error);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(RelaxedCaptureScope, PutsBackEachMode) {
  for (cudaStreamCaptureMode const found :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
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

TEST(RelaxedCaptureScope, LetsAnAllocationLeaveACaptureOfThisThreadAlone) {
  owned_stream const stream = make_stream();
  test::capture open(stream, cudaStreamCaptureModeGlobal);
  {
    relaxed_capture_scope const relaxed;
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
  EXPECT_EQ(open.end(), cudaSuccess);
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
  sets_flag(sets_flag&&) = delete;
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
