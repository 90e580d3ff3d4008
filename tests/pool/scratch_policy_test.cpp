// SPDX-License-Identifier: Apache-2.0
// The memory of a scratch pool: its sizes, its limit, how it comes back, and where it comes from.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <set>

#include "counted_memory.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t kib = 1024;

class ScratchPolicy : public pool_world {
 protected:
  [[nodiscard]] pool_options named(std::chrono::nanoseconds busy_wait_max = {}) {
    pool_options chosen = options(4);
    chosen.label = "scratch";
    chosen.capture_wait_max = busy_wait_max;
    return chosen;
  }
  [[nodiscard]] scratch_policy limited_to(std::size_t bytes_max) {
    return {.bytes_max = bytes_max, .source = memory->source()};
  }
  void claim_and_release(scratch_pool& pool, std::initializer_list<std::size_t> sizes) {
    for (std::size_t const bytes : sizes) pool.claim(one, bytes).release();
    sync(one);
  }
  /// A free block of `bytes` that a kernel uses until the flag is raised.
  void use_behind_flag(scratch_pool& pool, std::size_t bytes) {
    auto const used = pool.claim(two, bytes);
    hold_up(two);
    must(launch_fill(two, static_cast<int*>(used->data()), bytes / sizeof(int), 7));
  }
  [[nodiscard]] static bool is_left(std::shared_ptr<counted_memory> const& of, std::size_t bytes) {
    return wait_until([&] { return of->used.load() == bytes; });
  }

  std::shared_ptr<counted_memory> const memory = std::make_shared<counted_memory>();
};

TEST(ScratchSizes, AreLessThanAQuarterOverTheClaimInStepsOfAtMostTwoMebibytes) {
  EXPECT_EQ(scratch_pool::block_bytes(0), 256U);
  EXPECT_EQ(scratch_pool::block_bytes(257), 320U);
  EXPECT_EQ(scratch_pool::block_bytes(1793), 2048U);
  EXPECT_EQ(scratch_pool::block_bytes((16 << 20) + 1), std::size_t{18} << 20);
  EXPECT_EQ(scratch_pool::block_bytes(scratch_pool::bytes_max), scratch_pool::bytes_max);
  std::set<std::size_t> sizes;
  for (std::size_t bytes = 256; bytes < scratch_pool::bytes_max; bytes += bytes / 64 + 1) {
    std::size_t const block = scratch_pool::block_bytes(bytes);
    ASSERT_GE(block, bytes);
    ASSERT_LT(4 * block, 5 * bytes + 4) << bytes;
    ASSERT_LT(block - bytes, std::size_t{2} << 20) << bytes;
    ASSERT_EQ(scratch_pool::block_bytes(block), block) << bytes;
    if (block <= std::size_t{16} << 20) sizes.insert(block);
  }
  EXPECT_EQ(sizes.size(), 4U * 16U + 1U);
}

TEST_F(ScratchPolicy, ALimitIsKeptByFreeingIdleBlocksOfOtherSizes) {
  scratch_pool pool(named(), limited_to(8 * kib));
  claim_and_release(pool, {4 * kib, 2 * kib, 1 * kib});
  auto const large = pool.claim(one, 6 * kib);
  EXPECT_LE(memory->used.load(), 8 * kib);
  EXPECT_EQ(pool.bytes(), memory->used.load());
  EXPECT_EQ(pool.claim(one, 1 * kib)->size(), 1 * kib);
}

