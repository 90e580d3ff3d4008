// A lease: released once, on its stream or another, moved, and told of further streams; with a
// capture that it does not belong to, where it is refused; and how long a captured graph holds it.
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "pool_world.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

class Lease : public pool_world {};

TEST_F(Lease, AnEmptyLeaseRefusesEveryCallByName) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  block_lease moved = std::move(held);
  struct row {
    char const* name;
    std::function<void(block_lease&)> call;
  };
  row const rows[] = {{"lease::release", [](auto& it) { it.release(); }},
                      {"lease::release", [&](auto& it) { it.release(two.get()); }},
                      {"lease::record_stream", [&](auto& it) { it.record_stream(two.get()); }},
                      {"lease::get", [](auto& it) { static_cast<void>(it.get()); }},
                      {"launch", [&](auto& it) { it.before_launch(two.get()); }},
                      {"the lease", [](auto& it) { static_cast<void>(it.share_with_node()); }}};
  auto const expect_empty = [&](block_lease& it) {
    EXPECT_FALSE(it);
    for (row const& each : rows) {
      expect_error<usage_error>([&] { each.call(it); }, {each.name, "empty"});
    }
  };
  expect_empty(held);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_TRUE(moved);
  moved.release();
  expect_empty(moved);
  EXPECT_EQ(pool.claim(one)->number(), 0);
}

TEST_F(Lease, MoveAssignmentReleasesWhatWasHeldAndLeavesTheSourceEmpty) {
  block_pool pool = make_pool(2);
  block_lease first = pool.claim(one);
  block_lease second = pool.claim(one);
  first = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(pool.claim(one)->number(), 0);
  block_lease& same = first;
  first = std::move(same);
  EXPECT_EQ(first->number(), 1) << "an assignment to itself keeps the lease";
}

TEST_F(Lease, ReleasedOnAnotherStreamItIsThatStreamsNextSlot) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  fill(held, one, 3);
  order(one, two);
  keep_busy(held, two, 4);
  held.release(two.get());
  pool.claim(two).release();
  EXPECT_EQ(pool.stats().stream_waits, 0U);
  expect_next_waits(pool, three, 4);
}

TEST_F(Lease, RecordStreamMakesTheNextUseWaitForEveryStream) {
  for (cudaStream_t const next : {asking.get(), one.get()}) {  // also on the lease's own stream
    pinned_flag flags[2];
    block_pool pool = make_pool(1);
    {
      block_lease held = pool.claim(one);
      held.record_stream(two);
      held.record_stream(three);
      must(launch_wait_flag(two, flags[0].get()));
      must(launch_wait_flag(three, flags[1].get()));
      fill(held, three, 9);
    }
    block_lease held = pool.claim(next);
    check(held, next, 9, mismatches);
    flags[0].raise();
    sync(two);
    EXPECT_TRUE(stays_busy(next));
    flags[1].raise();
    sync(next);
    held.release();
    end(pool);
  }
}

TEST_F(Lease, TheStreamsOfOneLeaseDoNotDelayALaterOne) {
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    held.record_stream(two);
  }
  pool.claim(one).release();
  hold_up(two);  // after the release
  block_lease const held = pool.claim(three);
  sync(three);
  EXPECT_FALSE(is_idle(two));
}

TEST_F(Lease, MayBeReleasedOnAnotherThread) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  hold_up(one);
  std::thread{[moved = std::move(held)]() mutable { moved.release(); }}.join();
  EXPECT_EQ(pool.claim(one)->number(), 0);
  std::thread{[moved = pool.claim(one)] { EXPECT_TRUE(moved); }}.join();
  EXPECT_EQ(pool.claim(one)->number(), 0);
  EXPECT_EQ(pool.stats().stream_waits, 0U);
}

class CaptureMisuse : public pool_world {};

