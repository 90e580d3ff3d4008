// What the tests of lifetimes and launch order share: they use the public interface alone.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <utility>

#include "../pool/capture_fixture.hpp"
#include "build_graph.hpp"
#include "owner.hpp"
#include "owners.hpp"

namespace escrow::test {

/// A test with a deleter, a flag that keeps launches in flight, and streams. Graphs, execs and
/// pools must end before the test's body does; launches may go on.
class lifetime_test : public captured_pool_test {
 protected:
  [[nodiscard]] int* started() { return cells.data(); }
  [[nodiscard]] int* ended() { return cells.data() + 1; }
  [[nodiscard]] bool have_started(int count) {
    return wait_until([&] { return cells.load(0) == count; });
  }
  [[nodiscard]] bool have_ended(int count) {
    return wait_until([&] { return cells.load(1) == count; });
  }

  /// A graph captured on stream `one`: `enqueue(stream)`.
  template <class Enqueue>
  [[nodiscard]] graph captured(Enqueue&& enqueue) {
    return escrow::capture(stream_ref(one.get()), [&](stream_ref on) { enqueue(on.get()); });
  }
  /// The same, whose launches count themselves as started and wait for the flag before they count
  /// themselves as ended.
  template <class Enqueue>
  [[nodiscard]] graph captured_behind_flag(Enqueue&& enqueue) {
    return captured([&](cudaStream_t on) {
      must(launch_add(on, started(), 1));
      must(launch_wait_flag(on, flag.get()));
      enqueue(on);
      must(launch_add(on, ended(), 1));
    });
  }
  /// Captures more into `graph`, with a plain capture: `enqueue(stream)`.
  template <class Enqueue>
  void capture_into(cudaGraph_t graph, Enqueue&& enqueue) {
    must(cudaStreamBeginCaptureToGraph(one, graph, nullptr, nullptr, 0,
                                       cudaStreamCaptureModeRelaxed));
    std::forward<Enqueue>(enqueue)(one.get());
    cudaGraph_t ended_with = nullptr;
    must(cudaStreamEndCapture(one, &ended_with));
    must(ended_with == graph, "the capture ended with the graph it was given");
  }

  /// Retires a probe.
  void retire(cudaStream_t stream, fate_ptr const& fate) { worker->retire(stream, probe(fate)); }
  /// Of a probe whose destructor sets `is_blocking` and blocks the worker until `may_end`.
  [[nodiscard]] fate_ptr make_blocking() {
    return make_fate([this] {
      is_blocking.store(true);
      EXPECT_TRUE(wait_until([this] { return may_end.load(); }, 4 * generous));
    });
  }
  /// Whether the owner still exists after all that can be reclaimed now was reclaimed.
  [[nodiscard]] bool is_kept(fate_ptr const& fate) {
    static_cast<void>(worker->drain_for(std::chrono::milliseconds(20)));
    return !fate->was_destroyed();
  }
  /// Whether the only slot of `pool` stays with a graph, an exec or a launch.
  [[nodiscard]] bool is_kept(block_pool& pool) {
    static_cast<void>(worker->drain_for(std::chrono::milliseconds(20)));
    return !pool.try_claim(asking).has_value();
  }
  /// Whether the owner is destroyed soon, just once.
  [[nodiscard]] bool is_released(fate_ptr const& fate) {
    return fate->wait() && fate->times() == 1;
  }
  [[nodiscard]] bool is_released(block_pool& pool) {
    return wait_until([&] { return pool.try_claim(asking).has_value(); });
  }

  void sync_all() {
    sync(one);
    sync(two);
    sync(three);
  }

  void TearDown() override {
    may_end.store(true);
    flag.raise();
    sync_all();
    captured_pool_test::TearDown();
    EXPECT_TRUE(wait_until([this] { return worker->stats().in_graphs == owed; }))
        << worker->stats().in_graphs << " are counted as held by graphs, expected " << owed;
    EXPECT_EQ(mismatches.load(), 0) << "two uses of a resource overlapped";
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }

  std::uint64_t owed = 0;  // what graphs that were leaked on purpose keep
  std::atomic<bool> is_blocking{false};
  std::atomic<bool> may_end{false};
  pinned_flag flag;
  pinned_ints cells{4};
  owned_stream one = make_stream();
  owned_stream two = make_stream();
  owned_stream three = make_stream();
  owned_stream asking = make_stream();  // for claims that only look whether a slot is free
};

}  // namespace escrow::test
