// SPDX-License-Identifier: Apache-2.0
// Graphs that are captured without an audit, to be audited then.
#pragma once

#include <escrow/graph/audit.hpp>
#include <vector>

#include "arena_world.hpp"

namespace escrow::test {

class audit_world : public arena_world {
 protected:
  /// Not audited meanwhile.
  [[nodiscard]] graph captured(auto const& enqueue) {
    return escrow::capture(
        stream_ref(one.get()), [&](stream_ref on) { enqueue(on.get()); },
        capture_options(cudaStreamCaptureModeThreadLocal, audit_use::no));
  }
  [[nodiscard]] graph captured_use(int* address) {
    return captured([&](cudaStream_t on) { must(launch_add(on, address, 1)); });
  }
  static void expect_healthy(graph_ref of, std::vector<cudaGraph_t> const& bodies = {}) {
    EXPECT_EQ(describe(audit(of, bodies)), "");
  }
};

}  // namespace escrow::test
