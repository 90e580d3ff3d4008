// No capture is ever harmed, and no graph beside a thread that synchronizes the device: four
// threads capture in each mode, a hundred thousand captures with ESCROW_DEEP=1, while four others,
// in the default mode, claim, retire, capture, build graphs by hand, make and destroy pools and
// execs, and the worker recycles and frees.
#include <algorithm>
#include <escrow/nodes.hpp>
#include <mutex>
#include <optional>
#include <string>

#include "deep.hpp"
#include "stress_world.hpp"
#include "synchronizing_thread.hpp"

namespace escrow::test {
namespace {

constexpr int threads_that_capture = 4;
constexpr int rounds_min = 20;  // of each thread beside them, for the test to mean anything

class CaptureSafety : public stress, public testing::WithParamInterface<cudaStreamCaptureMode> {
 protected:
  // What a driver crashes on if a capture is killed just as its own thread goes on with it: so this
  // one waits.
  void capture_beside_a_query(cudaStream_t stream) {
    std::thread([this] { static_cast<void>(cudaEventQuery(event)); }).join();
    escrow::check(launch_tiny(stream), "a kernel");
  }

  /// Everything that a library may do in a capture.
  void use_in_capture(cudaStream_t stream, int i) {
    for (int call = 0; call < 2; ++call) {
      if (auto held = pool->try_claim(stream)) {
        escrow::check(launch_fill(stream, held->get().data(), block::length, i), "a kernel");
        claims.fetch_add(1, std::memory_order_relaxed);
      }
    }
    static_cast<void>(claimed_scratch(stream, std::size_t{256} << (i % 4)));
    if (i % 8 == 0) worker->retire(stream, some_memory());
    worker->retire(stream, std::make_unique<int>(i));
    auto const shared = make_stream_shared_by<int>(*worker, i);
    escrow::check(launch_tiny(stream), "a kernel");
    record_stream(shared, stream);
  }