TEST_F(CaptureMisuse, RecordStreamRefusesAStreamThatIsNotOfTheLeasesCapture) {
  struct row {
    bool is_captured;            // the lease is claimed in a capture of `one`, else before
    cudaStream_t captured_also;  // a stream that captures something else; null: none
    cudaStream_t given;
    char const* text;
  };
  for (row const& each : {row{false, two, two, "claimed outside"},
                          row{false, cudaStreamPerThread, cudaStreamPerThread, "claimed outside"},
                          row{true, nullptr, two, "not part of the capture"},
                          row{true, nullptr, cudaStreamPerThread, "not part of the capture"},
                          row{true, nullptr, cudaStreamLegacy, "not part of the capture"},
                          row{true, nullptr, nullptr, "not part of the capture"}}) {
    block_pool pool = make_pool(1);
    std::optional<capture> captured;
    if (each.is_captured) captured.emplace(one, cudaStreamCaptureModeGlobal);
    block_lease held = pool.claim(one);
    if (!each.is_captured) captured.emplace(each.captured_also, cudaStreamCaptureModeGlobal);
    expect_error<usage_error>([&] { held.record_stream(each.given); },
                              {"lease::record_stream", each.text});
    EXPECT_TRUE(captured->is_active());
    ASSERT_TRUE(held);
    held.release();
    EXPECT_TRUE(pool.try_claim(one).has_value());
    EXPECT_EQ(captured->end(), cudaSuccess);
    captured.reset();
    EXPECT_TRUE(is_released(pool));
    EXPECT_EQ(pool.stats().slots, 1U);
  }
}

TEST_F(CaptureMisuse, ALeaseOfOneCaptureReleasedInAnotherIsHeldByBothGraphs) {
  block_pool pool = make_pool(1);
  capture first{one, cudaStreamCaptureModeRelaxed};
  capture second{two, cudaStreamCaptureModeRelaxed};
  block_lease held = pool.claim(one);
  held.release(two.get());
  EXPECT_TRUE(first.is_active());
  EXPECT_TRUE(second.is_active());
  EXPECT_EQ(first.end(), cudaSuccess);
  EXPECT_EQ(second.end(), cudaSuccess);
  first.graph().reset();
  EXPECT_FALSE(pool.try_claim(two).has_value());
  EXPECT_EQ(counts.destroyed.load(), 0);
  second.graph().reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(CaptureMisuse, AClaimInAnInvalidatedCaptureIsRefusedByName) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  invalidate(one);
  std::pair<char const*, std::function<void()>> const calls[] = {
      {"resource_pool::claim:", [&] { static_cast<void>(pool.claim(one)); }},
      {"resource_pool::try_claim:", [&] { static_cast<void>(pool.try_claim(one)); }},
      {"resource_pool::try_claim_for:",
       [&] { static_cast<void>(pool.try_claim_for(one, generous)); }}};
  for (auto const& [name, call] : calls) expect_error<usage_error>(call, {name, "invalidated"});
  EXPECT_EQ(made(), 0);
}

TEST_F(CaptureMisuse, ALeaseOfAnInvalidatedCaptureComesBackAtItsReleaseOrWithItsStream) {
  struct row {
    bool is_claimed_in_it;  // or before
    bool is_released_in_it;
  };
  for (row const& each : {row{true, true}, row{false, true}, row{true, false}}) {
    block_pool pool = make_pool(1);
    std::optional<capture> captured;
    if (each.is_claimed_in_it) captured.emplace(one, cudaStreamCaptureModeGlobal);
    block_lease held = pool.claim(one);
    if (!each.is_claimed_in_it) captured.emplace(one, cudaStreamCaptureModeGlobal);
    invalidate(one);
    if (each.is_released_in_it) held.release();
    EXPECT_NE(captured->end(), cudaSuccess);
    captured.reset();
    EXPECT_TRUE(is_kept(pool)) << "CUDA does not say which capture was invalidated";
    if (each.is_released_in_it) {
      EXPECT_TRUE(pool.try_claim(one).has_value());
    } else {
      held.release();
      EXPECT_TRUE(is_released(pool));
    }
  }
}

