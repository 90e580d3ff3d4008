// A destroy that blocks the worker does not hold up the slots of execs that have ended.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "capturing.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/nodes.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "escrow/pool/scratch_pool.hpp"
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

class BlockedWorker : public testing::Test {
 protected:
  static constexpr std::size_t bytes = 256;

  void block_worker() {
    worker_.retire(blocker(is_blocking_, may_go_));
    ASSERT_TRUE(test::wait_until([this] { return is_blocking_.load(); }));
  }
  void expect_slot_after_the_launch() {
    block_worker();
    EXPECT_FALSE(has_free_slot()) << "the launch still uses it";
    flag_.raise();
    test::must(cudaStreamSynchronize(stream_));
    EXPECT_TRUE(has_free_slot());
  }
  void TearDown() override {
    flag_.raise();
    may_go_.store(true);
    pool_.reset();
    worker_.drain();  // memory that is freed beside the next test's launch would wait for that
  }
  [[nodiscard]] bool has_free_slot() { return pool_->try_claim(stream_.get()).has_value(); }

  std::atomic<bool> is_blocking_{false};
  std::atomic<bool> may_go_{false};
  test::pinned_flag flag_;
  test::owned_stream const stream_ = test::make_stream();
  deleter worker_;
  std::optional<resource_pool<device_block>> pool_{
      std::in_place, pool_options{.slots_max = 1, .deleter = &worker_},
      [] { return device_block(bytes); }};
};

TEST_F(BlockedWorker, AnExecsSlotIsClaimedAgainWhileTheWorkerIsStuck) {
  {
    graph_exec exec(capture(stream_.get(), [&](stream_ref on) {
      auto const held = pool_->claim(on);
      test::must(test::launch_wait_flag(on.get(), flag_.get()));
    }));
    exec.launch(stream_.get());
  }  // destroyed in flight: its slot is to come back after the launch
  expect_slot_after_the_launch();
}

TEST_F(BlockedWorker, TheSlotOfALeaseThatANodeSharesIsClaimedAgainWhileTheWorkerIsStuck) {
  {
    graph built(worker_);
    auto held = pool_->claim(stream_.get());
    build(built)
        .add(kernel_node(kernel(test::kernel_address(test::kernel_id::wait_flag)), {}, flag_.get()))
        .add(memset_node(held, {.width = bytes}));
    graph_exec exec(built);
    exec.launch(stream_.get());
    held.release();
  }
  expect_slot_after_the_launch();
}

TEST_F(BlockedWorker, TheSlotOfAGraphThatWasNeverLaunchedIsClaimedAgainWhileTheWorkerIsStuck) {
  block_worker();
  graph built(worker_);
  {
    auto held = pool_->claim(stream_.get());
    build(built).add(memset_node(held, {.width = bytes}));
  }
  EXPECT_FALSE(has_free_slot()) << "the graph has a share";
  built = graph(worker_);
  EXPECT_TRUE(has_free_slot());
}

}  // namespace
}  // namespace escrow
