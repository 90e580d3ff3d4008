// Which things are streams, and how a stream is told from another.
#include "escrow/core/stream.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <thread>
#include <type_traits>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/detail/device.hpp"
#include "handles.hpp"

namespace escrow {
namespace {

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

static_assert(std::is_convertible_v<cudaStream_t, stream_ref>);
static_assert(std::is_convertible_v<cudaStream_t const&, stream_ref>);
static_assert(std::is_convertible_v<with_get, stream_ref>);
static_assert(std::is_convertible_v<with_value const&, stream_ref>);
static_assert(std::is_convertible_v<test::owned_stream const&, stream_ref>);
static_assert(!std::is_constructible_v<stream_ref, int>);
static_assert(!std::is_convertible_v<int, stream_ref>);
static_assert(!std::is_constructible_v<stream_ref, std::nullptr_t>);
static_assert(!std::is_convertible_v<std::nullptr_t, stream_ref>);
static_assert(!std::is_constructible_v<stream_ref, long>);
static_assert(!std::is_constructible_v<stream_ref, void*>);
static_assert(!std::is_constructible_v<stream_ref, cudaEvent_t>);
static_assert(!std::is_constructible_v<stream_ref, cudaGraph_t>);
static_assert(!std::is_constructible_v<stream_ref, with_other_get>);
static_assert(!std::is_constructible_v<stream_ref, without>);
static_assert(std::is_trivially_copyable_v<stream_ref>);
static_assert(std::is_convertible_v<cudaEvent_t, event_ref>);
static_assert(!std::is_constructible_v<event_ref, int>);
static_assert(!std::is_constructible_v<event_ref, std::nullptr_t>);
static_assert(!std::is_constructible_v<event_ref, cudaStream_t>);

TEST(StreamRef, NamesTheStreamThatItWasMadeFrom) {
  test::owned_stream const stream = test::make_stream();
  EXPECT_EQ(stream_ref(stream.get()).get(), stream.get());
  EXPECT_EQ(stream_ref(with_get{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(with_value{stream}).get(), stream.get());
  EXPECT_EQ(stream_ref(cudaStreamPerThread).get(), cudaStreamPerThread);
}

TEST(StreamId, IsNeverReusedAlthoughHandlesAre) {
  constexpr int streams = 100;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < streams; ++i) ids.insert(stream_id(test::make_stream()));
  EXPECT_EQ(ids.size(), streams);
}

TEST(StreamId, OfThePerThreadStreamDiffersFromThreadToThread) {
  std::uint64_t const here = stream_id(cudaStreamPerThread);
  std::uint64_t there = here;
  std::thread([&there] { there = stream_id(cudaStreamPerThread); }).join();
  EXPECT_NE(here, there);
  EXPECT_EQ(here, stream_id(cudaStreamPerThread));
}

TEST(StreamId, OfTheNullStreamDiffersFromDeviceToDevice) {
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  std::uint64_t const first = stream_id(cudaStream_t{});
  device_scope const other(1);
  EXPECT_NE(stream_id(cudaStream_t{}), first);
}

TEST(DeviceOf, IsTheStreamsOwnWhateverIsCurrent) {
  int devices = 0;
  test::must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  test::owned_stream elsewhere;
  {
    device_scope const other(1);
    elsewhere = test::make_stream();
  }
  EXPECT_EQ(device_of(elsewhere), 1);
  EXPECT_EQ(device_of(test::make_stream()), 0);
}

}  // namespace
}  // namespace escrow
