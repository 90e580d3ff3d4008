// SPDX-License-Identifier: Apache-2.0
// Objects of make_stream_shared(): destroyed after the last share and the last use, never earlier.
#include <escrow/deleter/shared_object.hpp>
#include <escrow/pool.hpp>

#include "world.hpp"

namespace escrow::test {
namespace {

// One object whose end is watched.
class StreamShared : public world {
 protected:
  template <class T = probe>
  [[nodiscard]] std::shared_ptr<T> share() {
    return make_stream_shared_by<T>(*worker, fate);
  }

  fate_ptr fate = make_fate();
};

// Device memory that tells its fate when the memory is free: freeing it would wait for the kernel
// that the next round holds up.
struct buffer {
  explicit buffer(fate_ptr of) : inner(std::move(of)) {}
  probe inner;
  device_ints cells;
};

// A program that shares memory between a shared_ptr and a stream: it drops its share while the
// kernel is running or about to run, and does not synchronize. The stream may go as well.
TEST_F(StreamShared, MemoryWhoseLastShareGoesDuringTheKernelIsFreedAfterIt) {
  for (bool const is_stream_destroyed : {false, true}) {
    pinned_flag of_kernel;
    fate = make_fate();
    {
      auto const data = share<buffer>();
      owned_stream passing = make_stream();
      must(launch_wait_flag(passing, of_kernel.get()));
      must(launch_fill(passing, data->cells.data(), 1, 7));
      must(launch_check(passing, data->cells.data(), 1, 7, mismatches.data()));
      record_stream(data, passing);
      EXPECT_EQ(data.use_count(), 1) << "a use is no share";
      if (!is_stream_destroyed) three = std::move(passing);
    }
    EXPECT_TRUE(stays_kept(fate));
    of_kernel.raise();
    EXPECT_TRUE(is_released(fate));
  }
}

TEST_F(StreamShared, IsDestroyedAtOnceIfNoStreamUsedIt) {
  hold_up(one);
  share().reset();
  EXPECT_TRUE(is_released(fate));
  fate = make_fate();
  make_stream_shared<probe>(fate).reset();
  EXPECT_TRUE(is_released(fate)) << "by the global deleter";
}

TEST_F(StreamShared, AnErrorOfItsConstructorNamesTheCall) {
  constexpr std::size_t too_many = std::size_t{1} << 50;
  expect_error<cuda_error>([&] { return make_stream_shared<device_buffer<char>>(too_many); },
                           {"make_stream_shared: ", "cudaErrorMemoryAllocation"});
}

TEST_F(StreamShared, MayBeSharedAsConstAndInParts) {
  std::shared_ptr<buffer const> constant = share<buffer>();
  std::shared_ptr<int const> part(constant, constant->cells.data());
  record_stream(constant, two);
  constant.reset();
  hold_up(one);
  record_stream(part, one);
  part.reset();
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
}

// One thread, or several at a time, use it and drop their shares.
TEST_F(StreamShared, IsKeptByWhicheverOfManyStreamsIsTheLast) {
  std::vector<owned_stream> streams;
  while (streams.size() < 32) streams.push_back(make_stream());
  for (std::size_t last = 0; last < streams.size(); last += 5) {
    std::size_t const threads = last % 2 == 0 ? 1 : 4;
    pinned_flag of_last;
    fate = make_fate();
    must(launch_wait_flag(streams[last], of_last.get()));
    {
      std::vector<std::jthread> users;
      auto const shared = share();  // dropped while the threads use it
      for (std::size_t thread = 0; thread < threads; ++thread) {
        users.emplace_back([&, thread, mine = shared] {
          for (std::size_t i = thread; i < streams.size(); i += threads) {
            for (int use = 0; use < 10; ++use) record_stream(mine, streams[i]);
          }
        });
      }
    }
    EXPECT_TRUE(stays_kept(fate)) << "stream " << last;
    of_last.raise();
    EXPECT_TRUE(is_released(fate));
  }
}

TEST_F(StreamShared, OrAnyOtherOwnerIsKeptByRetain) {
  auto const shared = std::make_shared<probe>(fate);
  std::weak_ptr<probe> const watch = shared;
  auto const moved = make_fate();
  hold_up(one);
  retain(one, shared);
  retain(one, std::make_unique<probe>(moved));
  EXPECT_EQ(watch.use_count(), 2);
  EXPECT_TRUE(stays_kept(moved));
  flag.raise();
  EXPECT_TRUE(is_released(moved));
  EXPECT_TRUE(wait_until([&] { return watch.use_count() == 1; }));
  EXPECT_TRUE(is_out(fate));
}

TEST_F(StreamShared, KeepsItsAlignmentAndLeavesNothingIfItsConstructorThrows) {
  struct alignas(512) aligned {};
  auto const shared = make_stream_shared_by<aligned>(*worker);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared.get()) % 512, 0U);
  struct throws {
    throws() { throw std::runtime_error("no"); }
  };
  EXPECT_THROW(static_cast<void>(make_stream_shared_by<throws>(*worker)), std::runtime_error);
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().reclaimed, 0U);
}

