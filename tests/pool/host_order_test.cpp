// SPDX-License-Identifier: Apache-2.0
// What the host writes: no GPU work uses it any more when a claim gives it, in pools of pinned
// memory by default. In a capture it belongs to that graph alone.
#include <numeric>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

class HostOrder : public pool_world {
 protected:
  static constexpr std::size_t count = 64;  // ints of a block
  static constexpr int batches = 6;

  [[nodiscard]] static scratch_policy pinned() { return {.source = memory_source::pinned_host()}; }

  /// Behind held back work, so that all copies are still to come: the host fills what `claim` gives
  /// with the batch's number, enqueues its copy, and releases. All batches arrive.
  void expect_all_batches_arrive(cudaStream_t stream, auto&& claim) {
    device_ints arrived{count * batches};
    hold_up(stream);
    for (int batch = 0; batch < batches; ++batch) {
      auto staging = claim();
      std::fill_n(staging.data(), count, batch);
      must(cudaMemcpyAsync(arrived.data() + count * static_cast<std::size_t>(batch), staging.data(),
                           count * sizeof(int), cudaMemcpyHostToDevice, stream));
    }
    flag.raise();
    sync(stream);
    for (std::size_t i = 0; auto const each : arrived.read()) {
      ASSERT_EQ(each, static_cast<int>(i++ / count)) << "a batch was overwritten before its copy";
    }
  }
};

struct pinned_block {
  explicit pinned_block(std::size_t count) : ints{count} {}
  [[nodiscard]] int* data() const { return ints.data(); }
  pinned_ints ints;
};

TEST_F(HostOrder, AStagingLoopIsRightWithPinnedScratch) {
  scratch_pool pool(options(16), pinned());
  expect_all_batches_arrive(one, [&] { return pool.claim<int>(one, count); });
  EXPECT_EQ(pool.stats().grown, static_cast<std::uint64_t>(batches));
  // All are done: the first serves again.
  static_cast<void>(pool.claim<int>(one, count));
  EXPECT_EQ(pool.stats().grown, static_cast<std::uint64_t>(batches));
  end(pool);
}

TEST_F(HostOrder, AStagingLoopIsRightWithAClaimer) {
  scratch_pool pool(options(16), pinned());
  auto local = pool.on(one);
  expect_all_batches_arrive(one, [&] { return local.claim<int>(count); });
  EXPECT_EQ(pool.stats().bytes_unrecorded, 0U);
  static_cast<void>(local.claim<int>(count));
  EXPECT_EQ(pool.stats().grown, static_cast<std::uint64_t>(batches));
}

TEST_F(HostOrder, AStagingLoopIsRightOnStreamsThatOutliveThePool) {
  scratch_pool pool(with(options(16), &pool_options::streams_outlive_pool, true), pinned());
  expect_all_batches_arrive(one, [&] { return pool.claim<int>(one, count); });
  EXPECT_EQ(pool.stats().bytes_unrecorded, 0U);
}

TEST_F(HostOrder, AStagingLoopIsRightWithAnAllocator) {
  stream_allocator allocator(options(16), pinned());
  struct memory {
    stream_allocator& from;
    cudaStream_t on;
    void* address = from.allocate(on, count * sizeof(int));
    ~memory() { from.deallocate(on, address); }
    [[nodiscard]] int* data() const { return static_cast<int*>(address); }
  };
  expect_all_batches_arrive(one, [&] { return memory{allocator, one}; });
}