TEST_F(ScratchPolicy, AClaimBeyondTheLimitNamesItsSizeItsLineAndWhatHoldsTheMemory) {
  scratch_pool pool(named(), limited_to(8 * kib));
  owned_graph graph = captured_claim(pool, 2 * kib);
  auto const held = pool.claim(one, 4 * kib);
  expect_error<pool_exhausted>(
      [&] { return pool.claim(one, 3'000); },
      {"scratch_pool::claim: ", "the limit in bytes", "scratch_policy_test.cpp:", "3000 bytes of",
       "\"scratch of 3072 bytes\"", "\"bytes\": 6144", "\"bytes_in_use\": 4096",
       "\"bytes_in_graphs\": 2048", "bytes_max 8192", "\"scratch of 2048 bytes\": capture",
       "\"scratch of 4096 bytes\": leases hold 1"});
  expect_error<pool_exhausted>([&] { return pool.claim(one, 9 * kib); }, {"9216"});
  EXPECT_EQ(memory->used.load(), 6 * kib);
}

TEST_F(ScratchPolicy, ALimitInACaptureFreesIdleBlocksAndElseActsAsTooFewSlots) {
  scratch_pool pool(named(), limited_to(4 * kib));
  claim_and_release(pool, {4 * kib});
  for (auto const mode : all_capture_modes) {
    capture captured{one, mode};
    {
      auto const held = pool.claim(one, 2 * kib);  // frees the 4 KiB
      auto const more = pool.claim(one, 2 * kib);
      EXPECT_THROW(static_cast<void>(pool.claim(one, 2 * kib)), pool_exhausted);
      EXPECT_TRUE(captured.is_active());
    }
    EXPECT_EQ(pool.claim(one, 2 * kib)->size(), 2 * kib) << "reuses one of this capture";
    EXPECT_EQ(memory->used.load(), 4 * kib);
    must(captured.end());
  }
}

TEST_F(ScratchPolicy, ABlockInUseIsNotFreedToMakeRoom) {
  scratch_pool pool(named(), limited_to(4 * kib));
  use_behind_flag(pool, 4 * kib);
  expect_error<pool_exhausted>([&] { return pool.claim(one, 2 * kib); }, {"\"bytes_idle\": 4096"});
  EXPECT_EQ(pool.trim(), 0U);
  EXPECT_EQ(pool.claim(one, 4 * kib)->size(), 4 * kib) << "waits in the stream";
  flag.raise();
}

TEST_F(ScratchPolicy, AClaimWaitsForTheWorkOnFreeBlocksOfOtherSizes) {
  for (bool const is_limited : {true, false}) {
    auto const small = std::make_shared<counted_memory>();
    small->capacity = 4 * kib;
    scratch_pool pool(named(generous),
                      {.bytes_max = is_limited ? 4 * kib : 1 << 20, .source = small->source()});
    pinned_flag done;
    auto used = std::make_optional(pool.claim(two, 4 * kib));
    must(launch_wait_flag(two, done.get()));
    used.reset();
    std::jthread const raises([&] { done.raise(); });
    EXPECT_EQ(pool.claim(one, 2 * kib)->size(), 2 * kib);
    sync(two);
    EXPECT_TRUE(pool.close_for(generous).empty());
    EXPECT_TRUE(is_left(small, 0));
  }
}

TEST_F(ScratchPolicy, IdleBlocksAreFreedAndTheAllocationIsTriedAgainBeforeMemoryIsOut) {
  memory->capacity = 8 * kib;
  scratch_pool pool(named(), {.source = memory->source()});
  claim_and_release(pool, {4 * kib, 2 * kib});
  {
    auto const large = pool.claim(one, 8 * kib);
    EXPECT_EQ(memory->used.load(), 8 * kib);
    auto const claim = [&] { static_cast<void>(pool.claim(one, 1 * kib)); };
    expect_error<cuda_error>(
        claim, {"counted_memory returned cudaErrorMemoryAllocation", "scratch_policy_test.cpp:",
                "1024 bytes of \"scratch of 1024 bytes\"", "\"bytes_in_use\": 8192"});
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  {
    capture captured{two, cudaStreamCaptureModeGlobal};
    EXPECT_THROW(static_cast<void>(pool.claim(two, 9 * kib)), cuda_error);
    EXPECT_TRUE(captured.is_active());
  }
  EXPECT_EQ(memory->used.load(), 0U) << "freed for a larger one";
  EXPECT_EQ(pool.stats().bytes_peak, 8 * kib);
}

TEST_F(ScratchPolicy, IdleBlocksOfOtherPoolsAreFreedBeforeMemoryIsOut) {
  memory->capacity = 8 * kib;
  memory_source const source = memory->source();
  auto const pinned = std::make_shared<counted_memory>();
  memory_source of_host = pinned->source();
  of_host.is_host_written = true;
  scratch_pool host(named(), {.source = of_host});
  scratch_pool other(named(), {.source = source});
  scratch_pool pool(named(), {.source = source});
  resource_pool<device_block> blocks(named(), [&] { return device_block(8 * kib, source); });
  claim_and_release(host, {8 * kib});
  auto const leaves_all_to = [&](auto const& claim) {
    claim_and_release(other, {8 * kib});
    static_cast<void>(claim());
  };
  leaves_all_to([&] { return pool.claim(one, 6 * kib); });
  EXPECT_EQ(memory->used.load(), 6 * kib);
  leaves_all_to([&] { return device_block(4 * kib, source); });
  EXPECT_EQ(memory->used.load(), 0U);
  leaves_all_to([&] { return blocks.claim(one); });
  EXPECT_EQ(memory->used.load(), 8 * kib);
  EXPECT_TRUE(blocks.close_for(generous).empty());
  auto const used = other.claim(one, 4 * kib);
  EXPECT_THROW(static_cast<void>(pool.claim(one, 8 * kib)), cuda_error);
  EXPECT_THROW(device_block(8 * kib, source), cuda_error);
  EXPECT_EQ(host.stats().bytes_idle, 8 * kib) << "it is no memory of the device";
}

TEST_F(ScratchPolicy, WhatIsLeakedCountsForTheLimit) {
  errors_expected = true;  // the pool's end says what is leaked, also where the test is skipped
  scratch_pool pool(named(), limited_to(8 * kib));
  {
    owned_stream passing = make_stream();
    auto held = std::make_optional(pool.claim(passing, 4 * kib));
    capture second{passing, cudaStreamCaptureModeGlobal};
    invalidate(passing);
    held.reset();
  }
  // The first stream that has the handle again tells that the other one is gone.
  std::vector<owned_stream> later;
  auto const is_told = [&] {
    later.push_back(make_stream());
    static_cast<void>(pool.claim(later.back(), 4 * kib));
    return pool.stats().bytes_leaked != 0;
  };
  for (int tries = 0; tries < 64 && !is_told(); ++tries) {
  }
  if (pool.stats().bytes_leaked == 0) GTEST_SKIP() << "no stream got the handle again";
  scratch_stats const now = pool.stats();
  EXPECT_EQ(now.bytes_leaked, 4 * kib);
  EXPECT_EQ(now.bytes, 8 * kib);
  EXPECT_EQ(now.grown, 2U);
  EXPECT_EQ(now.returned, 0U);
  expect_error<pool_exhausted>([&] { static_cast<void>(pool.claim(one, 8 * kib)); },
                               {"\"bytes_leaked\": 4096"});
}

TEST_F(ScratchPolicy, ARefusalOfAClaimAtNoLineNamesNone) {
  scratch_pool pool(named(), limited_to(4 * kib));
  auto const held = pool.claim(one, 4 * kib);
  std::string const text = expect_error<pool_exhausted>(
      [&] { static_cast<void>(pool.claim(one, 2 * kib, source_location())); },
      {"asked for: 2048 bytes of \"scratch of 2048 bytes\""});
  EXPECT_EQ(text.find(":0"), std::string::npos) << text;
}

TEST_F(ScratchPolicy, TrimFreesWhatIsIdleAndKeepsTheRest) {
  scratch_pool pool(named(), {.source = memory->source()});
  claim_and_release(pool, {1 * kib, 2 * kib, 4 * kib});
  EXPECT_EQ(pool.trim(7 * kib), 0U);
  EXPECT_GT(pool.trim(6 * kib), 0U);
  EXPECT_LE(pool.bytes(), 6 * kib);
  owned_graph graph = captured_claim(pool, 8 * kib);
  auto const held = pool.claim(one, 16 * kib);
  {
    capture captured{one, cudaStreamCaptureModeGlobal};
    EXPECT_GT(pool.trim(), 0U);
    EXPECT_TRUE(captured.is_active());
  }
  scratch_stats const now = pool.stats();
  EXPECT_EQ(now.bytes_in_graphs, 8 * kib);
  EXPECT_EQ(now.bytes_in_use, 16 * kib);
  EXPECT_EQ(now.bytes_idle, 0U);
  EXPECT_EQ(now.grown, now.returned + 2);
  EXPECT_EQ(memory->used.load(), (8 + 16) * kib);
  use_behind_flag(pool, 32 * kib);
  EXPECT_EQ(pool.trim(), 0U);
  flag.raise();
  sync(two);
  EXPECT_EQ(pool.trim(), 32 * kib);
  graph.reset();
  EXPECT_TRUE(wait_until([&] { return pool.trim() == 8 * kib; }));
  EXPECT_EQ(memory->used.load(), 16 * kib);
}

TEST_F(ScratchPolicy, BlocksThatTwoChecksFindUnusedAreFreedByTheWorkerAfterTheirWork) {
  scratch_pool pool(named(), {.idle_max = std::chrono::nanoseconds(1), .source = memory->source()});
  claim_and_release(pool, {4 * kib});
  use_behind_flag(pool, 2 * kib);
  for (int i = 0; i < 3; ++i) pool.claim(one, 1 * kib).release();
  EXPECT_TRUE(is_left(memory, 3 * kib))
      << "the one in use, and the one that is used again and again";
  EXPECT_TRUE(stays_false([&] { return memory->used.load() < 3 * kib; }));
  EXPECT_EQ(pool.stats().bytes_idle, 1 * kib);
  flag.raise();
  EXPECT_TRUE(is_left(memory, 1 * kib));
  // Counted after the memory is freed.
  EXPECT_TRUE(wait_until([&] { return pool.stats().returned == 2; }));
  scratch_pool keeps(named(), {.idle_max = std::chrono::hours(1)});
  claim_and_release(keeps, {4 * kib, 1 * kib, 1 * kib, 1 * kib});
  EXPECT_TRUE(drained());
  EXPECT_EQ(keeps.bytes(), 5 * kib);
}

TEST_F(ScratchPolicy, BlocksReturnToTheirSourceAlsoAfterTheirPool) {
  auto pool = std::make_optional<scratch_pool>(named(), limited_to(8 * kib));
  owned_graph graph =
      captured_plainly([&](cudaStream_t on) { static_cast<void>(pool->claim(on, 1 * kib)); });
  auto held = std::make_optional(pool->claim(one, 2 * kib));
  pool->claim(one, 4 * kib).release();
  *pool = scratch_pool(named());
  pool.reset();
  EXPECT_TRUE(is_left(memory, 3 * kib));
  graph.reset();
  EXPECT_TRUE(is_left(memory, 2 * kib));
  held.reset();
  EXPECT_TRUE(is_left(memory, 0));
}

TEST_F(ScratchPolicy, ThreadsThatShareALimitNeverFindItReachedWhileThereIsRoom) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t largest = 16 * kib;
  scratch_pool pool(named(generous), limited_to(threads * largest));
  {
    std::vector<std::jthread> all;
    for (std::size_t t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        owned_stream const mine = make_stream();
        for (std::size_t i = 0; i < 300; ++i) {
          try {
            std::size_t const bytes = largest - (i * 7 + t * 5) % 12 * kib;
            auto const claimed = pool.claim(mine, bytes);
            must(cudaMemsetAsync(claimed->data(), 1, bytes, mine));
            if (i % 50 == t) pool.trim();
          } catch (std::exception const& error) {
            ADD_FAILURE() << error.what();
            return;
          }
        }
        sync(mine);
      });
    }
  }
  EXPECT_LE(pool.stats().bytes_peak, threads * largest);
}

