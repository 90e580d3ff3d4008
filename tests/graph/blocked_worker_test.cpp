// A destroy that blocks the worker does not hold up the slots of execs that have ended.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "capturing.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/capture.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

// Blocks whoever destroys it until `may_go`.
class blocker {
 public:
  blocker(std::atomic<bool>& is_blocking, std::atomic<bool>& may_go)
      : is_blocking_(&is_blocking), may_go_(&may_go) {}
  blocker(blocker&& other) noexcept
      : is_blocking_(std::exchange(other.is_blocking_, nullptr)), may_go_(other.may_go_) {}
  ~blocker() {
    if (is_blocking_ == nullptr) return;
    is_blocking_->store(true);
    EXPECT_TRUE(test::wait_until([this] { return may_go_->load(); }));
  }

 private:
  std::atomic<bool>* is_blocking_;
  std::atomic<bool>* may_go_;
};

TEST(BlockedWorker, AnExecsSlotIsClaimedAgainWhileTheWorkerIsStuck) {
  std::atomic<bool> is_blocking{false};
  std::atomic<bool> may_go{false};
  test::pinned_flag flag;
  test::owned_stream const stream = test::make_stream();
  deleter worker;
  resource_pool<int> pool({.slots_max = 1, .deleter = &worker}, [] { return 0; });
  {
    graph_exec exec(capture(stream.get(), [&](stream_ref on) {
      auto const held = pool.claim(on);
      test::must(test::launch_wait_flag(on.get(), flag.get()));
    }));
    exec.launch(stream.get());
  }  // destroyed in flight: its slot is to come back after the launch
  worker.retire(blocker(is_blocking, may_go));
  ASSERT_TRUE(test::wait_until([&] { return is_blocking.load(); }));
  EXPECT_FALSE(pool.try_claim(stream.get()).has_value()) << "the launch still uses it";

  flag.raise();
  test::must(cudaStreamSynchronize(stream));
  EXPECT_TRUE(pool.try_claim(stream.get()).has_value());
  may_go.store(true);
  worker.drain();
}

}  // namespace
}  // namespace escrow
