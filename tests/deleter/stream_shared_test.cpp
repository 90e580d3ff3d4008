// Objects that shared_ptrs share and streams use: destroyed by the worker, after the last share and
// the last use, never earlier, and without anyone being blocked.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/deleter/shared_object.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "stream_shared_fixture.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow {
namespace {

using test::make_fate;
using test::probe;
using test::stream_shared_test;

class StreamShared : public stream_shared_test {};

// Device memory that tells its fate.
struct buffer {
  explicit buffer(test::fate_ptr fate, std::size_t n = 1) : cells(n), inner(std::move(fate)) {}
  test::device_ints cells;
  probe inner;
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
    record_stream(data, stream_);
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
    record_stream(data, stream_);
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
    record_stream(data, other_);
    hold_up(stream_);
    test::must(test::launch_fill(stream_, data->cells.data(), 1, 7));
    record_stream(data, stream_);
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
  record_stream(first, stream_);
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
  record_stream(shared, stream_);
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
  record_stream(part, stream_);
  record_stream(constant, other_);
  part.reset();
  EXPECT_TRUE(stays());
  flag_.raise();
  EXPECT_TRUE(lives()) << "the const share is there";
}

TEST_F(StreamShared, MayBeDroppedByAnyThreadAtAnyTime) {
  auto shared = share();
  std::vector<std::thread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([mine = shared] {
      test::owned_stream const stream = test::make_stream();
      for (int turn = 0; turn < 200; ++turn) {
        test::must(test::launch_tiny(stream));
        record_stream(mine, stream);
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
  record_stream(shared, stream_);
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
  EXPECT_THROW(record_stream(std::make_shared<int>(1), stream_), usage_error);
  EXPECT_THROW(record_stream(std::shared_ptr<int>(), stream_), usage_error);
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