// Sources.

TEST_F(ScratchPolicy, PinnedHostMemoryOfAGraphIsReadAgainByEachLaunch) {
  scratch_pool staging(named(), {.source = memory_source::pinned_host()});
  scratch_pool pool(named());
  auto const result = pool.claim<int>(two, 4);
  int* source = nullptr;
  owned_graph graph = captured_plainly([&](cudaStream_t on) {
    auto const staged = staging.claim<int>(on, 4);
    source = staged.data();
    must(cudaMemcpyAsync(result.data(), source, 4 * sizeof(int), cudaMemcpyHostToDevice, on));
  });
  owned_exec const exec = instantiate(graph);
  for (int const value : {3, 4}) {
    std::fill_n(source, 4, value);
    must(cudaGraphLaunch(exec, two));
    must(launch_check(two, result.data(), 4, value, mismatches.data()));
    sync(two);
    EXPECT_EQ(staging.trim(), 0U) << "the graph holds it";
  }
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ScratchPolicy, MemoryOfAMemPoolIsUsableOnEveryStreamAndInCaptures) {
  cudaMemPool_t from = nullptr;
  must(cudaDeviceGetDefaultMemPool(&from, 0));
  scratch_pool pool(named(), {.source = memory_source::from(from)});
  for (cudaStream_t const stream : {one.get(), two.get()}) {
    auto const claimed = pool.claim<int>(stream, 64);
    must(launch_fill(stream, claimed.data(), 64, 5));
    must(launch_check(stream, claimed.data(), 64, 5, mismatches.data()));
  }
  capture captured{one, cudaStreamCaptureModeGlobal};
  {
    auto const claimed = pool.claim<int>(one, 640);
    must(launch_fill(one, claimed.data(), 640, 6));
    must(launch_check(one, claimed.data(), 640, 6, mismatches.data()));
  }
  expect_right_results(captured);
  sync(one);
  EXPECT_NE(pool.trim(), 0U);
}

