// Objects that shared_ptrs share and streams use: destroyed by the worker, after the last share and
// the last use, never earlier, and without anyone being blocked.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/usage_error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/retain.hpp"
#include "escrow/deleter/stream_shared.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "probe.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

// Device memory that tells its fate.
struct buffer {
  explicit buffer(test::fate_ptr fate, std::size_t n = 1) : cells(n), inner(std::move(fate)) {}
  test::device_ints cells;
  probe inner;
};

class StreamShared : public testing::Test {
 protected:
  template <class T = probe>
  [[nodiscard]] std::shared_ptr<T> share() {
    return make_stream_shared_by<T>(deleter_, fate_);
  }
  void hold_up(cudaStream_t stream) { test::must(test::launch_wait_flag(stream, flag_.get())); }
  [[nodiscard]] bool stays() const {
    return test::stays_false([this] { return fate_->was_destroyed(); });
  }
  // Whatever has been pushed by now, and no running work uses, has been reclaimed.
  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !fate_->was_destroyed();
  }

  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  test::fate_ptr fate_ = make_fate();
  deleter deleter_;
};

// Three programs that share memory between a shared_ptr and a stream. Each drops its share while
// the kernel is running or about to run, and does not synchronise.

TEST_F(StreamShared, MemoryWhoseLastShareGoesDuringTheKernelIsFreedAfterIt) {
  test::pinned_ints mismatches;
  {
    auto const data = share<buffer>();
    hold_up(stream_);
    int* const cells = data->cells.data();
    test::must(test::launch_fill(stream_, cells, 1, 7));
    test::must(test::launch_check(stream_, cells, 1, 7, mismatches.data()));
    used_on(data, stream_);
  }
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(fate_->wait());
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_NE(fate_->thread, std::this_thread::get_id());
}

TEST_F(StreamShared, MemoryIsFreedAfterTheKernelThoughTheStreamIsGone) {
  {
    auto const data = share<buffer>();
    hold_up(stream_);
    test::must(test::launch_fill(stream_, data->cells.data(), 1, 7));
    used_on(data, stream_);
    stream_.reset();
  }
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamShared, MemoryOfTwoStreamsIsFreedAfterBothWithoutEvents) {
  {
    auto const data = share<buffer>();
    test::must(test::launch_fill(other_, data->cells.data(), 1, 1));
    used_on(data, other_);
    hold_up(stream_);
    test::must(test::launch_fill(stream_, data->cells.data(), 1, 7));
    used_on(data, stream_);
  }
  test::must(cudaStreamSynchronize(other_));
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamShared, GoesAtOnceIfNoStreamUsedIt) {
  share().reset();
  deleter_.drain();
  EXPECT_EQ(fate_->times(), 1);
  EXPECT_EQ(fate_->thread_name, "escrow");
}

TEST_F(StreamShared, GoesWithItsLastShare) {
  auto first = share();
  auto second = first;
  used_on(first, stream_);
  first.reset();
  EXPECT_TRUE(lives());
  EXPECT_EQ(second.use_count(), 1) << "uses are no shares";
  second.reset();
  deleter_.drain();
  EXPECT_EQ(fate_->times(), 1);
}

TEST_F(StreamShared, IsExpiredForWeakPointersOnceTheLastShareIsGone) {
  auto shared = share();
  std::weak_ptr<probe> const watch = shared;
  hold_up(stream_);
  used_on(shared, stream_);
  shared.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(fate_->was_destroyed());
}

TEST_F(StreamShared, MayBeSharedAsConstAndInParts) {
  auto whole = share<buffer>();
  std::shared_ptr<buffer const> const constant = whole;
  std::shared_ptr<int> part(whole, whole->cells.data());
  whole.reset();
  hold_up(stream_);
  used_on(part, stream_);
  used_on(constant, other_);
  part.reset();
  EXPECT_TRUE(lives());
}

