// SPDX-License-Identifier: Apache-2.0
// No capture is ever harmed, and no graph beside a thread that synchronizes the device: four
// threads capture in each mode, a hundred thousand captures with ESCROW_DEEP=1, beside all loads of
// the long run, which also retire and free, destroy pools and execs, and capture themselves.
#include "loads.hpp"

namespace escrow::test {
namespace {

constexpr int capturing = 4;              // threads
constexpr std::uint64_t rounds_min = 20;  // of each load, for the test to mean anything

class CaptureSafety : public testing::TestWithParam<cudaStreamCaptureMode> {
 protected:
  CaptureSafety() {
    all.may_exhaust = true;
    all.relaunches = 2;
    here.emplace(0, all);
  }

  /// Whether the capture came to a good end.
  [[nodiscard]] bool capture_one(cudaStream_t stream, bool launches, auto const& use) {
    bool is_good = true;
    must(cudaStreamBeginCapture(stream, GetParam()));
    try {
      use();
    } catch (pool_exhausted const&) {  // graphs have all slots
    } catch (std::exception const& error) {
      is_good = false;
      note(error.what());
    }
    owned_graph made;
    is_good = cudaStreamEndCapture(stream, made.out()) == cudaSuccess && is_good;
    static_cast<void>(cudaGetLastError());
    if (!is_good || !launches) return is_good;
    graph_exec exec{made.get()};
    exec.launch(stream);
    made.reset();  // both end in flight
    return true;
  }

  // A thread's share of the captures, and more until all loads have had their turns, on a machine
  // that is busy.
  void capture_all(loader& its, int wanted) {
    cudaStream_t const stream = its.stream();
    auto const end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    auto const is_needed = [&] {
      return lacks_company() && std::chrono::steady_clock::now() < end;
    };
    for (int i = 0; i < wanted || is_needed(); ++i) {
      bool const is_good = capture_one(stream, i % 16 == 0, [&] {
        its.enqueue(stream);
        complete.fetch_add(1, std::memory_order_relaxed);
      });
      if (!is_good) harmed.fetch_add(1, std::memory_order_relaxed);
      captures.fetch_add(1, std::memory_order_relaxed);
      if (i % 256 != 0) continue;
      relaxed([&] { sync(stream); });
      static_cast<void>(all.worker.drain_for(std::chrono::milliseconds(100)));  // never far behind
    }
    relaxed([&] { sync(stream); });
  }
  [[nodiscard]] bool lacks_company() {
    return std::ranges::any_of(beside,
                               [this](deed each) { return all.count_of(each) < rounds_min; });
  }

  void run(int wanted) {
    std::vector<std::unique_ptr<loader>> loaders;
    auto const add = [&](loader::load its) {
      loaders.push_back(std::make_unique<loader>(all, *here, loaders.size() + 1, its));
    };
    for (auto const& each : all_loads) add(each.second);
    for (int i = 0; i < capturing; ++i) add(nullptr);
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < all_loads.size(); ++i) {
      threads.emplace_back([&, i] { loaders[i]->run_on_device(); });
    }
    {
      std::vector<std::jthread> mine;
      for (std::size_t i = all_loads.size(); i < loaders.size(); ++i) {
        mine.emplace_back([&, i] { capture_all(*loaders[i], wanted / capturing); });
      }
    }
    all.counts.stop.store(true);
    threads.clear();
    static_cast<void>(cudaGetLastError());
  }
  void TearDown() override {
    here.reset();
    for (deleter* const each : {&all.worker, &all.freer}) {
      EXPECT_TRUE(wait_until([&] { return each->stats().in_graphs == 0; }, 4 * generous));
      EXPECT_TRUE(each->stop_for(4 * generous));
    }
    // The deleters that came and went destroy the rest on their own.
    EXPECT_TRUE(wait_until([&] { return all.counts.are_owners_destroyed(); }, 4 * generous))
        << all.counts.made << " were made, " << all.counts.destroyed << " destroyed";
  }

  void note(std::string const& what) {
    std::lock_guard const lock(mutex);
    if (first_harm.empty()) first_harm = what;
  }
  [[nodiscard]] std::string what_happened() const {
    std::string result = "the first harm: " + first_harm;
#ifdef ESCROW_TEST_RUNTIME_SIM
    result += "; the last that harmed: " + sim::last_invalidation();
#endif
    return result;
  }

  static constexpr std::array beside{deed::claim,  deed::retire, deed::share, deed::scratch,
                                     deed::launch, deed::build,  deed::pool};
  load_arena all;
  std::optional<site> here;
  std::atomic<int> captures{0};
  std::atomic<int> complete{0};  // in which all could be enqueued
  std::atomic<int> harmed{0};
  std::mutex mutex;  // guards first_harm
  std::string first_harm;
};

TEST_P(CaptureSafety, NotOneOfAllCapturesIsHarmed) {
  int const wanted = is_sanitized ? 500 : deep_size(3'000, 100'000);
  run(wanted);
  EXPECT_EQ(harmed, 0) << what_happened();
  EXPECT_EQ(all.failed(), "") << what_happened();
  EXPECT_GE(captures, wanted);
  EXPECT_GE(complete, wanted / 10) << "the captures hardly ever claimed";
  EXPECT_FALSE(lacks_company()) << "hardly anything went on beside the captures";
  figures found("capture_safety_" + testing::PrintToString(GetParam()));
  found.add("captures", captures.load());
  found.add("of them with all claims", complete.load());
  found.add("harmed", harmed.load());
  for (deed const each : beside)
    found.add(std::string("beside them, ") + deed_names[static_cast<std::size_t>(each)],
              all.count_of(each));
  found.add("reclaimed by the worker", all.worker.stats().reclaimed);
  found.write();
}

// The test's own test: it sees what it is there to see. This thread waits meanwhile: a driver
// crashes if a capture is killed just as its own thread goes on with it.
TEST_P(CaptureSafety, AQueryOfAnotherThreadInTheDefaultModeHarmsCapturesInGlobalModeOnly) {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  for (int i = 1; i <= 10; ++i) {
    bool const is_good = capture_one(stream, false, [&] {
      std::thread([&] { static_cast<void>(cudaEventQuery(event)); }).join();
      escrow::check(launch_tiny(stream), "a kernel");
    });
    EXPECT_EQ(is_good, GetParam() != cudaStreamCaptureModeGlobal) << what_happened();
  }
}

INSTANTIATE_TEST_SUITE_P(EveryMode, CaptureSafety, testing::ValuesIn(all_capture_modes),
                         [](auto const& given) { return testing::PrintToString(given.param); });

}  // namespace
}  // namespace escrow::test
