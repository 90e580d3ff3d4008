// What the tests of hoisting share: cargo that a graph holds, ways to load it, and whether it is
// still held.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <escrow/deleter.hpp>
#include <escrow/detail/reference_set.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../pool/capture_fixture.hpp"
#include "build_graph.hpp"
#include "owners.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

/// How many user objects are alive; nothing on a GPU, which does not tell.
[[nodiscard]] inline std::optional<std::size_t> user_objects_alive() {
#ifdef ESCROW_TEST_RUNTIME_SIM
  return sim::alive().user_objects;
#else
  return std::nullopt;
#endif
}

/// Whether, soon, no user object is alive: what holds something then does so without any. Always
/// true on a GPU, which does not tell.
[[nodiscard]] inline bool no_user_object_is_left() {
  return wait_until([] { return user_objects_alive().value_or(0) == 0; });
}

/// What a graph can hold: the only slot of a pool, and an owner.
struct cargo {
  block_pool pool;
  fate_ptr fate = make_fate();
  bool has_slot = false;  // whether a graph was given the slot too

  [[nodiscard]] bool owner_is_gone() const { return fate->was_destroyed(); }
  /// Whether the slot can be claimed, for work on `stream`.
  [[nodiscard]] bool slot_is_back(cudaStream_t stream) {
    return pool.try_claim(stream).has_value();
  }
};

/// A test with cargo, a flag that holds launches in flight, and three streams. What it makes must
/// be gone at the end of its body; launches may go on.
class hoist_test : public captured_pool_test {
 protected:
  [[nodiscard]] cargo make_cargo() { return cargo{.pool = make_pool(1)}; }

  /// Library code that knows nothing of graphs: uses the slot, gives it back, retires the owner.
  void load(cargo& taken, cudaStream_t stream, int value = 1) {
    library_work(taken.pool, stream, value, mismatches);
    taken.has_slot = true;
    load_owner(taken, stream);
  }
  void load_owner(cargo& taken, cudaStream_t stream) { worker->retire(stream, probe(taken.fate)); }
  /// The same for a graph that was built by hand: an owner alone.
  void load_owner_by_hand(cargo& taken, cudaGraph_t graph) {
    worker->retire(graph, probe(taken.fate));
  }

  /// A graph captured with escrow::capture that holds `taken` and adds 1 to the first cell.
  [[nodiscard]] graph captured(cargo& taken) {
    return escrow::capture(one, [&](stream_ref stream) {
      load(taken, stream.get());
      must(launch_add(stream.get(), cells.data(), 1));
    });
  }
  /// The same, whose launch waits for the flag before it uses the cargo.
  [[nodiscard]] graph captured_behind_flag(cargo& taken) {
    return escrow::capture(one, [&](stream_ref stream) {
      must(launch_wait_flag(stream.get(), flag.get()));
      load(taken, stream.get());
      must(launch_add(stream.get(), cells.data(), 1));
    });
  }
  /// As captured(), by a caller who knows nothing of Escrow.
  [[nodiscard]] owned_graph captured_plainly(cargo& taken) {
    test::capture open{one, cudaStreamCaptureModeGlobal};
    load(taken, one);
    must(launch_add(one, cells.data(), 1));
    must(open.end());
    return std::move(open.graph());
  }
  /// What captured() gives, but holding nothing. It has the same nodes and edges.
  [[nodiscard]] graph captured_empty_handed() {
    return escrow::capture(one, [&](stream_ref stream) {
      must(launch_fill(stream.get(), idle_block.data(), block::length, 1));
      must(launch_check(stream.get(), idle_block.data(), block::length, 1, mismatches.data()));
      must(launch_add(stream.get(), cells.data(), 1));
    });
  }
  /// Captures more into `graph`, in one piece: `enqueue(stream)`.
  template <class Enqueue>
  void capture_into(cudaGraph_t graph, Enqueue&& enqueue, cudaGraphNode_t const* after = nullptr,
                    std::size_t count = 0) {
    must(cudaStreamBeginCaptureToGraph(one, graph, after, nullptr, count,
                                       cudaStreamCaptureModeRelaxed));
    std::forward<Enqueue>(enqueue)(one.get());
    cudaGraph_t ended = nullptr;
    must(cudaStreamEndCapture(one, &ended));
    must(ended == graph, "the capture ended with the graph it was given");
  }