TEST_F(HostOrder, AStagingLoopIsRightWithASourceThatDoesNotSayWhoWrites) {
  scratch_policy policy;
  policy.source = {[](void** address, std::size_t bytes) { return cudaMallocHost(address, bytes); },
                   cudaFreeHost, "my_pinned"};
  scratch_pool pool(options(16), policy);
  expect_all_batches_arrive(one, [&] { return pool.claim<int>(one, count); });
  scratch_pool of_claimer(options(16), policy);
  auto local = of_claimer.on(two);
  expect_all_batches_arrive(two, [&] { return local.claim<int>(count); });
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(HostOrder, WhileItIsNotKnownWhoWritesItIsTheHost) {
  scratch_policy policy;
  policy.source = {[](void** address, std::size_t bytes) { return cudaMallocHost(address, bytes); },
                   cudaFreeHost, "my_pinned"};
  scratch_pool pool(options(16), policy);
  sim::fail_call("cudaPointerGetAttributes", cudaErrorUnknown, 1, 100);
  expect_all_batches_arrive(one, [&] { return pool.claim<int>(one, count); });
  sim::clear_faults();
  // Of memory that only the GPU writes, the first block tells: claims are in the stream's order.
  policy.source = {[](void** address, std::size_t bytes) { return cudaMalloc(address, bytes); },
                   cudaFree, "my_device"};
  scratch_pool of_device(options(16), policy);
  hold_up(one);
  void* const first = of_device.claim(one, 64)->data();
  EXPECT_EQ(of_device.claim(one, 64)->data(), first);
  flag.raise();
  sync(one);
}
#endif

TEST_F(HostOrder, PinnedMemoryIsInTheStreamsOrderIfTheSourceSaysSo) {
  scratch_policy policy = pinned();
  policy.source.is_host_written = false;
  scratch_pool pool(options(16), policy);
  hold_up(one);
  for (int i = 0; i < batches; ++i) static_cast<void>(pool.claim<int>(one, count));
  EXPECT_EQ(pool.stats().grown, 1U);
  flag.raise();
}

TEST_F(HostOrder, AStagingLoopIsRightWithASourceThatSaysSo) {
  scratch_policy policy;
  policy.source = {[](void** address, std::size_t bytes) { return cudaMallocHost(address, bytes); },
                   cudaFreeHost, "my_pinned", true};
  scratch_pool pool(options(16), policy);
  expect_all_batches_arrive(one, [&] { return pool.claim<int>(one, count); });
}

TEST_F(HostOrder, AStagingLoopIsRightWithOwnResources) {
  resource_pool<pinned_block> pool(with(options(16), &pool_options::host_ordered, true),
                                   [] { return pinned_block(count); });
  expect_all_batches_arrive(one, [&] {
    struct held : lease<pinned_block> {
      [[nodiscard]] int* data() const { return get().data(); }
    };
    return held{pool.claim(one)};
  });
  EXPECT_EQ(pool.stats().grown, static_cast<std::uint64_t>(batches));
  EXPECT_EQ(pool.stats().stream_waits, 0U);
}

TEST_F(HostOrder, OneClaimForTheHostIsRightInAnyPool) {
  scratch_pool pool(options(16));
  auto local = pool.on(one);
  hold_up(one);
  void const* const busy = pool.claim(one, 1024)->data();
  void const* const uncovered = local.claim(1024)->data();
  EXPECT_EQ(busy, uncovered);
  EXPECT_NE(pool.claim_for_host(one, 1024)->data(), busy);
  EXPECT_NE(pool.claim_for_host<int>(two, 256).data(), busy);
  EXPECT_NE(local.claim_for_host(1024)->data(), busy);
  EXPECT_NE(local.claim_for_host<int>(256).data(), busy);
  flag.raise();
}

TEST_F(HostOrder, AtALimitItAsksAboutWhatAClaimerOfItsStreamKeeps) {
  block_pool pool = make_pool(2);
  auto local = pool.on(one);
  block_lease const out = pool.claim(two);
  {
    block_lease held = local.claim();
    hold_up(one);
  }
  EXPECT_EQ(pool.stats().unrecorded, 1U);
  std::jthread const raiser([this] {
    std::this_thread::sleep_for(20ms);
    flag.raise();
  });
  EXPECT_EQ(local.claim_for_host()->number(), 1);
  EXPECT_TRUE(is_idle(one));
}

TEST_F(HostOrder, OneClaimForTheHostIsRightInAPoolOfResources) {
  block_pool pool = make_pool(8);
  auto local = pool.on(one);
  hold_up(one);
  EXPECT_EQ(pool.claim(one)->number(), 0);
  EXPECT_EQ(pool.claim_for_host(one)->number(), 1);  // never used by the GPU, but released there
  EXPECT_EQ(local.claim_for_host()->number(), 2);
  EXPECT_EQ(pool.stats().unrecorded, 0U) << "each release records at once";
  flag.raise();
}

TEST_F(HostOrder, TheWorkOfAnotherStreamThatTheLeaseWasToldOfIsAsked) {
  scratch_pool pool(options(2), pinned());
  {
    auto staging = pool.claim(one, 1024);
    hold_up(two);
    staging.record_stream(two);
  }
  sync(one);
  auto const next = pool.claim(one, 1024);
  EXPECT_EQ(pool.stats().grown, 2U) << "the first is used on stream two";
  flag.raise();
}

TEST_F(HostOrder, AtALimitTheHostWaitsUntilAFreeSlotIsDone) {
  scratch_pool pool(options(1), pinned());
  {
    auto staging = pool.claim(one, 1024);
    hold_up(one);
  }
  std::jthread const raiser([this] {
    std::this_thread::sleep_for(20ms);
    flag.raise();
  });
  auto const next = pool.claim(two, 1024);
  EXPECT_TRUE(is_idle(one)) << "the claim returned while the copy may be read";
  EXPECT_TRUE(next);
}

TEST_F(HostOrder, AtALimitInBytesItWaitsToo) {
  scratch_pool pool(options(8), {.bytes_max = 1024, .source = memory_source::pinned_host()});
  {
    auto staging = pool.claim(one, 1024);
    hold_up(one);
  }
  std::jthread const raiser([this] {
    std::this_thread::sleep_for(20ms);
    flag.raise();
  });
  auto const next = pool.claim(two, 1024);
  EXPECT_TRUE(is_idle(one));
}

TEST_F(HostOrder, TheWaitIsBounded) {
  scratch_pool pool(with(options(1), &pool_options::capture_wait_max, 5ms), pinned());
  {
    auto staging = pool.claim(one, 1024);
    hold_up(one);
  }
  EXPECT_THROW(static_cast<void>(pool.claim(one, 1024)), pool_exhausted);
  EXPECT_THROW(static_cast<void>(pool.claim(two, 1024)), pool_exhausted);
  flag.raise();
  sync(one);
  EXPECT_TRUE(pool.claim(two, 1024));
}

TEST_F(HostOrder, TryClaimDoesNotWaitForTheCopy) {
  block_pool pool = make_pool(with(options(1), &pool_options::host_ordered, true));
  {
    block_lease staging = pool.claim(one);
    hold_up(one);
  }
  EXPECT_FALSE(pool.try_claim(one).has_value());
  EXPECT_FALSE(pool.try_claim_for(two, 2ms).has_value());
  EXPECT_FALSE(pool.on(one).try_claim().has_value());
  flag.raise();
  EXPECT_TRUE(pool.try_claim_for(two, generous).has_value());
}

TEST_F(HostOrder, WhatRecycleEnqueuesWouldRunBesideTheHost) {
  auto const make = [this] { return block{counts}; };
  auto const recycle = [](block&, stream_ref) {};
  block_pool pool(options(1), make, recycle);
  auto const host_ordered = with(options(1), &pool_options::host_ordered, true);
  expect_refused(
      {{"resource_pool::claim_for_host", {"recycle"}, [&] { (void)pool.claim_for_host(one); }},
       {"claimer::claim_for_host", {"recycle"}, [&] { (void)pool.on(one).claim_for_host(); }},
       {"resource_pool::resource_pool", {"recycle"}, [&] {
          (void)block_pool(host_ordered, make, recycle);
        }}});
}

TEST_F(HostOrder, InACaptureTheBlockIsThatGraphsAlone) {
  scratch_pool pool(options(16), pinned());
  device_ints arrived{3 * count};
  // Each block is written once, before the first launch, which all launches read.
  graph const made = captured([&](cudaStream_t on) {
    for (std::size_t batch = 0; batch < 3; ++batch) {
      auto staging = pool.claim<int>(on, count);
      std::fill_n(staging.data(), count, static_cast<int>(batch));
      must(cudaMemcpyAsync(arrived.data() + count * batch, staging.data(), count * sizeof(int),
                           cudaMemcpyHostToDevice, on));
    }
  });
  graph_exec exec(made);
  for (int i = 0; i < 2; ++i) run(exec);
  for (std::size_t i = 0; auto const each : arrived.read()) {
    ASSERT_EQ(each, static_cast<int>(i++ / count)) << "a later claim of the capture had the block";
  }
}

TEST_F(HostOrder, InACaptureNoBlockThatACopyStillReadsIsGiven) {
  scratch_pool pool(options(16), pinned());
  void const* busy = nullptr;
  {
    auto staging = pool.claim(two, 1024);
    busy = staging->data();
    hold_up(two);
  }
  static_cast<void>(captured([&](cudaStream_t on) {
    EXPECT_NE(pool.claim(on, 1024)->data(), busy);
    EXPECT_NE(pool.claim_for_host(on, 1024)->data(), busy);
  }));
  flag.raise();
}

TEST_F(HostOrder, TheGraphsOfAGroupDoNotShareWhatTheHostWrites) {
  auto const shared = with(options(16), &pool_options::group, sharing_group{});
  scratch_pool pool(shared, pinned());
  device_ints arrived{2};
  auto const staged = [&](std::size_t at) {
    return captured([&](cudaStream_t on) {
      auto staging = pool.claim<int>(on, 1);
      *staging.data() = static_cast<int>(at) + 5;
      must(cudaMemcpyAsync(arrived.data() + at, staging.data(), sizeof(int), cudaMemcpyHostToDevice,
                           on));
    });
  };
  graph const first = staged(0);
  graph const second = staged(1);
  run(first);
  run(second);
  EXPECT_EQ(arrived.read(), (std::vector<int>{5, 6}));
}

}  // namespace
}  // namespace escrow::test
