// Streams whose handles are ambiguous, and streams of other devices.
#include <thread>

#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

class SpecialStreams : public pool_test {};

TEST_F(SpecialStreams, NullAndLegacyAreTheSameStream) {
  block_pool pool = make_pool(4);
  pool.claim(cudaStream_t{}).release();
  EXPECT_EQ(pool.claim(cudaStreamLegacy)->number(), 0);
  EXPECT_EQ(pool.claim(cudaStream_t{})->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 0u);
}

TEST_F(SpecialStreams, ThePerThreadStreamsOfTwoThreadsAreTwoStreams) {
  pinned_flag flag;
  pinned_ints mismatches;
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(cudaStreamPerThread);
    must(launch_wait_flag(cudaStreamPerThread, flag.get()));
    fill(held, cudaStreamPerThread, 6);
  }
  std::thread{[&] {
    block_lease held = pool.claim(cudaStreamPerThread);
    EXPECT_EQ(pool.stats().stream_waits, 1u);
    check(held, cudaStreamPerThread, 6, mismatches);
    EXPECT_TRUE(stays_false([&] { return is_idle(cudaStreamPerThread); }));
    flag.raise();
    sync(cudaStreamPerThread);
  }}.join();
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(SpecialStreams, APerThreadLeaseIsRefusedOnAnotherThreadAndKept) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(cudaStreamPerThread);
  std::thread{[&] {
    std::string const text = message_of<usage_error>([&] { held.release(); });
    EXPECT_NE(text.find("cudaStreamPerThread"), std::string::npos) << text;
  }}.join();
  ASSERT_TRUE(held);
  held.release();
  EXPECT_EQ(pool.claim(cudaStreamPerThread)->number(), 0);
}

TEST_F(SpecialStreams, APerThreadLeaseMayBeReleasedOnAnotherThreadsOrderedStream) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(cudaStreamPerThread);
  std::thread{[&] { held.release(stream.get()); }}.join();
  EXPECT_EQ(pool.claim(stream)->number(), 0);
}

TEST_F(SpecialStreams, APerThreadLeaseThatEndsOnAnotherThreadIsReportedAndRecordedOnItsOwn) {
  errors_expected = true;
  block_pool pool = make_pool(1);
  std::thread{[moved = pool.claim(cudaStreamPerThread)] { EXPECT_TRUE(moved); }}.join();
  EXPECT_EQ(errors->size(), 1u) << errors->all();
  EXPECT_EQ(pool.stats().deferred, 1u);
  std::thread{[&pool] { EXPECT_FALSE(pool.try_claim(cudaStreamPerThread).has_value()); }}.join();
  EXPECT_TRUE(pool.try_claim(cudaStreamPerThread).has_value());
}

TEST_F(SpecialStreams, AStreamOfABlockingKindTheLegacyStreamAndAPoolGoTogether) {
  pinned_flag flag;
  pinned_ints mismatches;
  owned_stream const blocking = make_stream(cudaStreamDefault);
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(blocking);
    must(launch_wait_flag(blocking, flag.get()));
    fill(held, blocking, 4);
  }
  block_lease held = pool.claim(cudaStreamLegacy);
  check(held, cudaStreamLegacy, 4, mismatches);
  flag.raise();
  sync(cudaStreamLegacy);
  EXPECT_EQ(mismatches.load(), 0);
}

class TwoDevices : public pool_test {
 protected:
  void SetUp() override {
    int devices = 0;
    must(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "needs two devices";
  }
  void TearDown() override {
    must(cudaSetDevice(0));
    pool_test::TearDown();
  }
  [[nodiscard]] static owned_stream stream_of(int device) {
    must(cudaSetDevice(device));
    owned_stream result = make_stream();
    must(cudaSetDevice(0));
    return result;
  }
};

TEST_F(TwoDevices, AStreamOfAnotherDeviceIsRefusedAndNothingIsTaken) {
  owned_stream const wrong = stream_of(1);
  owned_stream const right = stream_of(0);
  block_pool pool = make_pool(2);
  std::string const text = message_of<usage_error>([&] { static_cast<void>(pool.claim(wrong)); });
  for (char const* part : {"claim", "`stream`", "device 0", "\"blocks\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_THROW(static_cast<void>(pool.try_claim(wrong)), usage_error);
  block_lease held = pool.claim(right);
  EXPECT_THROW(held.release(wrong.get()), usage_error);
  EXPECT_TRUE(held);
  EXPECT_EQ(pool.stats().slots, 1u);
}

TEST_F(TwoDevices, ClaimAndReleaseWorkWithAnotherDeviceCurrent) {
  owned_stream const stream = stream_of(0);
  owned_stream const other = stream_of(0);
  block_pool pool = make_pool(1);
  must(cudaSetDevice(1));
  pool.claim(stream).release();
  pool.claim(other).release();
  sync(other);
  {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    pool.claim(stream).release();
    EXPECT_TRUE(captured.is_active());
  }
  int current = -1;
  must(cudaGetDevice(&current));
  EXPECT_EQ(current, 1);
  EXPECT_EQ(made(), 1);
}

TEST_F(TwoDevices, ANullStreamLeaseIsReleasedOnItsOwnDevicesNullStream) {
  pinned_flag flag;
  pinned_ints mismatches;
  owned_stream const other = stream_of(0);
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(cudaStream_t{});
    must(launch_wait_flag(nullptr, flag.get()));
    fill(held, nullptr, 8);
    must(cudaSetDevice(1));
  }
  must(cudaSetDevice(0));
  block_lease held = pool.claim(other);
  check(held, other, 8, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(TwoDevices, TheNullStreamOfAnotherDeviceIsRefused) {
  block_pool pool = make_pool(1);
  must(cudaSetDevice(1));
  EXPECT_THROW(static_cast<void>(pool.claim(cudaStream_t{})), usage_error);
}

TEST_F(TwoDevices, AlsoUsedOnAStreamOfAnotherDeviceIsWaitedFor) {
  pinned_flag flag;
  pinned_ints done;
  owned_stream const one = stream_of(0);
  owned_stream const second = stream_of(0);
  owned_stream const far = stream_of(1);
  owned_stream const other = stream_of(0);
  block_pool pool = make_pool(1);
  for (cudaStream_t const also : {far.get(), second.get(), far.get()}) {
    block_lease held = pool.claim(one);
    held.record_stream(also);
    EXPECT_NO_THROW(held.release());
  }
  {
    block_lease held = pool.claim(one);
    held.record_stream(far);
    must(cudaSetDevice(1));
    must(launch_wait_flag(far, flag.get()));
    must(cudaSetDevice(0));
  }
  block_lease const held = pool.claim(other);
  must(launch_add(other, done.data(), 1));
  EXPECT_TRUE(stays_false([&] { return done.load() != 0; }));
  flag.raise();
  sync(other);
  EXPECT_EQ(pool.stats().deferred, 0u);
}

TEST_F(TwoDevices, AlsoUsedOnTheNullStreamOfAnotherDeviceIsWaitedFor) {
  pinned_flag flag;
  owned_stream const one = stream_of(0);
  owned_stream const other = stream_of(0);
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    must(cudaSetDevice(1));
    must(launch_wait_flag(nullptr, flag.get()));
    held.record_stream(cudaStream_t{});
    must(cudaSetDevice(0));
    EXPECT_NO_THROW(held.release());
  }
  block_lease const held = pool.claim(other);
  EXPECT_TRUE(stays_false([&] { return is_idle(other); }));
  flag.raise();
  sync(other);
  EXPECT_EQ(pool.stats().deferred, 0u);
}

}  // namespace
}  // namespace escrow::test
