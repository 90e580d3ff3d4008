// SPDX-License-Identifier: Apache-2.0
// A graph keeps what was claimed before its capture: by launch(), retain(), retire() and
// record_stream() on the capturing stream.

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class KeptLease : public pool_world {
 protected:
  /// The graph has the slot, which returns after the graph and its exec, and after `stream`'s work.
  void expect_kept_until_the_end(graph captured, block_pool& pool) {
    EXPECT_TRUE(is_kept(pool));
    std::optional<graph_exec> exec(captured);
    captured = graph();
    exec->launch(two);
    sync(two);
    EXPECT_TRUE(stays_kept(pool));
    EXPECT_TRUE(has_no_user_object());
    exec.reset();
    EXPECT_TRUE(is_released(pool));
    EXPECT_EQ(pool.stats().deferred, 0U);
  }
};

TEST_F(KeptLease, ThatIsRetainedReturnsWithTheGraphOnceItsFirstStreamIsDone) {
  block_pool pool = make_pool(1);
  block_lease weights = pool.claim(two);
  fill(weights, two, 4);
  graph captured = this->captured([&](cudaStream_t on) {
    check(weights, on, 4, mismatches);
    worker->retire(on, std::move(weights));
  });
  expect_kept_until_the_end(std::move(captured), pool);
}

TEST_F(KeptLease, InAPointerIsRetainedAsWell) {
  block_pool pool = make_pool(1);
  auto weights = std::make_shared<block_lease>(pool.claim(two));
  fill(*weights, two, 4);
  graph captured = this->captured([&](cudaStream_t on) {
    check(*weights, on, 4, mismatches);
    worker->retire(on, weights);
    weights.reset();
  });
  expect_kept_until_the_end(std::move(captured), pool);
}

TEST_F(KeptLease, ThatTheCapturedWorkIsToldOfMayEndBeforeTheGraph) {
  for (bool const is_launched : {false, true}) {
    block_pool pool = make_pool(1);
    std::optional<block_lease> weights = pool.claim(two);
    fill(*weights, two, 4);
    graph captured = this->captured([&](cudaStream_t on) {
      is_launched ? weights->before_launch(on) : weights->record_stream(on);
      check(*weights, on, 4, mismatches);
    });
    weights.reset();
    expect_kept_until_the_end(std::move(captured), pool);
  }
}

TEST_F(KeptLease, ReturnsAfterTheWorkOnItsFirstStream) {
  block_pool pool = make_pool(1);
  block_lease weights = pool.claim(two);
  keep_busy(weights, two, 4);
  graph captured = this->captured([&](cudaStream_t on) { worker->retire(on, std::move(weights)); });
  captured = graph();
  EXPECT_TRUE(drained());
  expect_next_waits(pool, three, 4);
}

TEST_F(KeptLease, ClaimedOnTheCapturingStreamWaitsForItsNextCall) {
  block_pool pool = make_pool(1);
  block_lease weights = pool.claim(one);
  fill(weights, one, 4);
  graph captured = this->captured([&](cudaStream_t on) {
    check(weights, on, 4, mismatches);
    worker->retire(on, std::move(weights));
  });
  EXPECT_TRUE(is_kept(pool));
  captured = graph();
  expect_record_is_deferred(pool, one);
}

TEST_F(KeptLease, OfACaptureThatIsOverIsKeptByAnotherGraphToo) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> output;
  graph first = captured([&](cudaStream_t on) {
    output = pool.claim(on);
    fill(*output, on, 4);
  });
  graph second = captured([&](cudaStream_t on) {
    output->before_launch(on);
    check(*output, on, 4, mismatches);
  });
  output.reset();
  run(first);
  first = graph();
  EXPECT_TRUE(stays_kept(pool));
  run(second);
  second = graph();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(KeptLease, IsNotGivenToAnotherGraphsCaptureBeforeItsEnd) {
  block_pool pool = make_pool(2);
  block_lease weights = pool.claim(two);
  graph const first = captured([&](cudaStream_t on) { weights.before_launch(on); });
  int const number = weights->number();
  weights.release();
  graph const second = captured([&](cudaStream_t on) {
    block_lease const other = pool.claim(on);
    EXPECT_NE(other->number(), number);
  });
  EXPECT_EQ(pool.stats().in_graphs, 2U);
}

// Its user still has it after the captured launch, and may know the address.
TEST_F(KeptLease, ThatIsUsedOnItsFirstStreamLaterWaitsForThat) {
  block_pool pool = make_pool(1);
  auto weights = std::make_unique<std::optional<block_lease>>(pool.claim(two));
  graph captured = this->captured([&](cudaStream_t on) {
    (*weights)->before_launch(on);
    hold_up(two);
    worker->retire(on, std::move(weights));
  });
  captured = graph();
  expect_record_is_deferred(pool, two);
  flag.raise();
}

// Nor does the first of two calls that give it to the graph cover what came between them.
TEST_F(KeptLease, ThatIsRetiredAfterACapturedLaunchReturnsAfterItsWorkInBetween) {
  block_pool pool = make_pool(1);
  block_lease weights = pool.claim(two);
  graph captured = this->captured([&](cudaStream_t on) {
    weights.before_launch(on);
    keep_busy(weights, two, 4);
    worker->retire(on, std::move(weights));
  });
  captured = graph();
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.stats().deferred, 0U);
  expect_next_waits(pool, three, 4);
}

TEST_F(KeptLease, ByTheSameGraphTwiceCountsOnce) {
  block_pool pool = make_pool(1);
  block_lease weights = pool.claim(two);
  graph const captured = this->captured([&](cudaStream_t on) {
    for (int i = 0; i < 3; ++i) weights.before_launch(on);
  });
  EXPECT_EQ(captured.held().slots, 1U);
  EXPECT_EQ(worker->stats().in_graphs, 1U);
}

// A capture cannot wait for eager work, so the host does, as in a claim.
TEST_F(KeptLease, ComesAfterTheEarlierUsersOfItsResource) {
  block_pool pool = make_pool(1);
  use_behind_flag(pool, two, 4);
  block_lease held = pool.claim(two);
  std::atomic<bool> is_raised{false};
  std::jthread const later([&] {
    static_cast<void>(stays_false([] { return false; }));
    is_raised.store(true);
    flag.raise();
  });
  graph const made = captured([&](cudaStream_t on) {
    held.record_stream(on);
    EXPECT_TRUE(is_raised.load()) << "the graph may run beside the earlier user";
    check(held, on, 4, mismatches);
  });
  graph_exec exec(made);
  exec.launch(three);
  sync(three);
}

TEST_F(KeptLease, OfAResourceThatStaysBusyIsRefusedInTheEnd) {
  block_pool pool = make_pool(
      with(options(1), &pool_options::capture_wait_max, std::chrono::nanoseconds(1'000'000)));
  use_behind_flag(pool, two, 4);
  block_lease held = pool.claim(two);
  graph const made = captured([&](cudaStream_t on) {
    expect_error<usage_error>([&] { held.record_stream(on); },
                              {"lease::record_stream", "earlier work", "capture_wait_max"});
  });
  EXPECT_EQ(made.held().slots, 0U);
  flag.raise();
}

}  // namespace
}  // namespace escrow::test
