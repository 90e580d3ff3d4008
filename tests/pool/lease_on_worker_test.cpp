// Leases, claimers and pools that the deleter's worker ends: it calls nothing with a stream, and
// nothing is handed out before the work of their streams is done.
#include <functional>
#include <memory>
#include <utility>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class LeaseOnTheWorker : public pool_world {
 protected:
  /// The worker ended the lease of the pool's only slot, which no other stream gets until the pool
  /// is given `stream`.
  void expect_deferred(block_pool& pool, cudaStream_t stream) {
    EXPECT_TRUE(drained());
    EXPECT_EQ(pool.stats().deferred, 1U);
    EXPECT_TRUE(is_out(pool));
    pool.claim(stream).release();
    EXPECT_EQ(pool.stats().deferred, 0U);
  }
  /// The same; another stream's next use waits for work on `stream` then. Raises the flag.
  void expect_waits_for(block_pool& pool, cudaStream_t stream) {
    expect_deferred(pool, stream);
    expect_next_waits(pool, asking, 4);
  }
};

// CUDA crashes in any call with a stream whose capture another thread begins or ends.
TEST_F(LeaseOnTheWorker, CallsNothingWithItsStreams) {
  block_pool pool = make_pool(4000);
  for (int i = 0; i < 2000; ++i) {
    static_cast<void>(captured_plainly([&](cudaStream_t on) {
      block_lease held = pool.claim(two);
      held.record_stream(three);
      worker->retire(on, std::move(held));
      claimer<block> of_two = pool.on(two);
      of_two.claim().release();
      worker->retire(on, std::move(of_two));
    }));
    for (cudaStream_t const each : {two.get(), three.get()}) {
      capture next{each, cudaStreamCaptureModeRelaxed};
      must(launch_add(each, cells.data(), 1));
      ASSERT_EQ(next.end(), cudaSuccess) << i;
    }
  }
  EXPECT_TRUE(drained());
  for (cudaStream_t const each : {two.get(), three.get()}) use(pool, each);
  EXPECT_EQ(pool.stats().deferred, 0U);
}

// As a cache does that shares what it keeps with graphs.
TEST_F(LeaseOnTheWorker, WaitsForWorkThatItsOtherOwnersLeaveBehind) {
  block_pool pool = make_pool(1);
  auto held = std::make_shared<block_lease>(pool.claim(one));
  block_worker();
  worker->retire(two, held);
  keep_busy(*held, one, 4);
  held.reset();
  may_end = true;
  expect_waits_for(pool, one);
}

TEST_F(LeaseOnTheWorker, DefersItsRecordHoweverItEnds) {
  for (std::function<void(block_lease&)> const& end :
       {std::function<void(block_lease&)>([](auto&) {}),  // the destructor
        std::function<void(block_lease&)>([](auto& it) { it.release(); }),
        std::function<void(block_lease&)>([this](auto& it) { it.release(one.get()); })}) {
    block_pool pool = make_pool(1);
    auto held = std::make_shared<block_lease>(pool.claim(one));
    worker->retire(two, probe(make_fate([held = std::move(held), end] { end(*held); })));
    expect_deferred(pool, one);
  }
}

TEST_F(LeaseOnTheWorker, ReleasedOnAnotherStreamWaitsForBoth) {
  block_pool pool = make_pool(1);
  auto held = std::make_shared<block_lease>(pool.claim(one));
  block_worker();
  worker->retire(two, probe(make_fate([held, this] { held->release(three.get()); })));
  fill(*held, one, 3);
  order(one, three);
  keep_busy(*held, three, 4);
  held.reset();
  may_end = true;
  EXPECT_TRUE(drained());
  EXPECT_FALSE(pool.try_claim(three));
  expect_waits_for(pool, one);
}

TEST_F(LeaseOnTheWorker, OfACaptureComesBackWithItsGraph) {
  block_pool pool = make_pool(1);
  owned_graph graph = captured_plainly([&](cudaStream_t on) {
    block_lease held = pool.claim(on);
    fill(held, on, 3);
    worker->retire(on, std::move(held));
  });
  EXPECT_TRUE(is_kept(pool));
  graph.reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseOnTheWorker, OfACaptureWaitsForAStreamThatWasRecordedAfterIt) {
  block_pool pool = make_pool(1);
  std::shared_ptr<block_lease> held;
  owned_graph graph = captured_plainly([&](cudaStream_t on) {
    held = std::make_shared<block_lease>(pool.claim(on));
    worker->retire(on, held);
  });
  held->record_stream(one);
  keep_busy(*held, one, 4);
  held.reset();
  graph.reset();
  expect_waits_for(pool, one);
}

TEST_F(LeaseOnTheWorker, IsLeakedIfItsPoolIsGone) {
  {
    block_pool pool = make_pool(1);
    block_worker();
    worker->retire(two, pool.claim(one));
  }
  may_end = true;
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 1U);
  lost = 1;
}

TEST_F(LeaseOnTheWorker, TheEndOfAPoolLeaksWhatHasNoEvent) {
  pool_options chosen = options(4);
  chosen.streams_outlive_pool = true;
  block_pool pool = make_pool(chosen);
  use(pool, one);
  worker->retire(std::move(pool));
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 1U);
  lost = 1;
}

TEST_F(LeaseOnTheWorker, TheEndOfAClaimerLeavesItsSlotsWithoutAnEventToItsStream) {
  block_pool pool = make_pool(2);  // of which a claimer keeps one without an event
  block_lease const other = pool.claim(two);
  claimer<block> local = pool.on(one);
  {
    block_lease held = local.claim();
    keep_busy(held, one, 4);
  }
  worker->retire(two, std::move(local));
  expect_waits_for(pool, one);
}

}  // namespace
}  // namespace escrow::test
