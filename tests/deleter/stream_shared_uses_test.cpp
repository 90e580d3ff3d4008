// Objects that shared_ptrs share: many uses, of one stream and of many.
#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "stream_shared_fixture.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class StreamShared : public test::stream_shared_test {};

TEST_F(StreamShared, IsKeptByTheLastOfManyUsesOfOneStream) {
  {
    auto const shared = share();
    for (int i = 0; i < 100; ++i) {
      test::must(test::launch_tiny(stream_));
      record_stream(shared, stream_);
    }
    hold_up(stream_);
    record_stream(shared, stream_);
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
        record_stream(shared, streams[i]);
      }
    }
    EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); })) << "stream " << last;
    flag.raise();
    EXPECT_TRUE(fate->wait());
  }
}

TEST_F(StreamShared, IsKeptByWhicheverOfManyStreamsThatManyThreadsUseAtOnce) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t streams_each = 8;
  for (std::size_t last = 0; last < threads * streams_each; last += 5) {
    auto const fate = make_fate();
    test::pinned_flag flag;
    std::vector<test::owned_stream> streams;
    while (streams.size() < threads * streams_each) streams.push_back(test::make_stream());
    test::must(test::launch_wait_flag(streams[last], flag.get()));
    {
      auto const shared = make_stream_shared_by<probe>(deleter_, fate);
      std::vector<std::jthread> users;
      for (std::size_t thread = 0; thread < threads; ++thread) {
        users.emplace_back([&, thread] {
          for (std::size_t i = thread; i < streams.size(); i += threads) {
            record_stream(shared, streams[i]);
          }
        });
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
      record_stream(shared, streams.back());
    }
  }
  EXPECT_FALSE(deleter_.drain_for(std::chrono::milliseconds(20)));
  flag_.raise();
  deleter_.drain();
  EXPECT_EQ(fate_->times(), 1);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(StreamShared, NeedsNoMoreEventsThanUsesThatAreNotOver) {
  auto const shared = share();
  hold_up(stream_);
  record_stream(shared, stream_);
  deleter polled({.own_worker = false});
  auto const passing_share = make_stream_shared_by<probe>(polled, make_fate());
  auto const some_use_it_and_go = [&](int streams) {
    for (int i = 0; i < streams; ++i) {
      test::owned_stream const passing = test::make_stream();
      record_stream(passing_share, passing);
      test::must(cudaStreamSynchronize(passing));
      polled.poll();
    }
    return sim::alive().events;
  };
  std::size_t const before = some_use_it_and_go(300);
  EXPECT_LE(some_use_it_and_go(1000), before + 1);
}
#endif

}  // namespace
}  // namespace escrow
