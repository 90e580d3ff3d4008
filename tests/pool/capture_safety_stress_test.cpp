// No capture of anyone's is ever harmed: thousands of captures in each mode, while other threads,
// in the default mode, claim and release, make and destroy graphs and pools, and the worker
// recycles and frees.
#include <escrow/graph.hpp>
#include <thread>

#include "capture_fixture.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

constexpr int captures = is_sanitized ? 1'000 : 10'000;
// How much has to go on beside them, and how often they have to claim, for the test to mean
// anything.
constexpr int rounds_min = 100;
constexpr int claimed_min = captures / 10;

class CaptureSafety : public captured_pool_test,
                      public testing::WithParamInterface<cudaStreamCaptureMode> {
 protected:
  // For the test's own calls that a capture does not allow.
  static void sync_relaxed(cudaStream_t stream) {
    thread_mode_scope const relaxed{cudaStreamCaptureModeRelaxed};
    sync(stream);
  }

  void claim_and_release(block_pool& pool) {
    owned_stream const one = make_stream();
    owned_stream const other = make_stream();
    for (int i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      cudaStream_t const stream = i % 2 == 0 ? one : other;
      if (auto held = pool.try_claim(stream)) {
        must(launch_tiny(stream));
        if (i % 3 == 0) held->also_used_on(i % 2 == 0 ? other : one);
      }
      if (i % 64 == 0) sync_relaxed(stream);
      rounds.fetch_add(1, std::memory_order_relaxed);
    }
    sync_relaxed(one);
    sync_relaxed(other);
  }

  void make_and_destroy(block_pool& shared) {
    owned_stream const stream = make_stream();
    while (!stop.load(std::memory_order_relaxed)) {
      block_pool own = make_pool(2);
      auto const enqueue = [&](stream_ref on) {
        block_lease const held = own.claim(on);
        static_cast<void>(shared.try_claim(on));
        must(launch_tiny(on.get()));
      };
      graph const captured = escrow::capture(stream.get(), enqueue, cudaStreamCaptureModeRelaxed);
      graph const copy = captured.clone();
      graph_exec exec{captured};
      exec.launch(stream.get());
      own.claim(stream).release();
      {
        std::unique_ptr<block> retired;
        {
          relaxed_capture_scope const relaxed;
          retired = std::make_unique<block>(counts);
        }
        worker->retire(stream, std::move(retired));
      }
      static_cast<void>(own.close_for(std::chrono::nanoseconds{0}));
      rounds.fetch_add(1, std::memory_order_relaxed);
    }
    sync_relaxed(stream);
  }

  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
};

TEST_P(CaptureSafety, NotOneOfThousandsOfCapturesIsHarmed) {
  block_pool pool = make_pool(8);
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) others.emplace_back([&] { claim_and_release(pool); });
  others.emplace_back([&] { make_and_destroy(pool); });
  EXPECT_TRUE(wait_until([&] { return rounds.load() > 10; }));

  owned_stream const stream = make_stream();
  int harmed = 0;
  int claimed = 0;
  // Until all have had their turns, on a machine that is busy.
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  auto const lacks_company = [&] {
    return (claimed < claimed_min || rounds.load(std::memory_order_relaxed) < rounds_min) &&
           std::chrono::steady_clock::now() < end;
  };
  for (int i = 0; (i < captures || lacks_company()) && harmed == 0; ++i) {
    must(cudaStreamBeginCapture(stream, GetParam()));
    for (int call = 0; call < 2; ++call) {
      if (auto held = pool.try_claim(stream)) {
        fill(*held, stream, i);
        ++claimed;
      }
    }
    owned_graph graph;
    if (cudaStreamEndCapture(stream, graph.out()) != cudaSuccess) ++harmed;
  }
  stop.store(true);
  for (std::thread& each : others) each.join();
  EXPECT_EQ(harmed, 0);
  EXPECT_GE(claimed, claimed_min) << "the captures hardly ever claimed";
  EXPECT_GE(rounds.load(), rounds_min) << "hardly anything went on beside the captures";
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  static_cast<void>(cudaGetLastError());
}

std::string name_of(testing::TestParamInfo<cudaStreamCaptureMode> const& info) {
  return testing::PrintToString(info.param);
}

INSTANTIATE_TEST_SUITE_P(EveryMode, CaptureSafety,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed),
                         name_of);

}  // namespace
}  // namespace escrow::test
