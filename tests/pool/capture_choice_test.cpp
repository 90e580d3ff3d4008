// Which slot a claim in a capture gets where some are busy: one that is idle, or none.
#include <thread>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class CapturedChoice : public captured_pool_test {};

TEST_F(CapturedChoice, OnlyBusySlotsMakeTheClaimFailAndDoTheCaptureNoHarm) {
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    {
      pinned_flag flag;
      owned_stream const busy = make_stream();
      owned_stream const stream = make_stream();
      pool_options given = options(1);
      given.capture_wait_max = std::chrono::milliseconds(200);
      block_pool pool = make_pool(given);
      {
        block_lease const held = pool.claim(busy);
        must(launch_wait_flag(busy, flag.get()));
      }
      capture captured{stream, mode};
      EXPECT_FALSE(pool.try_claim(stream).has_value());
      EXPECT_THROW(static_cast<void>(pool.claim(stream)), pool_exhausted);
      EXPECT_TRUE(captured.is_active());
      EXPECT_EQ(pool.stats().stream_waits, 0u);
      flag.raise();
      EXPECT_TRUE(pool.try_claim_for(stream, generous).has_value());
      EXPECT_TRUE(captured.is_active());
      EXPECT_EQ(captured.end(), cudaSuccess);
    }
    worker->drain();  // a cudaFree would wait for the next round's kernel, and all calls for it
  }
}

TEST_F(CapturedChoice, AHostWaitInACaptureEndsWhenTheWorkIsDone) {
  pinned_flag flag;
  owned_stream const busy = make_stream();
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease const held = pool.claim(busy);
    must(launch_wait_flag(busy, flag.get()));
  }
  std::thread raising([&] {
    EXPECT_TRUE(wait_until([&] { return pool.stats().host_waits == 1; }));
    flag.raise();
  });
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_TRUE(pool.try_claim_for(stream, std::chrono::seconds{60}).has_value());
  raising.join();
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(CapturedChoice, ABusySlotDoesNotHideAnIdleOneThatAGraphReturned) {
  pinned_flag flag;
  owned_stream const one = make_stream();
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  {
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
  }
  sync(one);
  owned_graph graph = captured_work(pool, stream);  // takes one of the two, both last used on `one`
  {
    block_lease const other = pool.claim(one);
    must(launch_wait_flag(one, flag.get()));
  }
  graph.reset();
  ASSERT_TRUE(drained());
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_TRUE(pool.try_claim(stream).has_value());
  EXPECT_TRUE(captured.is_active());
}

TEST_F(CapturedChoice, AnIdleSlotIsTakenThoughItsStreamHasAnotherThatABusyStreamAlsoUses) {
  pinned_flag flag;
  owned_stream const one = make_stream();
  owned_stream const slow = make_stream();
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(2);
  {
    block_lease second = pool.claim(one);
    block_lease first = pool.claim(one);
    first.record_stream(slow);
    must(launch_wait_flag(slow, flag.get()));
  }
  sync(one);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  EXPECT_TRUE(pool.try_claim(stream).has_value());
}

}  // namespace
}  // namespace escrow::test