TEST_F(StreamShared, IsKeptByTheLastOfManyUsesOfOneStream) {
  {
    auto const shared = share();
    for (int i = 0; i < 100; ++i) {
      test::must(test::launch_tiny(stream_));
      used_on(shared, stream_);
    }
    hold_up(stream_);
    used_on(shared, stream_);
  }
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamShared, IsKeptByWhicheverOfManyStreamsIsTheLast) {
  for (std::size_t last = 0; last < 12; last += 3) {
    auto const fate = make_fate();
    test::pinned_flag flag;
    std::vector<test::owned_stream> streams;
    {
      auto const shared = make_stream_shared_by<probe>(deleter_, fate);
      for (std::size_t i = 0; i < 12; ++i) {
        streams.push_back(test::make_stream());
        if (i == last) test::must(test::launch_wait_flag(streams[i], flag.get()));
        used_on(shared, streams[i]);
      }
    }
    EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); })) << "stream " << last;
    flag.raise();
    EXPECT_TRUE(fate->wait());
  }
}

TEST_F(StreamShared, IsWaitedForByADrainHoweverManyStreamsAreBusy) {
  std::vector<test::owned_stream> streams;
  {
    auto const shared = share();
    for (int i = 0; i < 20; ++i) {
      hold_up(streams.emplace_back(test::make_stream()));
      used_on(shared, streams.back());
    }
  }
  EXPECT_FALSE(deleter_.drain_for(std::chrono::milliseconds(20)));
  flag_.raise();
  deleter_.drain();
  EXPECT_EQ(fate_->times(), 1);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(StreamShared, NeedsNoMoreEventsThanStreamsThatAreBusy) {
  auto const shared = share();
  hold_up(stream_);
  used_on(shared, stream_);
  auto const some_use_it_and_go = [&](int streams) {
    for (int i = 0; i < streams; ++i) {
      test::owned_stream const passing = test::make_stream();
      used_on(shared, passing);
      test::must(cudaStreamSynchronize(passing));
    }
    return sim::alive().events;
  };
  std::size_t const before = some_use_it_and_go(100);
  EXPECT_LE(some_use_it_and_go(1000), before + 1);
}
#endif

TEST_F(StreamShared, MayBeDroppedByAnyThreadAtAnyTime) {
  auto shared = share();
  std::vector<std::thread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([mine = shared] {
      test::owned_stream const stream = test::make_stream();
      for (int turn = 0; turn < 200; ++turn) {
        test::must(test::launch_tiny(stream));
        used_on(mine, stream);
      }
    });
  }
  shared.reset();
  for (auto& each : users) each.join();
  EXPECT_TRUE(fate_->wait());
  EXPECT_EQ(fate_->times(), 1);
}

TEST_F(StreamShared, OutlivesItsDeleter) {
  auto const fate = make_fate();
  std::optional<deleter> its(std::in_place);
  auto shared = make_stream_shared_by<probe>(*its, fate);
  hold_up(stream_);
  used_on(shared, stream_);
  its.reset();
  shared.reset();
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
}

TEST_F(StreamShared, GoesThroughTheProcessesOwnDeleterIfNoneIsNamed) {
  make_stream_shared<probe>(fate_).reset();
  deleter::global().drain();
  EXPECT_EQ(fate_->times(), 1);
}

TEST_F(StreamShared, WhoseConstructorThrowsLeavesNothing) {
  struct throws {
    throws() { throw std::runtime_error("no"); }
  };
  EXPECT_THROW(static_cast<void>(make_stream_shared_by<throws>(deleter_)), std::runtime_error);
  deleter_.drain();
  EXPECT_EQ(deleter_.stats().reclaimed, 0U);
}

TEST_F(StreamShared, KeepsItsAlignment) {
  struct alignas(512) aligned {};
  auto const shared = make_stream_shared_by<aligned>(deleter_);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared.get()) % 512, 0U);
}

