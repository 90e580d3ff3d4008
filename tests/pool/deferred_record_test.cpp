// SPDX-License-Identifier: Apache-2.0
// Leases that end where nothing can be recorded on their stream, in other captures or on the
// deleter's worker: the slot is neither claimed early nor lost, but waits until the pool is given
// that stream outside of captures.

#include "pool_world.hpp"

namespace escrow::test {
namespace {

/// The end of a pool has leaked one slot, and said so.
class leaking_world : public pool_world {
 protected:
  void expect_leak_told() {
    EXPECT_EQ(worker->stats().leaked, 1U);
    EXPECT_NE(errors->all().find("~resource_pool: 1 slot of \"blocks\" is leaked: the release was "
                                 "on a stream where CUDA recorded nothing then, stream 0x"),
              std::string::npos)
        << errors->all();
    errors_expected = true;
  }
};

class DeferredRecord : public leaking_world {
 protected:
  /// A lease that was claimed in a capture, whose graph is destroyed, and that eager work uses, as
  /// it was told, until the flag is raised.
  [[nodiscard]] std::optional<block_lease> used_after_its_capture(block_pool& pool) {
    std::optional<block_lease> held;
    static_cast<void>(captured_plainly([&](cudaStream_t on) { held = pool.claim(on); }));
    held->record_stream(one);
    keep_busy(*held, one, 4);
    return held;
  }
  template <class T>
  static void end_in_invalidated_capture(std::optional<lease<T>>& held, cudaStream_t stream) {
    capture second{stream, cudaStreamCaptureModeGlobal};
    invalidate(stream);
    held.reset();
  }
  static void end_in_capture(std::optional<block_lease>& held, cudaStream_t stream) {
    capture second{stream, cudaStreamCaptureModeGlobal};
    held.reset();
    must(second.end());
  }
};

TEST_F(DeferredRecord, ALeaseThatEndsInAnotherInvalidatedCaptureIsNotGivenOutBeforeItsWork) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  end_in_invalidated_capture(held, one);
  expect_waits_for_record(pool, one);
}

TEST_F(DeferredRecord, OfSeveralLeasesTheLastReleasedIsClaimedFirst) {
  block_pool pool = make_pool(3);
  std::vector<block_lease> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool.claim(one));
  int const last = held.back()->number();
  capture second{one, cudaStreamCaptureModeGlobal};
  invalidate(one);
  for (block_lease& each : held) each.release();
  EXPECT_NE(second.end(), cudaSuccess);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(pool.stats().deferred, 3u);
  EXPECT_EQ(pool.claim(one)->number(), last);
}

TEST_F(DeferredRecord, ALeaseUsedAfterItsCaptureThatEndsInALaterOneOfItsGraphIsNotGivenOutEarly) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  owned_graph graph = captured_plainly([&](cudaStream_t on) { held = pool.claim(on); });
  held->record_stream(one);
  keep_busy(*held, one, 4);
  capture_into(graph, [&](cudaStream_t) { held.reset(); });
  graph.reset();
  expect_waits_for_record(pool, one);
}

TEST_F(DeferredRecord, ADestroyedPoolDoesNotDestroyTheResourceUnderSuchWork) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(*pool);
  end_in_invalidated_capture(held, one);
  pool.reset();
  ASSERT_TRUE(drained());
  EXPECT_EQ(counts.destroyed.load(), 0);
  expect_leak_told();
}

TEST_F(DeferredRecord, AnEagerLeaseThatEndsInACaptureIsHeldByThatGraphTooAndComesBack) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(one);
  keep_busy(*held, one, 4);
  capture second{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  held.reset();
  EXPECT_TRUE(second.is_active());
  must(second.end());
  EXPECT_FALSE(pool.try_claim(one).has_value()) << "the second graph holds it";
  second.graph().reset();
  ASSERT_TRUE(drained());
  expect_next_waits(pool, two, 4);
}

TEST_F(DeferredRecord, ALeaseOfACaptureThatEndsInAnotherComesBackAfterWhatItWasToldOf) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  end_in_capture(held, one);
  expect_waits_for_record(pool, one);
}

