// SPDX-License-Identifier: Apache-2.0
// What tests of pools add to the shared world: slots whose work is held back, what comes next on
// them, and calls that are refused.
#pragma once

#include "world.hpp"

namespace escrow::test {

/// Invalidates the capture of `capturing`.
inline void invalidate(cudaStream_t capturing) {
  EXPECT_EQ(cudaStreamQuery(capturing), cudaErrorStreamCaptureUnsupported);
  static_cast<void>(cudaGetLastError());
}

/// Pieces of that memory, one behind the other without gaps; `all` outlives what uses them.
[[nodiscard]] inline memory_source pieces_of(device_block const& all) {
  auto const next = std::make_shared<std::byte*>(static_cast<std::byte*>(all.data()));
  return {.allocate =
              [next](void** address, std::size_t bytes) {
                *address = std::exchange(*next, *next + bytes);
                return cudaSuccess;
              },
          .free = [](void*) { return cudaSuccess; }};
}

/// Of a device that need not be the current one.
[[nodiscard]] inline owned_stream make_stream_of(int device) {
  device_scope const there(device);
  return make_stream();
}

class pool_world : public world {
 protected:
  /// Work that ends when the flag is raised and leaves `value` behind.
  void keep_busy(block_lease& held, cudaStream_t stream, int value = 7) {
    hold_up(stream);
    fill(held, stream, value);
  }
  /// A slot is claimed, used so and released.
  void use_behind_flag(block_pool& pool, cudaStream_t stream, int value = 7) {
    block_lease held = pool.claim(stream);
    keep_busy(held, stream, value);
  }
  /// The pool's only slot serves `stream` next, after its work before, which is held back. Raises
  /// the flag.
  void expect_next_waits(block_pool& pool, cudaStream_t stream, int value = 7) {
    block_lease next = pool.claim(stream);
    check(next, stream, value, mismatches);
    EXPECT_TRUE(stays_busy(stream)) << "used before its work is done";
    flag.raise();
    sync(stream);
    EXPECT_EQ(mismatches.load(), 0);
  }

  /// The lease of the pool's only slot has ended, and its record waits for a call with `stream`: no
  /// other stream gets the slot until the pool is given that one.
  void expect_record_is_deferred(block_pool& pool, cudaStream_t stream) {
    EXPECT_TRUE(drained());
    EXPECT_EQ(pool.stats().deferred, 1U);
    EXPECT_TRUE(is_out(pool));
    pool.claim(stream).release();
    EXPECT_EQ(pool.stats().deferred, 0U);
  }
  /// The same; another stream's next use waits for work on `stream` then. Raises the flag.
  void expect_waits_for_record(block_pool& pool, cudaStream_t stream) {
    expect_record_is_deferred(pool, stream);
    expect_next_waits(pool, asking, 4);
  }

  /// Launches the graph many times: no use of a slot overlaps another.
  void expect_right_results(cudaGraph_t graph) {
    owned_exec const exec = instantiate(graph);
    for (int i = 0; i < 20; ++i) must(cudaGraphLaunch(exec, two));
    sync(two);
    EXPECT_EQ(mismatches.load(), 0);
  }
  /// Ends a capture, and does the same with its graph.
  void expect_right_results(capture& captured) {
    must(captured.end());
    expect_right_results(captured.graph().get());
  }
  /// A graph with one use of a slot.
  [[nodiscard]] owned_graph captured_use(block_pool& pool, int value = 1) {
    return captured_plainly([&](cudaStream_t on) { use(pool, on, value); });
  }
  [[nodiscard]] owned_graph captured_claim(scratch_pool& pool, std::size_t bytes) {
    return captured_plainly([&](cudaStream_t on) { static_cast<void>(pool.claim(on, bytes)); });
  }
  [[nodiscard]] bool leaves_graphs(block_pool& pool) {
    return wait_until([&] { return pool.stats().in_graphs == 0; });
  }
};

/// With a sharing group, and a pool in it.
class sharing_world : public pool_world {
 protected:
  [[nodiscard]] pool_options in_group(std::size_t slots_max = 8) {
    return with(options(slots_max), &pool_options::group, group);
  }
  [[nodiscard]] graph captured_use_of(block_pool& of, int value = 1) {
    return captured([&](cudaStream_t on) { use(of, on, value); });
  }
  /// One launch is in flight, held back by the flag; what `stream` has behind it does not run yet.
  void expect_behind_flag(cudaStream_t stream) {
    ASSERT_TRUE(have_started(1));
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1 || is_idle(stream); }))
        << "the launches overlap";
    flag.raise();
    sync_all();
  }

  void TearDown() override {
    pool.reset();
    world::TearDown();
  }

  sharing_group group{{.label = "batches"}};
  std::optional<block_pool> pool{make_pool(in_group())};
};

}  // namespace escrow::test
