// SPDX-License-Identifier: Apache-2.0
// Where a lease can end, with each kind of lease, and when its slot comes back then.

#include "pool_world.hpp"

namespace escrow::test {
namespace {

/// What a request owns: the most natural replacement of cudaLaunchHostFunc(delete).
struct request {
  block_lease scratch;
};

class RequestWithLeases : public pool_world {};

TEST_F(RequestWithLeases, RetiredOnItsStreamGivesAllSlotsBack) {
  block_pool pool = make_pool(8);
  for (int i = 0; i < 40; ++i) {
    auto its = std::make_unique<request>(request{pool.claim(one)});
    fill(its->scratch, one, i);
    worker->retire(one, std::move(its));
    if (i % 8 == 7) {
      ASSERT_TRUE(drained());
    }
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.stats().deferred, 0U);
  EXPECT_TRUE(can_claim(pool, 8));
}

TEST_F(RequestWithLeases, WithAStreamOfItsOwnThatEndsGivesAllSlotsBack) {
  block_pool pool = make_pool(2);
  for (int i = 0; i < 20; ++i) {
    owned_stream const mine = make_stream();
    auto its = std::make_unique<request>(request{pool.claim(mine)});
    fill(its->scratch, mine, i);
    worker->retire(mine, std::move(its));
    if (i % 2 == 1) {
      sync(mine);
      ASSERT_TRUE(drained());
    }
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.stats().deferred, 0U);
  EXPECT_TRUE(can_claim(pool, 2));
}

TEST_F(RequestWithLeases, OfAClaimerGivesItsSlotBack) {
  block_pool pool = make_pool(2);
  claimer<block> local = pool.on(one);
  local.claim().release();
  worker->retire(one, std::make_unique<request>(request{local.claim()}));
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool.stats().deferred, 0U);
}

TEST_F(RequestWithLeases, WaitsForTheWorkBeforeItsRetirement) {
  block_pool pool = make_pool(1);
  auto its = std::make_unique<request>(request{pool.claim(one)});
  keep_busy(its->scratch, one, 4);
  worker->retire(one, std::move(its));
  EXPECT_TRUE(stays_kept(pool));
  flag.raise();
  EXPECT_TRUE(is_released(pool));
}

// What the retirement's event does not cover.
class NotCovered : public pool_world {
 protected:
  /// The lease ended, and waits for `stream`.
  void expect_waits(block_pool& pool, cudaStream_t stream) {
    expect_record_is_deferred(pool, stream);
    flag.raise();
  }
};

TEST_F(NotCovered, ALeaseOfAnotherStream) {
  block_pool pool = make_pool(1);
  worker->retire(two, std::make_unique<request>(request{pool.claim(one)}));
  expect_waits(pool, one);
}

TEST_F(NotCovered, ALeaseThatWasToldOfAnotherStream) {
  block_pool pool = make_pool(1);
  auto its = std::make_unique<request>(request{pool.claim(one)});
  its->scratch.record_stream(two);
  worker->retire(one, std::move(its));
  EXPECT_TRUE(drained());
  EXPECT_TRUE(is_out(pool));
  static_cast<void>(pool.try_claim(one));
  expect_waits(pool, two);
}

TEST_F(NotCovered, ALeaseThatIsAccessedAfterTheRetirement) {
  block_pool pool = make_pool(1);
  block_worker();
  auto its = std::make_unique<request>(request{pool.claim(one)});
  request& shared = *its;
  worker->retire(one, std::move(its));
  keep_busy(shared.scratch, one, 4);
  may_end = true;
  expect_waits(pool, one);
}

TEST_F(NotCovered, ALeaseThatWasClaimedAfterTheRetirement) {
  block_pool pool = make_pool(1);
  block_worker();
  auto its = std::make_unique<std::optional<request>>();
  std::optional<request>& later = *its;
  worker->retire(one, std::move(its));
  later.emplace(request{pool.claim(one)});
  may_end = true;
  expect_waits(pool, one);
}

TEST_F(NotCovered, ASharedOwner) {
  block_pool pool = make_pool(1);
  worker->retire(one, std::make_shared<request>(request{pool.claim(one)}));
  expect_waits(pool, one);
}

// The lease's graph has its uses. Its capture's stream may be gone.
class LeaseAfterItsCapture : public pool_world {};

TEST_F(LeaseAfterItsCapture, OnATemporaryStreamIsLeftToTheGraph) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> output;
  std::optional<graph_exec> exec;
  {
    owned_stream const temporary = make_stream();
    exec.emplace(escrow::capture(stream_ref(temporary.get()), [&](stream_ref on) {
      output = pool.claim(on);
      fill(*output, on.get(), 4);
    }));
  }
  exec->launch(two);
  check(*output, two, 4, mismatches);
  sync(two);
  output.reset();
  EXPECT_TRUE(stays_kept(pool));
  exec.reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseAfterItsCapture, ToldOfAnotherStreamWaitsForThatAlone) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> output;
  std::optional<graph> captured;
  {
    owned_stream const temporary = make_stream();
    captured.emplace(escrow::capture(stream_ref(temporary.get()),
                                     [&](stream_ref on) { output = pool.claim(on); }));
  }
  output->record_stream(two);
  keep_busy(*output, two, 4);
  output.reset();
  captured.reset();
  EXPECT_TRUE(drained());
  expect_next_waits(pool, three, 4);
}