  /// Nothing of `taken` has come back, though all that was let go so far has been reclaimed, as
  /// far as the GPU is done with it.
  [[nodiscard]] testing::AssertionResult is_kept(cargo& taken) {
    static_cast<void>(worker->drain_for(std::chrono::milliseconds(20)));
    return verdict(taken);
  }
  /// The same for a while, where something might come back late.
  [[nodiscard]] testing::AssertionResult stays_kept(cargo& taken) {
    static_cast<void>(stays_false([&] { return !verdict(taken); }));
    return verdict(taken);
  }
  /// All of `taken` comes back, the owner destroyed just once, by the worker.
  [[nodiscard]] testing::AssertionResult comes_back(cargo& taken) {
    if (!taken.fate->wait()) return testing::AssertionFailure() << "the owner was not destroyed";
    if (taken.fate->times() != 1)
      return testing::AssertionFailure() << "destroyed " << taken.fate->times() << " times";
    if (taken.fate->thread_name != "escrow")
      return testing::AssertionFailure() << "destroyed on thread " << taken.fate->thread_name;
    if (taken.has_slot && !wait_until([&] { return taken.slot_is_back(asking); }))
      return testing::AssertionFailure() << "the slot did not come back";
    return testing::AssertionSuccess();
  }

  /// Whether everything that was retired and released comes back at once: false with something in
  /// flight.
  [[nodiscard]] bool drains_soon() { return worker->drain_for(std::chrono::milliseconds(50)); }

  /// `exec` is bare and is the only one that holds `taken`: its graph must be gone. Ends it.
  void expect_bare_sole_holder(std::optional<graph_exec>& exec, cargo& taken) {
    EXPECT_TRUE(exec->is_bare());
    EXPECT_TRUE(no_user_object_is_left()) << "a user object is in an exec that says it is bare";
    expect_sole_holder(exec, taken);
  }
  /// The same for an exec that may have user objects.
  void expect_sole_holder(std::optional<graph_exec>& exec, cargo& taken) {
    EXPECT_TRUE(stays_kept(taken));
    exec->launch(two);
    exec->launch(three);
    sync_all();
    EXPECT_TRUE(stays_kept(taken));
    exec.reset();
    EXPECT_TRUE(comes_back(taken));
  }

  void sync_all() {
    sync(one);
    sync(two);
    sync(three);
  }

  void TearDown() override {
    flag.raise();
    sync_all();
    captured_pool_test::TearDown();
    expect_nothing_owed();
    EXPECT_EQ(mismatches.load(), 0) << "a resource was used by two at a time, or too late";
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }

  pinned_flag flag;
  pinned_ints cells{8};
  device_ints idle_block{block::length};  // what captured_empty_handed() works on
  owned_stream one = make_stream();
  owned_stream two = make_stream();
  owned_stream three = make_stream();
  owned_stream asking = make_stream();  // for claims that only look whether a slot is back

 private:
  /// With all graphs and execs gone nothing is noted any more, unless something is kept for ever,
  /// in this test or in one before it.
  void expect_nothing_owed() {
    static bool anything_lost = false;
    anything_lost = anything_lost || lost != 0;
    if (anything_lost) return;
    EXPECT_TRUE(wait_until([] { return graph_registry::global().is_empty(); }))
        << "a graph that is gone is still noted";
    if (worker == nullptr) return;
    EXPECT_TRUE(wait_until([this] { return worker->stats().in_graphs == 0; }))
        << worker->stats().in_graphs << " are owed by graphs that are gone";
    EXPECT_EQ(worker->stats().leaked, 0U);
  }
  [[nodiscard]] testing::AssertionResult verdict(cargo& taken) {
    if (taken.owner_is_gone()) return testing::AssertionFailure() << "the owner is gone";
    if (taken.has_slot && taken.slot_is_back(asking))
      return testing::AssertionFailure() << "the slot is back";
    return testing::AssertionSuccess();
  }
};

}  // namespace escrow::test