TEST_F(StreamShared, RefusesAPointerThatItDidNotMake) {
  EXPECT_THROW(used_on(std::make_shared<int>(1), stream_), usage_error);
  EXPECT_THROW(used_on(std::shared_ptr<int>(), stream_), usage_error);
}

class StreamSharedInCapture : public StreamShared {
 protected:
  // A graph that uses the object, whose share ends with the capture.
  [[nodiscard]] test::owned_graph captured(std::shared_ptr<probe> shared) {
    test::capture open(stream_, cudaStreamCaptureModeGlobal);
    test::must(test::launch_tiny(stream_));
    used_on(shared, stream_);
    shared.reset();
    test::must(open.end());
    return std::move(open.graph());
  }
};

TEST_F(StreamSharedInCapture, IsKeptByTheGraphItsCloneAndTheirExecs) {
  test::owned_graph graph = captured(share());
  test::owned_graph copy = test::clone(graph);
  test::owned_exec exec = test::instantiate(graph);
  graph.reset();
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(lives());
  test::owned_exec of_copy = test::instantiate(copy);
  copy.reset();
  EXPECT_TRUE(lives());
  of_copy.reset();
  EXPECT_TRUE(fate_->wait());
  EXPECT_EQ(fate_->times(), 1);
}

TEST_F(StreamSharedInCapture, IsKeptByGraphsAndStreamsTogether) {
  auto shared = share();
  test::owned_graph first = captured(shared);
  test::owned_graph second = captured(shared);
  hold_up(other_);
  used_on(shared, other_);
  shared.reset();
  first.reset();
  flag_.raise();
  EXPECT_TRUE(lives());
  second.reset();
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamSharedInCapture, IsFreeOnceTheCaptureWasAborted) {
  {
    test::capture open(stream_, cudaStreamCaptureModeThreadLocal);
    auto const shared = share();
    used_on(shared, stream_);
    static_cast<void>(cudaStreamQuery(stream_));
    EXPECT_THROW(used_on(shared, stream_), usage_error) << "the capture is invalidated";
  }
  EXPECT_TRUE(fate_->wait());
}

TEST_F(StreamSharedInCapture, NewUsesOfManyStreamsHarmNoCapture) {
  auto const shared = share();
  test::capture open(stream_, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 50; ++i) {
    test::owned_stream const passing = test::make_stream();
    used_on(shared, passing);
  }
  EXPECT_TRUE(open.is_active());
  EXPECT_EQ(open.end(), cudaSuccess);
}

class StreamSharedOnTwoDevices : public StreamShared {
 protected:
  void SetUp() override {
    int devices = 0;
    test::must(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "needs two devices";
    device_scope const there(1);
    elsewhere_ = test::make_stream();
  }
  test::owned_stream elsewhere_;
};

TEST_F(StreamSharedOnTwoDevices, IsDestroyedOnItsOwnDeviceAfterTheWorkOfTheOther) {
  auto shared = share();
  {
    device_scope const there(1);
    hold_up(elsewhere_);
  }
  used_on(shared, elsewhere_);
  used_on(shared, stream_);
  shared.reset();
  EXPECT_TRUE(stays());
  flag_.raise();
  ASSERT_TRUE(fate_->wait());
  EXPECT_EQ(fate_->device, 0);
}

TEST_F(StreamShared, OrAnyOtherOwnerIsKeptByRetain) {
  auto const shared = std::make_shared<probe>(fate_);
  std::weak_ptr<probe> const watch = shared;
  hold_up(stream_);
  retain(stream_, shared);
  EXPECT_EQ(watch.use_count(), 2);
  auto const moved = make_fate();
  retain(stream_, std::make_unique<probe>(moved));
  EXPECT_TRUE(test::stays_false([&] { return moved->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(moved->wait());
  EXPECT_TRUE(test::wait_until([&] { return watch.use_count() == 1; }));
  EXPECT_FALSE(fate_->was_destroyed());
}

}  // namespace
}  // namespace escrow