TEST_F(DeferredRecord, ALeaseOfACaptureThatEndsInAnotherIsLeftToItsGraph) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  owned_graph first = captured_plainly([&](cudaStream_t on) { held = pool.claim(on); });
  end_in_capture(held, one);
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_TRUE(is_kept(pool));
  first.reset();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(DeferredRecord, IsMadeByAnyCallThatIsGivenTheStream) {
  block_pool pool = make_pool(2);
  for (int way = 0; way < 3; ++way) {
    std::optional<block_lease> late = pool.claim(one);
    std::optional<block_lease> later = pool.claim(way == 1 ? two : one);
    end_in_capture(late, one);
    ASSERT_EQ(pool.stats().deferred, 1u);
    if (way == 0) later->release();
    if (way == 1) later->record_stream(one);
    if (way == 2) static_cast<void>(pool.try_claim(one));
    EXPECT_EQ(pool.stats().deferred, 0u) << way;
    later.reset();
    ASSERT_TRUE(drained());
  }
}

TEST_F(DeferredRecord, IsNotMadeOnAStreamThatHasTheHandleOfADestroyedOne) {
  lost = 1;
  std::optional<block_pool> pool = make_pool(1);
  std::vector<owned_stream> made;
  cudaStream_t old = nullptr;
  {
    owned_stream const destroyed = make_stream();
    old = destroyed.get();
    std::optional<block_lease> held = pool->claim(destroyed);
    end_in_capture(held, destroyed);
  }
  bool is_used_again = false;
  std::uint64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    owned_stream later = make_stream(i % 3 == 0 ? cudaStreamDefault : cudaStreamNonBlocking);
    EXPECT_GT(stream_id(later), last) << "a stream that is made later has a larger id";
    last = stream_id(later);
    is_used_again = is_used_again || later.get() == old;
    static_cast<void>(pool->try_claim(later));
    if (i % 4 != 0) made.push_back(std::move(later));
  }
  EXPECT_EQ(pool->stats().deferred, is_used_again ? 0u : 1u);
  EXPECT_EQ(errors->size(), is_used_again ? 1u : 0u) << errors->all();
  pool.reset();
  EXPECT_EQ(worker->stats().leaked, 1u);
  errors_expected = true;
  if (!is_used_again) GTEST_SKIP() << "handles are not used again here";
}

TEST_F(DeferredRecord, OnOneStreamDoesNotHideTheWorkOfTheStreamThatWasRecordedAtTheRelease) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(one);
  held->record_stream(two);
  hold_up(one);
  fill(*held, one, 4);
  end_in_capture(held, two);
  expect_next_waits(pool, two, 4);
}

TEST_F(DeferredRecord, IsNamedByAPoolThatIsClosedAndStillMade) {
  block_pool pool = make_pool(2);
  block_lease last = pool.claim(one);
  std::optional<block_lease> late = pool.claim(one);
  end_in_capture(late, one);
  ASSERT_TRUE(drained());
  auto const left = pool.close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].waits_for, one.get());
  EXPECT_EQ(left[0].slots, 1u);
  EXPECT_EQ(left[1].waits_for, nullptr);
  EXPECT_EQ(left[1].slots, 1u);
  last.release();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(DeferredRecord, IsMadeByAClaimThatAClosedPoolRefuses) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = used_after_its_capture(pool);
  end_in_invalidated_capture(held, one);
  scratch_pool memory(options(1));
  std::optional<lease<device_block>> large = memory.claim(one, 4096);
  end_in_invalidated_capture(large, one);
  flag.raise();
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds{0}).size(), 1U);
  EXPECT_EQ(memory.close_for(std::chrono::nanoseconds{0}).size(), 1U);
  expect_error<usage_error>([&] { return pool.on(one); }, {"resource_pool::on", "is closed"});
  expect_error<usage_error>([&] { return memory.claim(one, 1 << 20); }, {"is closed"});
  EXPECT_TRUE(pool.close_for(generous).empty());
  EXPECT_TRUE(memory.close_for(generous).empty());
}

TEST_F(DeferredRecord, IsMadeByAClaimThatWaits) {
  block_pool pool = make_pool(with(options(1), &pool_options::host_wait_max, generous));
  std::optional<block_lease> held = pool.claim(one);
  std::jthread const later([&] {
    static_cast<void>(stays_false([] { return false; }));
    worker->retire(two.get(), std::make_unique<block_lease>(std::move(*held)));
  });
  EXPECT_TRUE(pool.claim(one));
}

// The worker calls nothing with a stream.
class LeaseOnTheWorker : public leaking_world {};

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

