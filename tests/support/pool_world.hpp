// What tests of pools add to the shared world: slots whose work is held back, what comes next on
// them, and calls that are refused.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "world.hpp"

namespace escrow::test {

/// Invalidates the capture of `capturing`.
inline void invalidate(cudaStream_t capturing) {
  EXPECT_EQ(cudaStreamQuery(capturing), cudaErrorStreamCaptureUnsupported);
  static_cast<void>(cudaGetLastError());
}

/// Of a device that need not be the current one.
[[nodiscard]] inline owned_stream make_stream_of(int device) {
  device_scope const there(device);
  return make_stream();
}

inline constexpr auto const& all_modes = all_capture_modes;

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

  /// Closes a pool whose slots are all back. Its resources are freed before the next kernel that
  /// runs until a flag is raised: cudaFree would wait for that, and other calls for cudaFree.
  void end(block_pool& pool) {
    EXPECT_TRUE(pool.close_for(generous).empty());
    EXPECT_TRUE(drained());
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

}  // namespace escrow::test
