// SPDX-License-Identifier: Apache-2.0
// What a lease's end waits for if its memory is used by an address; and whose memory and slots a
// pool takes.
#include <array>
#include <cstddef>
#include <escrow/pool/stream_allocator.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class SharedEnd : public pool_world {};

TEST_F(SharedEnd, OfAnAllocationInARetiredOwnerWaitsForWhatItsDestructorEnqueued) {
  stream_allocator memory(with(options(1), &pool_options::deleter, worker.get()));
  struct wiped {
    stream_allocator& of;
    cudaStream_t on;
    void* address;
    pinned_flag& until;
    wiped(stream_allocator& its, cudaStream_t stream, pinned_flag& flag)
        : of(its), on(stream), address(its.allocate(stream, 64)), until(flag) {}
    wiped(wiped const&) = delete;
    ~wiped() {
      must(launch_wait_flag(on, until.get()));
      must(cudaMemsetAsync(address, 0, 64, on));
      of.deallocate_or_report(on, address);
    }
  };
  worker->retire(one, std::make_unique<wiped>(memory, one, flag));
  static_cast<void>(drained());
  EXPECT_THROW(static_cast<void>(memory.allocate(two, 64)), pool_exhausted);
  flag.raise();
  sync(one);
  void* const next = memory.allocate(one, 64);  // this call records what was deferred
  memory.deallocate(one, next);
}

TEST_F(SharedEnd, OfAnAllocationWaitsForStreamsThatSeveralThreadsRecordAtOnce) {
  stream_allocator memory(with(options(1), &pool_options::deleter, worker.get()));
  void* const shared = memory.allocate(one, 64);
  std::array<owned_stream, 4> streams;
  for (owned_stream& each : streams) each = make_stream();
  {
    std::vector<std::jthread> threads;
    for (owned_stream const& each : streams) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) memory.record_stream(each.get(), shared);
      });
    }
  }
  auto* part = static_cast<std::byte*>(shared);  // each stream has its own: they have no order
  for (owned_stream const& each : streams) {
    must(launch_wait_flag(each, flag.get()));
    must(cudaMemsetAsync(std::exchange(part, part + 16), 1, 16, each));
  }
  memory.deallocate(one, shared);
  void* const next = memory.allocate(two, 64);
  EXPECT_EQ(next, shared);
  EXPECT_TRUE(stays_busy(two));
  flag.raise();
  sync(two);
  for (owned_stream const& each : streams) EXPECT_EQ(cudaStreamQuery(each), cudaSuccess);
  memory.deallocate(two, next);
}

TEST(PoolMemory, OfACallersPoolIsRefusedOnAnotherDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = 1};
  cudaMemPool_t elsewhere = nullptr;
  must(cudaMemPoolCreate(&elsewhere, &properties));
  {
    owned_stream const stream = make_stream();
    scratch_pool pool({}, {.source = memory_source::from(elsewhere)});
    expect_error<usage_error>([&] { return pool.claim(stream, 64); },
                              {"memory_source::from", "of device 1", "pool_options::device"});
  }
  must(cudaMemPoolDestroy(elsewhere));
}

TEST(PoolOptions, HaveRoomForOneSlotAtLeast) {
  expect_error<usage_error>([] { return scratch_pool({.slots_max = 0}); },
                            {"`slots_max` is 0", "give 1 or more"});
}

TEST(PoolOptions, NameADeleterThatIsThere) {
  struct in_the_wrong_order {
    scratch_pool pool{{.deleter = &own}};
    deleter own;
  };
  constexpr char const* problem = "`deleter` is not constructed yet, or has ended";
  expect_error<usage_error>([] { in_the_wrong_order const made; }, {problem, "declare it before"});
  std::optional<deleter> ended(std::in_place);
  deleter* const at = &*ended;
  EXPECT_TRUE(at->is_there());
  ended.reset();
  expect_error<usage_error>([=] { return scratch_pool({.deleter = at}); }, {problem});
}

TEST(ScratchPools, ThatWereMovedFromSaySo) {
  scratch_pools from;
  scratch_pools const to = std::move(from);
  expect_error<usage_error>(
      [&] { static_cast<void>(from.on(0)); },  // NOLINT(bugprone-use-after-move)
      {"scratch_pools::on: ", "were moved from"});
}

}  // namespace
}  // namespace escrow::test