TEST_F(StreamShared, IsWhatRecordStreamTakesAndNoOtherSharedPointer) {
  EXPECT_THROW(record_stream(std::make_shared<int>(1), one), usage_error);
  EXPECT_THROW(record_stream(std::shared_ptr<int>(), one), usage_error);
}

class StreamSharedInCapture : public StreamShared {
 protected:
  // A graph that uses the object, whose share is dropped in the capture.
  [[nodiscard]] owned_graph captured(std::shared_ptr<probe> shared) {
    return captured_plainly([&](cudaStream_t on) {
      must(launch_tiny(on));
      record_stream(shared, on);
      shared.reset();
    });
  }
};

TEST_F(StreamSharedInCapture, IsKeptByTheGraphItsCloneAndTheirExecs) {
  owned_graph graph = captured(share());
  owned_graph copy = clone(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_TRUE(is_kept(fate));
  exec = instantiate(copy);
  copy.reset();
  EXPECT_TRUE(is_kept(fate));
  exec.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(StreamSharedInCapture, IsKeptByGraphsAndStreamsTogether) {
  auto shared = share();
  owned_graph first = captured(shared);
  owned_graph second = captured(shared);
  hold_up(two);
  record_stream(shared, two);
  shared.reset();
  first.reset();
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_TRUE(is_kept(fate));
  second.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(StreamSharedInCapture, IsKeptByUsesThatAreRecordedAfterStopAndOutlivesItsDeleter) {
  auto its = std::make_unique<deleter>();
  auto shared = make_stream_shared_by<probe>(*its, fate);
  its->stop();
  hold_up(two);
  record_stream(shared, two);
  owned_graph graph = captured(std::move(shared));
  its.reset();
  graph.reset();
  EXPECT_TRUE(stays_kept(fate)) << "the kernel runs";
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(StreamSharedInCapture, AUseOnTheLegacyStreamThatCannotBeNotedBesideItIsNeverOver) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  auto shared = share();
  hold_up(cudaStreamLegacy);
  test::capture open(blocking, cudaStreamCaptureModeGlobal);
  EXPECT_THROW(record_stream(shared, cudaStreamLegacy), usage_error);
  EXPECT_TRUE(open.is_active());
  shared.reset();
  EXPECT_TRUE(stays_kept(fate)) << "destroyed while the kernel runs";
  EXPECT_EQ(open.end(), cudaSuccess);
  flag.raise();
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 1U);
  EXPECT_EQ(errors->size(), 1U) << "also reported";
  errors_expected = true;
  EXPECT_TRUE(is_out(fate));
}

using StreamSharedOnTwoDevices = world_of_two_devices;

TEST_F(StreamSharedOnTwoDevices, IsDestroyedOnItsOwnDeviceAfterTheWorkOfTheOther) {
  auto const fate = make_fate();
  auto shared = make_stream_shared_by<probe>(*worker, fate);
  {
    device_scope const there(1);
    hold_up(elsewhere);
  }
  record_stream(shared, elsewhere);
  record_stream(shared, one);
  shared.reset();
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  ASSERT_TRUE(is_released(fate));
  EXPECT_EQ(fate->device, 0);
}

}  // namespace
}  // namespace escrow::test
