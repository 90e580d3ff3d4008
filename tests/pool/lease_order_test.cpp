// SPDX-License-Identifier: Apache-2.0
// Work on a stream that a lease is told of comes after the earlier users of the resource, eagerly
// and in a capture, whichever way the resource was claimed.

#include "pool_world.hpp"

namespace escrow::test {
namespace {

/// How a stream is told.
enum class way { record_stream, launch };

class LeaseOrder : public pool_world, public testing::WithParamInterface<way> {
 protected:
  void tell(block_lease& held, cudaStream_t stream) {
    GetParam() == way::launch ? held.before_launch(stream) : held.record_stream(stream);
  }
  /// The pool's only slot, claimed for `one`, has an earlier user whose work is held back, which
  /// leaves 4 behind. Work on `two`, which is told, comes after it; then the flag is raised.
  void expect_two_waits(block_lease& held) {
    tell(held, two);
    check(held, two, 4, mismatches);
    EXPECT_TRUE(stays_busy(two)) << "it runs beside the earlier user";
    flag.raise();
    sync_all();
    EXPECT_EQ(mismatches.load(), 0);
  }
};

TEST_P(LeaseOrder, AfterTheWorkOfAnotherStream) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, three, 4);
  block_lease held = pool.claim(one);
  expect_two_waits(held);
}

TEST_P(LeaseOrder, AfterTheWorkOfTheClaimingStream) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, one, 4);
  block_lease held = pool.claim(one);
  expect_two_waits(held);
}

TEST_P(LeaseOrder, AfterTheWorkOfSeveralStreams) {
  block_pool pool = make_pool(1);
  {
    block_lease before = pool.claim(three);
    before.record_stream(asking);
    keep_busy(before, asking, 4);
  }
  block_lease held = pool.claim(one);
  expect_two_waits(held);
}

TEST_P(LeaseOrder, AfterWorkThatHasNoEvent) {
  for (bool const is_lasting : {false, true}) {
    pinned_flag go;
    block_pool pool = make_pool(with(options(4), &pool_options::streams_outlive_pool, is_lasting));
    std::optional<claimer<block>> local;
    if (!is_lasting) local.emplace(pool.on(one));
    auto const claim = [&] { return is_lasting ? pool.claim(one) : local->claim(); };
    int number = -1;
    {
      block_lease before = claim();
      number = before->number();
      must(launch_wait_flag(one, go.get()));
      fill(before, one, 4);
    }
    {
      block_lease held = claim();
      EXPECT_EQ(held->number(), number);
      tell(held, two);
      check(held, two, 4, mismatches);
      EXPECT_TRUE(stays_busy(two)) << is_lasting;
      go.raise();
      sync_all();
    }
    local.reset();
    end(pool);
  }
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_P(LeaseOrder, TheReleaseWaitsForItAsWell) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, three, 4);
  {
    block_lease held = pool.claim(one);
    tell(held, two);
    fill(held, two, 5);
  }
  expect_next_waits(pool, asking, 5);
}

TEST_P(LeaseOrder, WaitsForNoLaterWorkOfTheClaimingStream) {
  block_pool pool = make_pool(1);
  use(pool, three);
  block_lease held = pool.claim(one);
  hold_up(one);
  tell(held, two);
  fill(held, two, 5);
  EXPECT_TRUE(wait_until([&] { return is_idle(two); }));
  flag.raise();
}

TEST_P(LeaseOrder, InACaptureAfterTheUsesThatItOrdersBefore) {
  block_pool pool = make_pool(1);
  capture open{one, cudaStreamCaptureModeGlobal};
  order(one, two);  // forked before the first use
  use(pool, one, 1);
  {
    block_lease held = pool.claim(one);
    tell(held, two);
    fill(held, two, 2);
    check(held, two, 2, mismatches);
  }
  order(two, one);
  expect_right_results(open);
}

TEST_P(LeaseOrder, InACaptureAfterAUseOfAnotherBranch) {
  block_pool pool = make_pool(1);
  capture open{one, cudaStreamCaptureModeGlobal};
  order(one, two);
  order(one, three);
  use(pool, three, 1);
  {
    block_lease held = pool.claim(one);  // with an edge
    tell(held, two);
    fill(held, two, 2);
    check(held, two, 2, mismatches);
  }
  order(two, one);
  order(three, one);
  expect_right_results(open);
}

INSTANTIATE_TEST_SUITE_P(Told, LeaseOrder, testing::Values(way::record_stream, way::launch),
                         [](auto const& of) {
                           return of.param == way::launch ? "ByLaunch" : "ByRecordStream";
                         });

class LeaseOrderRefusal : public pool_world {};

TEST_F(LeaseOrderRefusal, OfAClaimingStreamThatCapturesAndHasNoEventNamesTheRemedy) {
  block_pool pool = make_pool(4);
  claimer<block> local = pool.on(one);
  local.claim().release();
  block_lease held = local.claim();
  capture open{one, cudaStreamCaptureModeRelaxed};
  expect_refused({{"",
                   {"lease::record_stream", "claiming stream", "before the capture begins"},
                   [&] { held.record_stream(two); }}});
  EXPECT_TRUE(open.is_active());
  must(open.end());
  held.record_stream(two);
}

// Memory by its address: the stream that was told comes after the block's earlier user.
class AllocationOrder : public pool_world {};

TEST_F(AllocationOrder, OfAStreamThatIsToldOfAnAddress) {
  stream_allocator memory(options(1));
  void* const before = memory.allocate(three, 256);
  hold_up(three);
  must(launch_fill(three, static_cast<int*>(before), 64, 4));
  memory.deallocate(three, before);
  void* const now = memory.allocate(one, 256);
  EXPECT_EQ(now, before);
  memory.record_stream(two, now);
  must(launch_check(two, static_cast<int*>(now), 64, 4, mismatches.data()));
  EXPECT_TRUE(stays_busy(two));
  flag.raise();
  sync_all();
  memory.deallocate(one, now);
}

// Work before the allocation goes on, though nothing used the memory since.
TEST_F(AllocationOrder, OfMemoryThatWasFreedUnusedWithoutAStream) {
  stream_allocator memory(options(1));
  void* const before = memory.allocate(three, 256);
  hold_up(three);
  must(launch_fill(three, static_cast<int*>(before), 64, 4));
  memory.deallocate(three, before);
  memory.deallocate(memory.allocate(one, 256));
  void* const now = memory.allocate(two, 256);
  EXPECT_EQ(now, before);
  must(launch_check(two, static_cast<int*>(now), 64, 4, mismatches.data()));
  EXPECT_TRUE(stays_busy(two));
  flag.raise();
  sync_all();
  memory.deallocate(two, now);
}

}  // namespace
}  // namespace escrow::test