// Typed memory and devices.

TEST_F(ScratchPolicy, RefusesMoreElementsThanFitAndASourceWithoutFunctions) {
  constexpr auto count = std::numeric_limits<std::size_t>::max() / 4;
  scratch_pool pool(named());
  expect_error<usage_error>([&] { return pool.claim<double>(one, count); },
                            {"scratch_pool::claim: `count` is ", "elements"});
  expect_error<usage_error>([&] { device_buffer<double> refused(count); }, {"device_buffer: "});
  expect_error<usage_error>([&] { scratch_pool refused(named(), {.source = {}}); },
                            {"scratch_pool: ", "policy.source", "allocate and free"});
}

TEST_F(ScratchPolicy, OfSeveralDevicesIsOnePoolForEachThatIsAskedFor) {
  scratch_pools pools(named());
  EXPECT_EQ(&pools.on(0), &pools.on(0));
  EXPECT_EQ(pools.on(0).claim(one, 100)->size(), 256U);
  for (int const wrong : {-1, 1000}) EXPECT_THROW(static_cast<void>(pools.on(wrong)), cuda_error);
  scratch_pools wrong(named(), {.source = {}});
  for (int i = 0; i < 2; ++i) {  // that one failed does not keep the next from trying
    expect_error<usage_error>([&] { return &wrong.on(0); }, {"policy.source"});
  }
  if (!has_two_devices()) GTEST_SKIP() << "the rest needs two devices";
  owned_stream const far = make_stream_of(1);
  EXPECT_EQ(pools.on(1).claim(far, 100)->size(), 256U);
  expect_error<usage_error>([&] { return pools.on(1).claim(one, 100); },
                            {"`stream` is of device 0, the pool \"scratch\" of device 1"});
}

}  // namespace
}  // namespace escrow::test
