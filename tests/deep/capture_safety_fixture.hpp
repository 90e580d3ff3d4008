// Threads that capture, and threads beside them that do what harms a capture if it is not done
// right.
#pragma once

#include <array>
#include <atomic>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../pool/capture_fixture.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

inline constexpr int threads = 4;      // that capture, and as many beside them
inline constexpr int rounds_min = 20;  // of each thread beside them, for the test to mean anything

/// For the test's own calls that a capture does not allow.
template <class Call>
auto relaxed(Call call) {
  thread_mode_scope const scope{cudaStreamCaptureModeRelaxed};
  return call();
}

class capture_safety_test : public captured_pool_test,
                            public testing::WithParamInterface<cudaStreamCaptureMode> {
 protected:
  // Whether the capture came to a good end.
  [[nodiscard]] bool capture_one(cudaStream_t stream, int i) {
    bool is_harmed = false;
    must(cudaStreamBeginCapture(stream, GetParam()));
    try {
      is_planted ? capture_beside_a_question(stream) : use_in_capture(stream, i);
    } catch (std::exception const& error) {
      is_harmed = true;
      note(error.what());
    }
    owned_graph made;
    if (cudaStreamEndCapture(stream, made.out()) != cudaSuccess) is_harmed = true;
    if (is_harmed) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    if (i % 16 == 0) {
      graph_exec exec{made.get()};
      exec.launch(stream);
      made.reset();  // both end in flight
    }
    return true;
  }

  // What nobody may do meanwhile: another thread, in the default mode, asks about an event. While
  // this one waits: a driver crashes if a capture is killed just as its own thread goes on with it.
  void capture_beside_a_question(cudaStream_t stream) {
    std::thread([this] { static_cast<void>(cudaEventQuery(event)); }).join();
    escrow::check(launch_tiny(stream), "a kernel");
  }

  // Everything that a library may do in a capture.
  void use_in_capture(cudaStream_t stream, int i) {
    for (int call = 0; call < 2; ++call) {
      if (auto held = pool->try_claim(stream)) {
        escrow::check(launch_fill(stream, held->get().data(), block::length, i), "a kernel");
        claimed.fetch_add(1, std::memory_order_relaxed);
      }
    }
    static_cast<void>(claimed_scratch(stream, std::size_t{256} << (i % 4)));
    if (i % 8 == 0) worker->retire(stream, relaxed([] { return device_block(256); }));
    worker->retire(stream, std::make_unique<int>(i));
    auto const shared = make_stream_shared_by<int>(*worker, i);
    escrow::check(launch_tiny(stream), "a kernel");
    record_stream(shared, stream);
  }

  // Nothing if graphs have them all.
  [[nodiscard]] std::optional<lease<device_block>> claimed_scratch(cudaStream_t stream,
                                                                   std::size_t bytes) {
    try {
      return scratch->claim(stream, bytes);
    } catch (pool_exhausted const&) {
      return {};
    }
  }

  // What a thread of the capturing ones does: its share of the captures, and more until all others
  // have had their turns, on a machine that is busy.
  void capture_all(int wanted) {
    owned_stream const stream = make_stream();
    auto const end = std::chrono::steady_clock::now() + std::chrono::minutes{1};
    for (int i = 0; i < wanted || (lacks_company() && std::chrono::steady_clock::now() < end);
         ++i) {
      if (!capture_one(stream, i)) harmed.fetch_add(1, std::memory_order_relaxed);
      captured.fetch_add(1, std::memory_order_relaxed);
      if (i % 256 != 0) continue;
      relaxed([&] { sync(stream); });
      static_cast<void>(worker->drain_for(std::chrono::milliseconds(100)));  // never far behind
    }
    relaxed([&] { sync(stream); });
  }
  [[nodiscard]] bool lacks_company() const {
    for (auto const& each : rounds) {
      if (each.load(std::memory_order_relaxed) < rounds_min) return true;
    }
    return false;
  }

  void claim_and_release() {
    owned_stream const one = make_stream();
    owned_stream const other = make_stream();
    beside(0, [&](int i) {
      cudaStream_t const stream = i % 2 == 0 ? one : other;
      if (auto held = pool->try_claim(stream)) {
        must(launch_tiny(stream));
        if (i % 3 == 0) held->record_stream(i % 2 == 0 ? other : one);
      }
      if (i % 64 == 0) relaxed([&] { sync(stream); });
    });
    relaxed([&] { sync(one), sync(other); });
  }

  void retire_and_share() {
    owned_stream const stream = make_stream();
    beside(1, [&](int) {
      for (int i = 0; i < 8; ++i) {
        must(launch_tiny(stream));
        worker->retire(stream, relaxed([] { return device_block(256); }));
      }
      worker->retire(relaxed([] { return device_block(256); }));
      auto const shared =
          make_stream_shared_by<device_block>(*worker, relaxed([] { return device_block(256); }));
      must(launch_tiny(stream));
      record_stream(shared, stream);
      static_cast<void>(worker->drain_for(std::chrono::milliseconds(2)));
    });
    relaxed([&] { sync(stream); });
  }

  void capture_and_destroy() {
    owned_stream const stream = make_stream();
    beside(2, [&](int) {
      block_pool own = make_pool(2);
      auto const enqueue = [&](stream_ref on) {
        block_lease const held = own.claim(on);
        static_cast<void>(pool->try_claim(on));
        must(launch_tiny(on.get()));
      };
      graph const made = escrow::capture(stream.get(), enqueue, cudaStreamCaptureModeRelaxed);
      graph const copy = made.clone();
      graph_exec exec{made};
      exec.launch(stream.get());
      exec.update(copy);
      exec.launch(stream.get());
      own.claim(stream).release();
      static_cast<void>(own.close_for(std::chrono::nanoseconds{0}));
    });
    relaxed([&] { sync(stream); });
  }

  void build_by_hand() {
    owned_stream const stream = make_stream();
    kernel const fills{kernel_address(kernel_id::fill)};
    std::size_t const n = 16;
    auto const memory = [] {
      auto block = std::make_shared<device_block>(relaxed([] { return device_block(256); }));
      int* const data = static_cast<int*>(block->data());
      return std::shared_ptr<int>(std::move(block), data);
    };
    beside(3, [&](int i) {
      graph built(*worker);
      node const first = build(built).add(kernel_node(fills, {}, memory(), n, i));
      if (auto held = claimed_scratch(stream, 256)) first.add(kernel_node(fills, {}, *held, n, i));
      graph parent(*worker);
      parent.add_child(built);
      graph_exec exec{built};
      exec.launch(stream.get());
      set(exec, first, kernel_node(fills, {}, memory(), n, i + 1));
      exec.launch(stream.get());
      graph_exec{parent}.launch(stream.get());
      first.destroy();
    });
    relaxed([&] { sync(stream); });
  }

  // Does `round` again and again, until told to stop.
  template <class Round>
  void beside(std::size_t who, Round round) {
    for (int i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      round(i);
      rounds[who].fetch_add(1, std::memory_order_relaxed);
    }
  }

  void run(int captures) {
    std::vector<std::thread> others;
    others.emplace_back([this] { claim_and_release(); });
    others.emplace_back([this] { retire_and_share(); });
    others.emplace_back([this] { capture_and_destroy(); });
    others.emplace_back([this] { build_by_hand(); });
    std::vector<std::thread> capturing;
    for (int i = 0; i < threads; ++i) {
      capturing.emplace_back([this, captures] { capture_all(captures / threads); });
    }
    for (std::thread& each : capturing) each.join();
    stop.store(true);
    for (std::thread& each : others) each.join();
    EXPECT_TRUE(wait_until([this] { return worker->stats().in_graphs == 0; }));
    pool.reset();
    scratch.reset();
    static_cast<void>(cudaGetLastError());
  }

  void note(std::string text) {
    std::lock_guard const lock{mutex};
    if (first_harm.empty()) first_harm = std::move(text);
  }
  [[nodiscard]] std::string what_happened() const {
    std::string result = "the first harm: " + first_harm;
#ifdef ESCROW_TEST_RUNTIME_SIM
    result += "; the last that harmed: " + sim::last_invalidation();
#endif
    return result;
  }

  bool is_planted = false;
  owned_event event = make_event();
  std::optional<block_pool> pool{make_pool(64)};
  std::optional<scratch_pool> scratch{std::in_place, options(32)};
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, 4> rounds{};
  std::atomic<int> captured{0};
  std::atomic<int> claimed{0};
  std::atomic<int> harmed{0};
  std::mutex mutex;  // guards first_harm
  std::string first_harm;
};

}  // namespace escrow::test