TEST_F(CaptureMisuse, TheLegacyStreamIsRefusedWhileABlockingStreamCapturesAndWorksAfterwards) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  block_pool pool = make_pool(2);
  block_lease held = pool.claim(cudaStreamLegacy);
  {
    capture captured{blocking, cudaStreamCaptureModeGlobal};
    for (std::function<void()> const& call :
         {std::function<void()>([&] { static_cast<void>(pool.claim(cudaStreamLegacy)); }),
          std::function<void()>([&] { held.record_stream(cudaStreamLegacy); })}) {
      expect_error<usage_error>(call, {"legacy"});
      EXPECT_TRUE(captured.is_active());
    }
    use(pool, blocking);
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  ASSERT_TRUE(held);
  held.release();
  EXPECT_EQ(pool.claim(cudaStreamLegacy)->number(), 0);
}

class LibraryCall : public pool_world {};

TEST_F(LibraryCall, GivesTheSameResultEagerAndCapturedInEveryMode) {
  block_pool pool = make_pool(4);
  use(pool, two, 1);
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    capture captured{two, mode};
    use(pool, two, 2);
    EXPECT_TRUE(captured.is_active()) << testing::PrintToString(mode);
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, two));
    use(pool, two, 3);
    sync(two);
  }
}

class CapturedLifetime : public pool_world {};

TEST_F(CapturedLifetime, ACaptureThatComesToNothingReturnsTheSlot) {
  struct row {
    char const* name;
    std::function<void(block_pool&)> run;
  };
  row const rows[] = {
      {"its graph is destroyed", [&](auto& pool) { static_cast<void>(captured_use(pool)); }},
      {"it is invalidated",
       [&](auto& pool) {
         capture captured{one, cudaStreamCaptureModeGlobal};
         use(pool, one);
         invalidate(one);
         EXPECT_EQ(captured.end(), cudaErrorStreamCaptureInvalidated);
       }},
      {"its stream is destroyed", [&](auto& pool) {
         owned_stream const destroyed = make_stream();
         must(cudaStreamBeginCapture(destroyed, cudaStreamCaptureModeGlobal));
         use(pool, destroyed);
       }}};
  for (row const& each : rows) {
    block_pool pool = make_pool(1);
    each.run(pool);
    EXPECT_TRUE(is_released(pool)) << each.name;
  }
}

TEST_F(CapturedLifetime, EagerWorkAfterTheCaptureOnItsLeaseIsWaitedFor) {
  for (bool const is_graph_first : {true, false}) {  // destroyed before the lease is released
    pinned_flag done;
    block_pool pool = make_pool(1);
    capture captured{one, cudaStreamCaptureModeGlobal};
    block_lease held = pool.claim(one);
    must(captured.end());
    must(launch_wait_flag(one, done.get()));
    fill(held, one, 4);
    if (is_graph_first) captured.graph().reset();
    EXPECT_TRUE(is_kept(pool));
    held.release();
    captured.graph().reset();
    ASSERT_TRUE(drained());
    block_lease next = pool.claim(two);
    check(next, two, 4, mismatches);
    EXPECT_TRUE(stays_busy(two));
    done.raise();
    sync(two);
    next.release();
    end(pool);
  }
}

// The worker may be taking it from the graph to its free list.
TEST_F(CapturedLifetime, ASlotIsFreeAtOnceWhenItsGraphIsDestroyed) {
  constexpr int rounds = is_sanitized ? 10'000 : 100'000;
  block_pool pool = make_pool(1);
  for (int i = 0; i < rounds; ++i) {
    {
      capture captured{one, cudaStreamCaptureModeThreadLocal};
      ASSERT_TRUE(pool.try_claim(one).has_value()) << "round " << i;
      must(captured.end());
    }
    ASSERT_TRUE(pool.try_claim(two).has_value()) << "round " << i;
    sync(two);
  }
}

}  // namespace
}  // namespace escrow::test