  /// Whether the capture came to a good end.
  template <class Use>
  [[nodiscard]] bool capture_one(cudaStream_t stream, bool launches, Use const& use) {
    bool is_good = true;
    must(cudaStreamBeginCapture(stream, GetParam()));
    try {
      use();
    } catch (std::exception const& error) {
      is_good = false;
      std::lock_guard const lock(mutex);
      if (first_harm.empty()) first_harm = error.what();
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

  [[nodiscard]] static device_block some_memory() {
    return relaxed([] { return device_block(256); });
  }
  /// Nothing if graphs have them all.
  [[nodiscard]] std::optional<lease<device_block>> claimed_scratch(cudaStream_t stream,
                                                                   std::size_t bytes) {
    try {
      return scratch->claim(stream, bytes);
    } catch (pool_exhausted const&) {
      return {};
    }
  }
  static void sync_relaxed(cudaStream_t stream) {
    relaxed([&] { sync(stream); });
  }

  // A thread's share of the captures, and more until all others have had their turns, on a machine
  // that is busy.
  void capture_all(int wanted) {
    owned_stream const stream = make_stream();
    auto const end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    auto const is_needed = [&] {
      return lacks_company() && std::chrono::steady_clock::now() < end;
    };
    for (int i = 0; i < wanted || is_needed(); ++i) {
      bool const is_good = capture_one(stream, i % 16 == 0, [&] { use_in_capture(stream, i); });
      if (!is_good) harmed.fetch_add(1, std::memory_order_relaxed);
      captures.fetch_add(1, std::memory_order_relaxed);
      if (i % 256 != 0) continue;
      sync_relaxed(stream);
      static_cast<void>(worker->drain_for(std::chrono::milliseconds(100)));  // never far behind
    }
    sync_relaxed(stream);
  }
  [[nodiscard]] bool lacks_company() const {
    return std::ranges::any_of(rounds, [](auto const& each) { return each < rounds_min; });
  }

  // What goes on beside them.

  void claim_and_release(cudaStream_t stream, cudaStream_t other, int i) {
    if (i % 2 != 0) std::swap(stream, other);
    if (auto held = pool->try_claim(stream)) {
      must(launch_tiny(stream));
      if (i % 3 == 0) held->record_stream(other);
    }
    if (i % 64 == 0) sync_relaxed(stream);
  }

  void retire_and_share(cudaStream_t stream, cudaStream_t /*other*/, int /*i*/) {
    for (int i = 0; i < 8; ++i) {
      must(launch_tiny(stream));
      worker->retire(stream, some_memory());
    }
    worker->retire(some_memory());
    auto const shared = make_stream_shared_by<device_block>(*worker, some_memory());
    must(launch_tiny(stream));
    record_stream(shared, stream);
    static_cast<void>(worker->drain_for(std::chrono::milliseconds(2)));
  }

  void capture_and_destroy(cudaStream_t stream, cudaStream_t /*other*/, int /*i*/) {
    block_pool own = make_pool(2);
    auto const enqueue = [&](stream_ref on) {
      block_lease const held = own.claim(on);
      static_cast<void>(pool->try_claim(on));
      must(launch_tiny(on.get()));
    };
    graph const made = escrow::capture(stream, enqueue, cudaStreamCaptureModeRelaxed);
    graph const copy = made.clone();
    graph_exec exec{made};
    exec.launch(stream);
    exec.update(copy);
    exec.launch(stream);
    own.claim(stream).release();
    static_cast<void>(own.close_for(std::chrono::nanoseconds(0)));
  }

  void build_by_hand(cudaStream_t stream, cudaStream_t /*other*/, int i) {
    kernel const fills{kernel_address(kernel_id::fill)};
    std::size_t const n = 16;
    auto const memory = [] {
      auto its = std::make_shared<device_block>(some_memory());
      int* const data = static_cast<int*>(its->data());
      return std::shared_ptr<int>(std::move(its), data);
    };
    graph built(*worker);
    node const first = build(built).add(kernel_node(fills, {}, memory(), n, i));
    if (auto held = claimed_scratch(stream, 256)) first.add(kernel_node(fills, {}, *held, n, i));
    graph parent(*worker);
    parent.add_child(built);
    graph_exec exec{built};
    exec.launch(stream);
    set(exec, first, kernel_node(fills, {}, memory(), n, i + 1));
    exec.launch(stream);
    graph_exec{parent}.launch(stream);
    first.destroy();
  }

  void run(int wanted) {
    using part = void (CaptureSafety::*)(cudaStream_t, cudaStream_t, int);
    static constexpr std::array<part, 4> parts{
        &CaptureSafety::claim_and_release, &CaptureSafety::retire_and_share,
        &CaptureSafety::capture_and_destroy, &CaptureSafety::build_by_hand};
    std::vector<std::jthread> others;
    for (std::size_t who = 0; who < parts.size(); ++who) {
      others.emplace_back([this, who] {
        owned_stream const stream = make_stream();
        owned_stream const other = make_stream();
        for (int i = 0; !stop.load(std::memory_order_relaxed); ++i) {
          (this->*parts[who])(stream, other, i);
          rounds[who].fetch_add(1, std::memory_order_relaxed);
        }
        sync_relaxed(stream);
        sync_relaxed(other);
      });
    }
    {
      std::vector<std::jthread> capturing;
      for (int i = 0; i < threads_that_capture; ++i) {
        capturing.emplace_back([this, wanted] { capture_all(wanted / threads_that_capture); });
      }
    }
    stop.store(true);
    others.clear();
    EXPECT_TRUE(wait_until([this] { return worker->stats().in_graphs == 0; }));
    pool.reset();
    scratch.reset();
    static_cast<void>(cudaGetLastError());
  }

  [[nodiscard]] std::string what_happened() const {
    std::string result = "the first harm: " + first_harm;
#ifdef ESCROW_TEST_RUNTIME_SIM
    result += "; the last that harmed: " + sim::last_invalidation();
#endif
    return result;
  }

  owned_event event = make_event();
  std::optional<block_pool> pool{make_pool(64)};
  std::optional<scratch_pool> scratch{std::in_place, options(32)};
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, 4> rounds{};
  std::atomic<int> captures{0};
  std::atomic<int> claims{0};
  std::atomic<int> harmed{0};
  std::mutex mutex;  // guards first_harm
  std::string first_harm;
};

TEST_P(CaptureSafety, NotOneOfAllCapturesIsHarmed) {
  int const wanted = is_sanitized ? 1'000 : deep_size(10'000, 100'000);
  run(wanted);
  EXPECT_EQ(harmed, 0) << what_happened();
  EXPECT_GE(captures, wanted);
  EXPECT_GE(claims, wanted / 10) << "the captures hardly ever claimed";
  EXPECT_FALSE(lacks_company()) << "hardly anything went on beside the captures";
  figures found("capture_safety_" + testing::PrintToString(GetParam()));
  found.add("captures", captures.load());
  found.add("harmed", harmed.load());
  found.add("claims in captures", claims.load());
  found.add("rounds of claims beside them", rounds[0].load());
  found.add("rounds of retiring and sharing", rounds[1].load());
  found.add("rounds of capturing, updating, destroying", rounds[2].load());
  found.add("rounds of graphs built by hand", rounds[3].load());
  found.add("reclaimed by the worker", worker->stats().reclaimed);
  found.write();
}

// The test's own test: it sees what it is there to see.
TEST_P(CaptureSafety, AQueryOfAnotherThreadInTheDefaultModeHarmsCapturesInGlobalModeOnly) {
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(capture_one(one, false, [this] { capture_beside_a_query(one); }),
              GetParam() != cudaStreamCaptureModeGlobal)
        << what_happened();
  }
  pool.reset();
  scratch.reset();
}

INSTANTIATE_TEST_SUITE_P(EveryMode, CaptureSafety, testing::ValuesIn(capture_modes),
                         [](auto const& given) { return testing::PrintToString(given.param); });

class IdentityStress : public world {};

// Plain handles are given to an exec, to an exec's update, and to a graph that is asked what it
// holds: each time that is found, and no call of the other thread fails.
TEST_F(IdentityStress, OfPlainHandlesIsFoundBesideAThreadThatSynchronizesTheDevice) {
  std::vector<owned_graph> plain;  // captured before: the other thread kills each capture
  for (int i = 0; i < 16; ++i) {
    plain.push_back(captured_plainly([&](cudaStream_t on) {
      worker->retire(on, std::make_unique<int>(i));
      must(launch_tiny(on));
    }));
  }
  int wrong = 0;
  int const wanted = is_sanitized ? 500 : deep_size(2'000, 100'000);
  synchronizing_thread other;
  for (int i = 0; i < wanted; ++i) {
    owned_graph& handle = plain[static_cast<std::size_t>(i) % plain.size()];
    graph_exec exec(handle.get());
    if (!exec.is_bare() || exec.held().owners != 1) ++wrong;
    if (i % 16 == 0) {
      exec.update(handle.get());
      exec.launch(two.get());
    }
    graph ours(handle.release());
    if (ours.held().owners != 1) ++wrong;
    *handle.out() = ours.detach();
  }
  other.stop();
  EXPECT_EQ(other.failed(), 0);
  EXPECT_GT(other.synchronized(), 0);
  EXPECT_EQ(wrong, 0);
  for (auto const& each : plain) EXPECT_EQ(node_count(each), 1U);
  figures found("identity_stress");
  found.add("uses of plain handles", wanted);
  found.add("synchronizations of the device", other.synchronized());
  found.add("of these failed", other.failed());
  found.write();
}

}  // namespace
}  // namespace escrow::test
