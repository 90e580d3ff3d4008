// What the tests of pools share: a resource that counts itself, a deleter that keeps its errors,
// and short names for what every test does.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "capturing.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "message_of.hpp"
#include "status.hpp"
#include "wait_until.hpp"

namespace escrow::test {

/// A test with a deleter of its own. Pools that it makes use that deleter, and must be gone at the
/// end of the test's body, when no resource may be left but those that the test says are lost.
class pool_test : public testing::Test {
 protected:
  pool_test() { must(cudaSetDevice(0)); }

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
  /// Waits until all that graphs have let go is back in its pool.
  [[nodiscard]] bool drained() { return worker->drain_for(generous); }
  [[nodiscard]] int made() const { return counts.made.load(std::memory_order_relaxed); }

  void TearDown() override {
    EXPECT_TRUE(wait_until([this] { return counts.alive() == lost; }))
        << counts.alive() << " resources are left of " << made() << ", expected " << lost;
    if (errors_expected) return;
    EXPECT_EQ(errors->size(), 0u) << errors->all();
  }

  tally counts;
  int lost = 0;  // resources that stay for ever: nothing tells when the GPU is done with them
  bool errors_expected = false;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker = make_deleter();

 private:
  [[nodiscard]] std::unique_ptr<deleter> make_deleter() {
    deleter_options chosen;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    return std::make_unique<deleter>(chosen);
  }
};

}  // namespace escrow::test
