// SPDX-License-Identifier: Apache-2.0
// What tests of the library share: streams, a flag that holds work back, a deleter, pools, graphs,
// and owners whose end is watched. What is included here is there for the tests, too.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/graph_registry.hpp>
#include <escrow/pool.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "build_graph.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"
#include "status.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

/// What a graph can hold: the only slot of a pool, and an owner.
struct cargo {
  block_pool pool;
  fate_ptr fate = make_fate();
  bool has_slot = false;  // whether a graph was given the slot
};

/// The same with another value of one option.
template <class Value>
[[nodiscard]] pool_options with(pool_options of, Value pool_options::*option,
                                std::type_identity_t<Value> value) {
  of.*option = std::move(value);
  return of;
}

/// Expects that `call` throws `Exception`, with all of `parts` in its text, which it returns.
template <class Exception, class Call>
std::string expect_error(Call const& call, std::vector<std::string> const& parts) {
  std::string const text = message_of<Exception>([&] { static_cast<void>(call()); });
  for (std::string const& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  return text;
}

/// Expects a cuda_error with these parts in its text, and that CUDA knows of no error then.
template <class Call>
void expect_explained(Call const& call, std::vector<std::string> const& parts) {
  expect_error<cuda_error>(call, parts);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

/// A usage_error: what its text begins with, what else is in it, and how it is made.
struct misuse {
  std::string call;
  std::vector<std::string> parts;
  std::function<void()> make;
};
/// Whether errors of this function may not name the caller's line, since it takes none.
inline bool takes_no_line(std::string_view call) {
  for (std::string_view const each :
       {"lease::", "hoisted::enter", "hoisted::leave", "hoisted::~hoisted"}) {
    if (call.starts_with(each)) return true;
  }
  return false;
}
/// Expects each of them, at a line of a test, and that CUDA knows of no error.
inline void expect_refused(std::vector<misuse> const& all) {
  for (misuse const& each : all) {
    std::string text = expect_error<usage_error>(each.make, each.parts);
    if (!takes_no_line(each.call)) {
      std::string const place = text.substr(0, text.find(": ") + 2);
      EXPECT_NE(place.find("tests/"), std::string::npos) << text;
      text.erase(0, place.size());
    }
    EXPECT_EQ(text.find(each.call), 0U) << text << " is not of " << each.call;
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << text;
  }
}

/// A test with all of it. Pools, graphs and execs that it makes must end before its body does;
/// launches may go on. The end of the test checks that nothing was lost, that no two uses of a
/// resource overlapped, and that no error was reported.
class world : public testing::Test {
 protected:
  // Pools.

  [[nodiscard]] pool_options options(std::size_t slots_max) {
    pool_options result;
    result.slots_max = slots_max;
    result.label = "blocks";
    result.deleter = worker.get();
    return result;
  }
  [[nodiscard]] block_pool make_pool(pool_options const& given) {
    return block_pool{given, [this] { return block{counts}; }};
  }
  [[nodiscard]] block_pool make_pool(std::size_t slots_max) {
    return make_pool(options(slots_max));
  }
  /// Closes a pool whose slots are all back. Its resources are freed before the next kernel that
  /// runs until a flag is raised: cudaFree would wait for that, and other calls for cudaFree.
  void end(auto& pool) {
    EXPECT_TRUE(pool.close_for(generous).empty());
    EXPECT_TRUE(drained());
  }
  [[nodiscard]] int made() const { return counts.made.load(std::memory_order_relaxed); }

  // Work, as a library enqueues it that knows nothing of captures.

  void hold_up(cudaStream_t stream) { must(launch_wait_flag(stream, flag.get())); }
  void retire(cudaStream_t stream, fate_ptr const& fate) { worker->retire(stream, probe(fate)); }
  /// Claims, uses and releases a slot.
  void use(block_pool& pool, cudaStream_t stream, int value = 1) {
    library_work(pool, stream, value, mismatches);
  }
  [[nodiscard]] cargo make_cargo() { return cargo{.pool = make_pool(1)}; }
  /// Uses the slot and retires the owner.
  void load(cargo& taken, cudaStream_t stream, int value = 1) {
    use(taken.pool, stream, value);
    taken.has_slot = true;
    retire(stream, taken.fate);
  }
  /// Of an owner whose destructor sets `is_blocking` and blocks the worker until `may_end`.
  [[nodiscard]] fate_ptr make_blocking() {
    return make_fate([this] {
      is_blocking.store(true);
      EXPECT_TRUE(wait_until([this] { return may_end.load(); }, 4 * generous));
    });
  }
  /// From now until `may_end`, the worker destroys nothing.
  void block_worker() {
    worker->retire(probe(make_blocking()));
    must(wait_until([this] { return is_blocking.load(); }), "the worker is blocked");
  }

  // Graphs. A launch counts itself in cells 1 and 2, where it says so.

  /// A graph captured on stream `one`: `enqueue(stream)`.
  [[nodiscard]] graph captured(auto&& enqueue) {
    return escrow::capture(stream_ref(one.get()), [&](stream_ref on) { enqueue(on.get()); });
  }
  /// The same, with a kernel that adds 1 to the first cell.
  [[nodiscard]] graph captured(cargo& taken) {
    return captured([&](cudaStream_t on) {
      load(taken, on);
      must(launch_add(on, cells.data(), 1));
    });
  }
  /// What captured(cargo) gives, but it holds nothing. It has the same nodes and edges.
  [[nodiscard]] graph captured_without_cargo() {
    return captured([&](cudaStream_t on) {
      must(launch_fill(on, cells.data() + 4, 4, 1));
      must(launch_check(on, cells.data() + 4, 4, 1, mismatches.data()));
      must(launch_add(on, cells.data(), 1));
    });
  }
  /// The same by plain calls, as a program does that knows nothing of Escrow.
  [[nodiscard]] owned_graph captured_plainly(auto&& enqueue) {
    test::capture open{one, cudaStreamCaptureModeGlobal};
    enqueue(one.get());
    must(open.end());
    return std::move(open.graph());
  }
  [[nodiscard]] owned_graph captured_plainly(cargo& taken) {
    return captured_plainly([&](cudaStream_t on) {
      load(taken, on);
      must(launch_add(on, cells.data(), 1));
    });
  }
  /// A graph whose launches count themselves as started, and wait for the flag.
  [[nodiscard]] graph captured_behind_flag(auto&& enqueue) {
    return captured([&](cudaStream_t on) {
      must(launch_add(on, started(), 1));
      hold_up(on);
      enqueue(on);
      must(launch_add(on, ended(), 1));
    });
  }
  [[nodiscard]] graph captured_behind_flag(cargo& taken) {
    return captured_behind_flag([&](cudaStream_t on) { load(taken, on); });
  }
  /// Captures more into `graph`, behind `after`, by plain calls.
  void capture_into(cudaGraph_t graph, auto&& enqueue, cudaGraphNode_t const* after = nullptr,
                    std::size_t count = 0) {
    capture_to_graph(
        one, graph, [&] { enqueue(one.get()); }, after, count);
  }

  [[nodiscard]] int* started() { return cells.data() + 1; }
  [[nodiscard]] int* ended() { return cells.data() + 2; }
  [[nodiscard]] bool have_started(int count) {
    return wait_until([&] { return cells.load(1) == count; });
  }
  [[nodiscard]] bool have_ended(int count) {
    return wait_until([&] { return cells.load(2) == count; });
  }
  /// A launch waits for the flag: what `launch` launches starts only after it. Raises the flag; so
  /// many launches end.
  void expect_ordered(std::function<void()> const& launch, int launches = 2) {
    ASSERT_TRUE(have_started(1));
    launch();
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1; })) << "the launches overlap";
    EXPECT_EQ(cells.load(2), 0);
    flag.raise();
    EXPECT_TRUE(have_ended(launches));
  }
  /// What `launch` launches starts although a launch waits for the flag. Raises the flag.
  void expect_concurrent(std::function<void()> const& launch) {
    ASSERT_TRUE(have_started(1));
    launch();
    EXPECT_TRUE(have_started(2)) << "the second launch waits for the first";
    EXPECT_EQ(cells.load(2), 0);
    flag.raise();
    EXPECT_TRUE(have_ended(2));
  }
  /// Launches, and waits for the end.
  void run(graph_exec& exec) {
    exec.launch(two);
    sync(two);
  }
  void run(graph const& source) {
    graph_exec exec(source);
    run(exec);
  }
  void sync_all() {
    for (cudaStream_t const each : {one.get(), two.get(), three.get()}) sync(each);
  }

  // Whether owners and slots are still kept. A pool is asked for its only slot.

  [[nodiscard]] bool drained() { return worker->drain_for(generous); }
  /// All that can be reclaimed now has been: false where something is in flight.
  [[nodiscard]] bool drains_soon() { return worker->drain_for(std::chrono::milliseconds(20)); }
  [[nodiscard]] static bool is_out(fate_ptr const& fate) { return !fate->was_destroyed(); }
  [[nodiscard]] bool is_out(block_pool& pool) { return !pool.try_claim(asking).has_value(); }
  [[nodiscard]] bool is_out(cargo& taken) {
    return is_out(taken.fate) && (!taken.has_slot || is_out(taken.pool));
  }
  /// Soon so many slots of the pool can be claimed, at a time.
  [[nodiscard]] bool can_claim(block_pool& pool, std::size_t slots) {
    std::vector<block_lease> claimed;
    return wait_until([&] {
      while (auto each = pool.try_claim(asking)) claimed.push_back(std::move(*each));
      return claimed.size() == slots;
    });
  }
  /// Still kept after all that can be reclaimed now was reclaimed.
  [[nodiscard]] bool is_kept(auto&& kept) {
    static_cast<void>(drains_soon());
    return is_out(kept);
  }
  /// The same for a while, where something might come back late.
  [[nodiscard]] bool stays_kept(auto&& kept) {
    return stays_false([&] { return !is_out(kept); });
  }
  /// Released soon; an owner is destroyed just once, by the worker.
  [[nodiscard]] static bool is_released(fate_ptr const& fate) {
    return fate->wait() && fate->times() == 1 && fate->thread_name == "escrow";
  }
  [[nodiscard]] bool is_released(block_pool& pool) {
    return wait_until([&] { return !is_out(pool); });
  }
  [[nodiscard]] bool is_released(cargo& taken) {
    return is_released(taken.fate) && (!taken.has_slot || is_released(taken.pool));
  }

  /// Whether, soon, no user object is alive: what holds something then does so without any. Always
  /// true on a GPU, which does not tell.
  [[nodiscard]] static bool has_no_user_object() {
#ifdef ESCROW_TEST_RUNTIME_SIM
    return wait_until([] { return sim::alive().user_objects == 0; });
#else
    return true;
#endif
  }
  /// `exec` alone holds `taken`: its graph must be destroyed. Launches it twice and ends it.
  void expect_only_holder(std::optional<graph_exec>& exec, cargo& taken) {
    exec->launch(two);
    exec->launch(three);
    sync_all();
    EXPECT_TRUE(stays_kept(taken));
    exec.reset();
    EXPECT_TRUE(is_released(taken));
  }
  /// The same for an exec without user objects.
  void expect_bare_only_holder(std::optional<graph_exec>& exec, cargo& taken) {
    EXPECT_TRUE(exec->is_bare());
    EXPECT_TRUE(has_no_user_object()) << "a user object is in an exec that says it is bare";
    expect_only_holder(exec, taken);
  }

  void TearDown() override {
    may_end.store(true);
    flag.raise();
    sync_all();
    // What is destroyed later may call cudaFree, which waits for the kernels of the next test.
    if (worker != nullptr) {
      EXPECT_TRUE(drained());
    }
    EXPECT_TRUE(wait_until([this] { return counts.alive() == lost; }))
        << counts.alive() << " resources are left of " << made() << ", expected " << lost;
    if (!errors_expected) {
      EXPECT_EQ(errors->size(), 0U) << errors->all();
    }
    EXPECT_EQ(mismatches.load(), 0) << "two uses of a resource overlapped";
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    if (worker != nullptr) expect_nothing_in_graphs();
  }

  tally counts;            // of the blocks of pools
  int lost = 0;            // blocks that are never freed, on purpose
  std::uint64_t owed = 0;  // what graphs that were leaked on purpose keep
  bool errors_expected = false;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::atomic<bool> is_blocking{false};
  std::atomic<bool> may_end{false};
  pinned_flag flag;
  pinned_ints cells{8};
  pinned_ints mismatches;
  owned_stream one = make_stream();
  owned_stream two = make_stream();
  owned_stream three = make_stream();
  owned_stream asking = make_stream();  // for claims that only look whether a slot is free
  std::unique_ptr<deleter> worker = make_deleter();

 private:
  [[nodiscard]] std::unique_ptr<deleter> make_deleter() {
    must(cudaSetDevice(0));
    deleter_options chosen;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    return std::make_unique<deleter>(chosen);
  }
  /// Also, with all graphs and execs destroyed, none is registered any more, unless something is
  /// kept for ever, in this test or in one before it.
  void expect_nothing_in_graphs() const {
    EXPECT_TRUE(wait_until([this] { return worker->stats().in_graphs == owed; }))
        << worker->stats().in_graphs << " are counted as held by graphs, expected " << owed;
    static bool anything_lost = false;
    anything_lost = anything_lost || lost != 0 || owed != 0 || worker->stats().leaked != 0;
    if (anything_lost) return;
    EXPECT_TRUE(wait_until([] { return graph_registry::global().is_empty(); }))
        << "a graph that was destroyed is still registered";
  }
};

/// The same with a stream of a second device. Skips where there is one device.
class world_of_two_devices : public world {
 protected:
  void SetUp() override {
    if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
    device_scope const there(1);
    elsewhere = make_stream();
  }
  void TearDown() override {
    flag.raise();
    if (elsewhere) sync(elsewhere);
    world::TearDown();
  }

  owned_stream elsewhere;
};

}  // namespace escrow::test
