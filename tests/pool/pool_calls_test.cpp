// How much a pool asks of CUDA: near one event record a claim, and no storm of questions when it
// waits.
#include <algorithm>
#include <escrow/sim.hpp>
#include <string_view>
#include <vector>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

class PoolCalls : public captured_pool_test {};

TEST_F(PoolCalls, AClaimOfTheStreamsOwnSlotAndItsReleaseMakeOneEventRecordAndFewQuestions) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(4);
  pool.claim(stream).release();
  ASSERT_TRUE(drained());
  std::uint64_t const records = sim::calls("cudaEventRecord");
  std::uint64_t const waits = sim::calls("cudaStreamWaitEvent");
  std::uint64_t const queries = sim::calls("cudaEventQuery");
  std::uint64_t const infos = sim::calls("cudaStreamGetCaptureInfo");
  std::uint64_t const ids = sim::calls("cudaStreamGetId");
  for (int i = 0; i < 100; ++i) pool.claim(stream).release();
  EXPECT_EQ(sim::calls("cudaEventRecord") - records, 100u);
  EXPECT_EQ(sim::calls("cudaStreamWaitEvent") - waits, 0u);
  EXPECT_EQ(sim::calls("cudaEventQuery") - queries, 0u);
  EXPECT_LE(sim::calls("cudaStreamGetCaptureInfo") - infos, 200u);
  EXPECT_LE(sim::calls("cudaStreamGetId") - ids, 100u);
}

TEST_F(PoolCalls, AClaimOfAnotherStreamsIdleSlotAsksForItsStreamsIdOnceAndAboutOneEvent) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(4);
  pool.claim(other).release();
  sync(other);
  ASSERT_TRUE(drained());
  sim::start_recording(sim::recorded_threads::this_one);
  block_lease held = pool.claim(stream);
  std::vector<sim::recorded_call> const calls = sim::stop_recording();
  auto const count = [&](std::string_view api) {
    return std::ranges::count(calls, api, &sim::recorded_call::api);
  };
  EXPECT_EQ(held->number(), 0);
  EXPECT_EQ(count("cudaStreamGetCaptureInfo"), 1);
  EXPECT_EQ(count("cudaStreamGetId"), 1);
  EXPECT_EQ(count("cudaEventQuery"), 1);
  EXPECT_EQ(count("cudaThreadExchangeStreamCaptureMode"), 2);
  EXPECT_LE(calls.size(), 6u);
}

TEST_F(PoolCalls, AStreamThatIsGivenOftenIsRecordedOnce) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  for (int i = 0; i < 1'000; ++i) held.record_stream(other);
  std::uint64_t const records = sim::calls("cudaEventRecord");
  held.release();
  EXPECT_EQ(sim::calls("cudaEventRecord") - records, 2u);
  std::uint64_t const waits = sim::calls("cudaStreamWaitEvent");
  static_cast<void>(pool.claim(stream));
  EXPECT_EQ(sim::calls("cudaStreamWaitEvent") - waits, 1u);
}

TEST_F(PoolCalls, AClaimInVainInACaptureAsksOncePerBusyStream) {
  constexpr std::size_t busy = 4;
  pinned_flag flag;
  std::vector<owned_stream> streams(busy);
  deleter polled{deleter_options{.own_worker = false}};  // after a worker it asks once more
  pool_options chosen = options(busy);
  chosen.deleter = &polled;
  block_pool pool = make_pool(chosen);
  for (owned_stream& stream : streams) {
    stream = make_stream();
    block_lease const held = pool.claim(stream);
    must(launch_wait_flag(stream, flag.get()));
  }
  owned_stream const stream = make_stream();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  std::uint64_t const before = sim::calls("cudaEventQuery");
  std::uint64_t const modes = sim::calls("cudaThreadExchangeStreamCaptureMode");
  EXPECT_FALSE(pool.try_claim(stream).has_value());
  EXPECT_LE(sim::calls("cudaEventQuery") - before, busy);
  EXPECT_LE(sim::calls("cudaThreadExchangeStreamCaptureMode") - modes, 2u);
}

TEST_F(PoolCalls, AHostWaitInACaptureAsksNowAndThenAndDoesNotSpin) {
  pinned_flag flag;
  owned_stream const busy = make_stream();
  block_pool pool = make_pool(1);
  {
    block_lease const held = pool.claim(busy);
    must(launch_wait_flag(busy, flag.get()));
  }
  owned_stream const stream = make_stream();
  capture captured{stream, cudaStreamCaptureModeGlobal};
  std::uint64_t const before = sim::calls("cudaEventQuery");
  EXPECT_FALSE(pool.try_claim_for(stream, std::chrono::milliseconds{50}).has_value());
  // A question each 200 us is what the pool promises itself; twice that is the bound.
  EXPECT_LE(sim::calls("cudaEventQuery") - before, 500u);
}

TEST_F(PoolCalls, NoCallIsMadeInADestroyCallback) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(64);
  for (int i = 0; i < 20; ++i) {
    owned_graph graph = captured_work(pool, stream);
    owned_exec exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
    if (i % 2 == 0) graph.reset();
    exec.reset();
    sync(stream);
  }
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  EXPECT_EQ(sim::calls_in_callbacks(), 0u);
  EXPECT_EQ(sim::captures_invalidated(), 0u) << sim::last_invalidation();
}

TEST_F(PoolCalls, EverythingIsGivenBackToCuda) {
  sim::counts const before = sim::alive();
  {
    owned_stream const stream = make_stream();
    block_pool pool = make_pool(4);
    block_lease held = pool.claim(stream);
    owned_graph const graph = captured_work(pool, stream);
    library_work(pool, stream, 1, mismatches);
    sync(stream);
  }
  EXPECT_TRUE(wait_until([&] {
    sim::counts now = sim::alive();
    now.events = before.events;  // kept for reuse
    return now == before;
  }));
}

}  // namespace
}  // namespace escrow::test