#ifdef ESCROW_TEST_RUNTIME_SIM
// The same whenever the worker comes to them: by the record of all calls. (It asks whether its own
// thread's stream captures.)
TEST_F(LeaseOnTheWorker, MakesNoCallThatIsGivenAStream) {
  block_pool pool = make_pool(16);
  sim::start_recording(sim::recorded_threads::this_one);
  static_cast<void>(is_idle(one));
  std::uint64_t const mine = sim::stop_recording().at(0).thread;
  sim::start_recording();
  auto const retire_all = [&](cudaStream_t on) {
    block_lease held = pool.claim(two);
    held.record_stream(three);
    worker->retire(on, std::move(held));
    auto shared = std::make_shared<block_lease>(pool.claim(two));
    worker->retire(on, std::tuple(shared));
    claimer<block> of_two = pool.on(two);
    of_two.claim().release();
    worker->retire(on, std::move(of_two));
  };
  retire_all(one);
  static_cast<void>(captured_plainly(retire_all));
  EXPECT_TRUE(drained());
  for (sim::recorded_call const& each : sim::stop_recording()) {
    bool const is_given_a_stream =
        (each.api.starts_with("cudaStream") && each.api != "cudaStreamIsCapturing") ||
        each.api.starts_with("cudaEventRecord");
    EXPECT_FALSE(each.thread != mine && is_given_a_stream) << each.api << " on the worker";
  }
  for (cudaStream_t const each : {two.get(), three.get()}) use(pool, each);
  EXPECT_EQ(pool.stats().deferred, 0U);
}
#endif

// As a cache does that shares what it keeps with graphs.
TEST_F(LeaseOnTheWorker, WaitsForWorkThatItsOtherOwnersLeaveBehind) {
  block_pool pool = make_pool(1);
  auto held = std::make_shared<block_lease>(pool.claim(one));
  block_worker();
  worker->retire(two, held);
  keep_busy(*held, one, 4);
  held.reset();
  may_end = true;
  expect_waits_for_record(pool, one);
}

TEST_F(LeaseOnTheWorker, DefersItsRecordHoweverItEnds) {
  for (std::function<void(block_lease&)> const& end :
       {std::function<void(block_lease&)>([](auto&) {}),  // the destructor
        std::function<void(block_lease&)>([](auto& it) { it.release(); }),
        std::function<void(block_lease&)>([this](auto& it) { it.release(one.get()); })}) {
    block_pool pool = make_pool(1);
    auto held = std::make_shared<block_lease>(pool.claim(one));
    worker->retire(two, probe(make_fate([held = std::move(held), end] { end(*held); })));
    expect_record_is_deferred(pool, one);
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
  expect_waits_for_record(pool, one);
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
  expect_waits_for_record(pool, one);
}

TEST_F(LeaseOnTheWorker, IsLeakedIfItsPoolIsGone) {
  {
    block_pool pool = make_pool(1);
    block_worker();
    worker->retire(two, pool.claim(one));
  }
  may_end = true;
  EXPECT_TRUE(drained());
  expect_leak_told();
  lost = 1;
}

TEST_F(LeaseOnTheWorker, TheEndOfAPoolLeaksWhatHasNoEvent) {
  block_pool pool = make_pool(with(options(4), &pool_options::streams_outlive_pool, true));
  use(pool, one);
  worker->retire(std::move(pool));
  EXPECT_TRUE(drained());
  expect_leak_told();
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
  expect_waits_for_record(pool, one);
}

class DeferredSlots : public pool_world {
 protected:
  // The least time that a claim and its release take on `two`.
  [[nodiscard]] std::chrono::nanoseconds least_time_of_pair(block_pool& pool) {
    auto least = std::chrono::nanoseconds::max();
    for (int round = 0; round < 40; ++round) {
      auto const begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 20; ++i) static_cast<void>(pool.claim(two));
      least = std::min(least, std::chrono::steady_clock::now() - begin);
    }
    return least;
  }
  // Leases of `one` that end while it captures.
  void defer(block_pool& pool, int count) {
    std::vector<block_lease> held;
    for (int i = 0; i < count; ++i) held.push_back(pool.claim(one));
    static_cast<void>(captured_plainly([&](cudaStream_t) { held.clear(); }));
  }
};

TEST_F(DeferredSlots, OfOneStreamCostCallsWithOthersNothing) {
  constexpr int many = 3000;
  block_pool pool = make_pool(many + 1);
  auto const before = least_time_of_pair(pool);
  defer(pool, many);
  ASSERT_EQ(pool.stats().deferred, many);
  // A walk of them takes more than ten times as long.
  EXPECT_LT(least_time_of_pair(pool), 4 * before);
  static_cast<void>(pool.claim(one));
  EXPECT_EQ(pool.stats().deferred, 0U);
}

}  // namespace
}  // namespace escrow::test
