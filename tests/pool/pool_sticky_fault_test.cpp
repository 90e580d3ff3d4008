// A device that fails for good under threads that claim and release, and beside another.
#include <optional>
#include <thread>

#include "fault_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

TEST(PoolStickyFaultOnAWorker, ThreadsThatClaimAndReleaseAllEndWithErrors) {
  {
    tally counts;
    deleter worker;
    pool_options chosen;
    chosen.slots_max = 3;
    chosen.deleter = &worker;
    chosen.host_wait_max = 60s;
    std::atomic<int> rounds{0};
    std::atomic<int> failed{0};
    {
      block_pool pool{chosen, [&] { return block{counts}; }};
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          try {
            owned_stream const stream = make_stream();
            while (true) {
              block_lease held = pool.claim(stream);
              must(launch_tiny(stream));
              held.release();
              rounds.fetch_add(1);
            }
          } catch (std::exception const&) {
            failed.fetch_add(1);
          }
        });
      }
      EXPECT_TRUE(wait_until([&] { return rounds.load() > 100; }));
      sim::fail_device(0, cudaErrorIllegalAddress);
      for (std::thread& each : threads) each.join();
      EXPECT_EQ(failed.load(), 4);
    }
    EXPECT_TRUE(worker.drain_for(generous));
    EXPECT_EQ(counts.alive(), static_cast<int>(worker.stats().leaked));
  }
  sim::clear_faults();
}

/// Two devices, one of which is lost while a kernel that waits runs on the other, 1: nothing tells
/// any more when that is done.
class PoolBesideALostDevice : public testing::Test {
 protected:
  PoolBesideALostDevice() {
    must(cudaSetDevice(1));
    of_1 = make_stream();
    must(cudaSetDevice(0));
    of_0 = make_stream();
  }
  ~PoolBesideALostDevice() override {
    flag.raise();
    sim::clear_faults();
    static_cast<void>(cudaSetDevice(0));
    static_cast<void>(cudaStreamSynchronize(of_1));  // before the flag goes
    static_cast<void>(cudaGetLastError());
  }
  [[nodiscard]] std::optional<block_pool> pool_of(int device) {
    pool_options chosen;
    chosen.device = device;
    chosen.deleter = &worker;
    return std::make_optional<block_pool>(chosen, [this] { return block{counts}; });
  }
  void keep_busy() {
    must(cudaSetDevice(1));
    must(launch_wait_flag(of_1, flag.get()));
    must(cudaSetDevice(0));
  }
  void expect_kept_for_ever() {
    EXPECT_TRUE(worker.drain_for(generous)) << "a drain waits for what nothing tells";
    EXPECT_EQ(counts.destroyed.load(), 0) << "while it is in use";
    EXPECT_EQ(worker.stats().leaked, 1u);
  }

  pinned_flag flag;
  tally counts;
  deleter worker;
  owned_stream of_0;
  owned_stream of_1;
};

TEST_F(PoolBesideALostDevice, ASlotThatWasReleasedBeforeIsKeptForEver) {
  std::optional<block_pool> pool = pool_of(1);
  {
    block_lease const held = pool->claim(of_1);
    keep_busy();
  }
  sim::fail_device(0, cudaErrorIllegalAddress);
  pool.reset();
  expect_kept_for_ever();
}

TEST_F(PoolBesideALostDevice, ALeaseThatEndsAfterwardsIsKeptForEver) {
  std::optional<block_pool> pool = pool_of(1);
  std::optional<block_lease> held = pool->claim(of_1);
  keep_busy();
  sim::fail_device(0, cudaErrorIllegalAddress);
  held.reset();
  EXPECT_EQ(pool->stats().deferred, 1u);
  for (int const current : {0, 1}) {
    static_cast<void>(cudaSetDevice(current));
    EXPECT_THROW(static_cast<void>(pool->claim(of_1)), cuda_error);
  }
  pool.reset();
  expect_kept_for_ever();
}

TEST_F(PoolBesideALostDevice, ASlotThatWasAlsoUsedOnTheOtherDeviceIsKeptForEver) {
  for (bool const ends_before : {true, false}) {
    std::optional<block_pool> pool = pool_of(0);
    std::optional<block_lease> held = pool->claim(of_0);
    held->record_stream(of_1);
    keep_busy();
    if (ends_before) held.reset();
    sim::fail_device(0, cudaErrorIllegalAddress);
    held.reset();
    pool.reset();
    EXPECT_TRUE(worker.drain_for(generous));
    EXPECT_EQ(counts.destroyed.load(), 0);
    sim::clear_faults();
    static_cast<void>(cudaSetDevice(0));
  }
  EXPECT_EQ(worker.stats().leaked, 2u);
}

}  // namespace
}  // namespace escrow::test
