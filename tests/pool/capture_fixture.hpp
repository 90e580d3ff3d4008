// What the tests of pools under capture share.
#pragma once

#include "build_graph.hpp"
#include "pool_fixture.hpp"

namespace escrow::test {

/// Makes a call that no capture survives.
inline void invalidate(cudaStream_t capturing) {
  EXPECT_NE(cudaStreamQuery(capturing), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

class captured_pool_test : public pool_test {
 protected:
  /// Whether a pool of one slot has it back, and once more makes sure that all releases arrived.
  [[nodiscard]] bool is_back(block_pool& pool) {
    if (!drained()) return false;
    owned_stream const asking = make_stream();
    bool const found = pool.try_claim(asking).has_value();
    sync(asking);
    return found;
  }
  /// The same, for a release that CUDA does on a thread of its own, some time soon.
  [[nodiscard]] bool comes_back(block_pool& pool) {
    return wait_until([&] { return is_back(pool); });
  }
  [[nodiscard]] bool stays_out(block_pool& pool) {
    return stays_false([&] { return is_back(pool); });
  }
  /// Captures one library call on `stream` and returns the graph.
  [[nodiscard]] owned_graph captured_work(block_pool& pool, cudaStream_t stream, int value = 1) {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    library_work(pool, stream, value, mismatches);
    must(captured.end());
    return std::move(captured.graph());
  }

  /// Launches the graph many times: no check finds anything.
  void expect_right_results(cudaGraph_t graph, cudaStream_t stream) {
    owned_exec const exec = instantiate(graph);
    for (int i = 0; i < 20; ++i) must(cudaGraphLaunch(exec, stream));
    sync(stream);
    EXPECT_EQ(mismatches.load(), 0);
  }
  /// Ends a capture, and does the same with what comes of it.
  void expect_right_results(capture& captured, cudaStream_t stream) {
    must(captured.end());
    expect_right_results(captured.graph().get(), stream);
  }

  pinned_ints mismatches;
};

}  // namespace escrow::test