TEST_F(LeaseAfterItsCapture, OfADroppedCaptureComesBack) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> output;
  {
    owned_stream const temporary = make_stream();
    capture_scope const dropped(stream_ref(temporary.get()));
    output = pool.claim(temporary);
  }
  output.reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseAfterItsCapture, OfAPlainOneIsLeftToTheGraphWithoutItsStream) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> output;
  owned_graph graph;
  {
    owned_stream const temporary = make_stream();
    capture open{temporary, cudaStreamCaptureModeGlobal};
    output = pool.claim(temporary);
    must(open.end());
    graph = std::move(open.graph());
  }
  output->leave_to_graph();
  EXPECT_FALSE(*output);
  EXPECT_TRUE(is_kept(pool));
  graph.reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseAfterItsCapture, LeaveToGraphRefusesOtherLeases) {
  block_pool pool = make_pool(2);
  block_lease eager = pool.claim(one);
  std::optional<block_lease> told;
  graph const captured = this->captured([&](cudaStream_t on) { told = pool.claim(on); });
  told->record_stream(two);
  expect_refused({{"",
                   {"lease::leave_to_graph", "not claimed in a capture", "release it"},
                   [&] { eager.leave_to_graph(); }},
                  {"", {"lease::leave_to_graph", "told of a stream", "release it"}, [&] {
                     told->leave_to_graph();
                   }}});
  EXPECT_TRUE(eager);
  EXPECT_TRUE(*told);
}

TEST_F(LeaseAfterItsCapture, InAResumedCaptureIsNotReusedAndReturnsWithTheGraph) {
  block_pool pool = make_pool(2);
  std::optional<block_lease> output;
  graph captured = this->captured([&](cudaStream_t on) { output = pool.claim(on); });
  int const number = (*output)->number();
  capture_into(captured.get(), [&](cudaStream_t on) {
    output.reset();
    EXPECT_NE(pool.claim(on)->number(), number);
  });
  captured = graph();
  EXPECT_TRUE(can_claim(pool, 2));
}

TEST_F(LeaseAfterItsCapture, ClaimedInAResumedCaptureIsReusedThere) {
  block_pool pool = make_pool(2);
  graph const captured = this->captured([&](cudaStream_t on) { use(pool, on); });
  capture_into(captured.get(), [&](cudaStream_t on) {
    int const number = pool.claim(on)->number();
    EXPECT_EQ(pool.claim(on)->number(), number);
  });
}

// A free slot that is idle is not hidden behind a busy one of the stream that claimed it once.
TEST_F(LeaseAfterItsCapture, OnTheWorkerAfterItsGraphIsIdle) {
  block_pool pool = make_pool(2);
  use(pool, two);
  sync(two);
  std::optional<block_lease> output;
  {
    graph const captured = this->captured([&](cudaStream_t on) { output = pool.claim(on); });
  }
  EXPECT_TRUE(drained());
  int const idle = (*output)->number();
  use_behind_flag(pool, two);
  worker->retire(std::move(output));
  EXPECT_TRUE(drained());
  {
    block_lease next = pool.claim(three);
    EXPECT_EQ(next->number(), idle);
    EXPECT_TRUE(is_idle(three)) << "it waits for a stream that does not use its slot";
  }
  graph const again = captured([&](cudaStream_t on) { EXPECT_EQ(pool.claim(on)->number(), idle); });
  flag.raise();
}

// CUDA permits nearly nothing in a callback.
class LeaseInACallback : public pool_world {
 protected:
  struct held_in_callback {
    std::function<void()> end;
    std::atomic<bool> is_done{false};
  };
  void in_host_function(cudaStream_t stream, std::function<void()> end) {
    held_in_callback its{std::move(end)};
    auto const call = [](void* data) {
      auto& given = *static_cast<held_in_callback*>(data);
      given.end();
      given.is_done.store(true);
    };
    must(cudaLaunchHostFunc(stream, call, &its));
    EXPECT_TRUE(wait_until([&] { return its.is_done.load(); }));
    sync(stream);
  }
};

TEST_F(LeaseInACallback, ComesBackWithTheNextCallOfItsStream) {
  block_pool pool = make_pool(1);
  auto its = std::make_unique<request>(request{pool.claim(one)});
  in_host_function(one, [&] { its.reset(); });
  expect_record_is_deferred(pool, one);
}

TEST_F(LeaseInACallback, OfAClaimerComesBackToo) {
  block_pool pool = make_pool(2);
  claimer<block> local = pool.on(one);
  std::optional<block_lease> held = local.claim();
  in_host_function(one, [&] { held.reset(); });
  EXPECT_EQ(pool.stats().deferred, 1U);
  static_cast<void>(local.claim());
  EXPECT_EQ(pool.stats().deferred, 0U);
}

// CUDA runs it inside the call that destroys the graph.
TEST_F(LeaseInACallback, OnTheProgramsOwnThreadComesBackToo) {
  block_pool pool = make_pool(1);
  for (bool const is_plain : {true, false}) {
    auto its = std::make_unique<request>(request{pool.claim(one)});
    witness end([&] { its.reset(); });
    if (is_plain) {
      owned_graph plain = make_graph();
      end.move_to(plain);
      graph_lifetime_lock const destroyed_alone;
      must(cudaGraphDestroy(plain.release()));
    } else {
      graph const captured = captured_without_cargo();
      end.move_to(captured.get());
    }
    EXPECT_TRUE(end.ran_here());
    expect_record_is_deferred(pool, one);
  }
}

TEST_F(LeaseInACallback, OfAGraphReturnsWithTheGraph) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  graph captured = this->captured([&](cudaStream_t on) { held = pool.claim(on); });
  in_host_function(two, [&] { held.reset(); });
  captured = graph();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseInACallback, MemoryCanBeFreedOnTheStreamOfItsAllocation) {
  stream_allocator memory(options(1));
  void* const on_stream = memory.allocate(one, 256);
  in_host_function(one, [&] { memory.deallocate(one, on_stream); });
  void* const again = memory.allocate(one, 256);
  EXPECT_EQ(again, on_stream);
  in_host_function(one, [&] { memory.deallocate(again); });
  EXPECT_EQ(memory.allocate(two, 256), again);
  memory.deallocate(two, again);
}

TEST_F(LeaseInACallback, OnAnotherStreamIsRefusedAndStays) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  in_host_function(two, [&] {
    expect_error<usage_error>([&] { held.release(two); }, {"lease::release", "CUDA callback"});
  });
  EXPECT_TRUE(held);
}

TEST_F(LeaseInACallback, AnOwnerCanBeRetiredWithoutAStream) {
  fate_ptr const fate = make_fate();
  in_host_function(one, [&] {
    worker->retire(probe(fate));
    expect_error<usage_error>([&] { worker->retire(one.get(), probe(make_fate())); },
                              {"deleter::retire", "CUDA callback", "without a stream"});
  });
  EXPECT_TRUE(is_released(fate));
}

}  // namespace
}  // namespace escrow::test
