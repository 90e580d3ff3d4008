// SPDX-License-Identifier: Apache-2.0
// "Out of memory" and "exhausted" are last words: what a claim takes back and waits for before, and
// which remedy its error names.
#include <algorithm>
#include <limits>

#include "allocation_watch.hpp"
#include "counted_memory.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

using std::chrono::milliseconds;
constexpr std::size_t kib = 1024;

class LastWords : public pool_world {
 protected:
  [[nodiscard]] pool_options named(std::size_t slots_max = 4) {
    pool_options chosen = options(slots_max);
    chosen.label = "scratch";
    chosen.capture_wait_max = {};
    return chosen;
  }
  [[nodiscard]] scratch_pool make_scratch(pool_options const& chosen, scratch_policy policy = {}) {
    policy.source = memory->source();
    return scratch_pool(chosen, policy);
  }
  /// Memory of the same source, whose work is done when this returns, belongs to the deleter.
  void retire_memory(deleter& its, std::size_t bytes) {
    device_block used(bytes, memory->source());
    must(cudaMemsetAsync(used.data(), 1, bytes, one));
    sync(one);
    its.retire(one, std::move(used));
  }
  [[nodiscard]] std::string refused(scratch_pool& pool, std::size_t bytes) {
    return message_of<std::runtime_error>([&] { static_cast<void>(pool.claim(one, bytes)); });
  }
  static void expect_in(std::string const& text, std::vector<std::string> const& parts) {
    for (auto const& each : parts) EXPECT_NE(text.find(each), std::string::npos) << each << text;
  }
  static void expect_not_in(std::string const& text, std::vector<std::string> const& parts) {
    for (auto const& each : parts) EXPECT_EQ(text.find(each), std::string::npos) << each << text;
  }
  std::shared_ptr<counted_memory> const memory = std::make_shared<counted_memory>();
};

// Out of memory.

TEST_F(LastWords, AClaimGetsTheMemoryThatWasRetiredAndIsDone) {
  memory->capacity = 4 * kib;
  scratch_pool pool = make_scratch(with(named(), &pool_options::reclaim_wait_max, generous));
  for (deleter* const its : {worker.get(), &deleter::global()}) {
    for (int i = 0; i < 50; ++i) {
      retire_memory(*its, 4 * kib);
      if (i % 2 == 0) {
        EXPECT_EQ(pool.claim(one, 4 * kib)->size(), 4 * kib);
      } else {
        capture captured{two, cudaStreamCaptureModeGlobal};
        EXPECT_EQ(pool.claim(two, 4 * kib)->size(), 4 * kib);
        must(captured.end());
      }
      ASSERT_TRUE(wait_until([&] { return pool.trim() == 4 * kib; }));
    }
  }
}

TEST_F(LastWords, AClaimGetsWhatAnOwnerRetiresAtItsEnd) {
  memory->capacity = 4 * kib;
  scratch_pool pool = make_scratch(with(named(), &pool_options::reclaim_wait_max, generous));
  for (int i = 0; i < 10; ++i) {
    auto last = std::make_shared<device_block>(4 * kib, memory->source());
    auto const fate = make_fate(
        [&, kept = std::move(last)]() mutable { worker->retire(std::exchange(kept, nullptr)); });
    worker->retire(probe(fate));
    EXPECT_EQ(pool.claim(one, 4 * kib)->size(), 4 * kib);
    EXPECT_EQ(pool.trim(), 4 * kib);
    EXPECT_EQ(fate->thread_name, "escrow") << "a claim has run an owner's destructor";
  }
}

TEST_F(LastWords, OutOfMemoryIsSaidAtOnceIfNothingIsLeftToReclaim) {
  memory->capacity = 4 * kib;
  scratch_pool pool = make_scratch(with(named(), &pool_options::reclaim_wait_max, generous));
  ASSERT_TRUE(drained() && deleter::global().drain_for(generous));
  auto const before = std::chrono::steady_clock::now();
  std::string const text = refused(pool, 8 * kib);
  EXPECT_LT(std::chrono::steady_clock::now() - before, generous / 2);
  expect_in(text, {"cudaErrorMemoryAllocation", "\nclaim less"});
  expect_not_in(text, {"wait_max", "raise"});
  auto const held = pool.claim(one, 4 * kib);
  expect_in(refused(pool, 8 * kib), {"\nrelease earlier or claim less"});
}

TEST_F(LastWords, OutOfMemoryNamesTheWaitForAWorkerThatIsLate) {
  memory->capacity = 4 * kib;
  block_worker();
  retire_memory(*worker, 4 * kib);
  for (auto const wait_max : {milliseconds(0), milliseconds(20)}) {
    scratch_pool pool = make_scratch(with(named(), &pool_options::reclaim_wait_max, wait_max));
    auto const before = std::chrono::steady_clock::now();
    std::string const text = refused(pool, 4 * kib);
    EXPECT_GE(std::chrono::steady_clock::now() - before, wait_max);
    EXPECT_LT(std::chrono::steady_clock::now() - before, generous);
    expect_in(text, {"cudaErrorMemoryAllocation",
                     "reclaim_wait_max (" + std::to_string(wait_max.count()) + " ms)"});
    expect_not_in(text, {"host_wait_max", "capture_wait_max", "raise"});
  }
  // try_claim never waits.
  pool_options const chosen = with(options(4), &pool_options::reclaim_wait_max, 100 * generous);
  resource_pool<device_block> blocks(
      chosen, [its = memory->source()] { return device_block(4 * kib, its); });
  EXPECT_THROW(static_cast<void>(blocks.try_claim(one)), cuda_error);
  may_end.store(true);
  EXPECT_EQ(blocks.claim(one)->size(), 4 * kib);
}

TEST_F(LastWords, AClaimOnTheWorkerDoesNotWaitForIt) {
  memory->capacity = 4 * kib;
  scratch_pool pool = make_scratch(with(named(), &pool_options::reclaim_wait_max, 100 * generous));
  auto const held = pool.claim(one, 4 * kib);
  std::atomic<int> refusals{0};
  auto const fate = make_fate([&] {
    try {
      static_cast<void>(pool.claim(two, 4 * kib + 1));
    } catch (cuda_error const&) {
      ++refusals;
    }
  });
  worker->retire(probe(fate));
  worker->retire(probe(make_fate()));  // is left to be reclaimed meanwhile
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(refusals.load(), 1);
}

// A slot counts until its memory is given back.

TEST_F(LastWords, IdleBlocksThatABlockedWorkerCannotFreeAreClaimedAgain) {
  scratch_pool pool = make_scratch(named(1), {.idle_max = milliseconds(1)});
  block_worker();
  for (int i = 0; i < 60; ++i) {
    std::size_t const bytes = kib << (i % 3);
    EXPECT_EQ(pool.claim(one, bytes)->size(), bytes);
    std::this_thread::sleep_for(std::chrono::microseconds(1'200));
    ASSERT_LE(memory->used.load(), 7 * kib);
  }
  may_end.store(true);
  EXPECT_TRUE(drained());
  EXPECT_LE(pool.bytes(), 7 * kib);
}

TEST_F(LastWords, NoSlotIsMadeInTheRoomOfOneThatIsBeingFreed) {
  std::atomic<int> alive{0};
  std::atomic<int> most{0};
  std::atomic<bool> is_freeing{false};
  std::atomic<bool> may_free{false};
  memory_source const slow{[&](void** address, std::size_t bytes) {
                             most = std::max(most.load(), ++alive);
                             return cudaMalloc(address, bytes);
                           },
                           [&](void* address) {
                             is_freeing = true;
                             EXPECT_TRUE(wait_until([&] { return may_free.load(); }, 4 * generous));
                             --alive;
                             return cudaFree(address);
                           },
                           "slow"};
  pool_options chosen = with(named(1), &pool_options::capture_wait_max, milliseconds(20));
  std::optional<scratch_pool> quick(std::in_place, chosen, scratch_policy{.source = slow});
  chosen.capture_wait_max = 4 * generous;
  std::optional<scratch_pool> patient(std::in_place, chosen, scratch_policy{.source = slow});
  for (scratch_pool* const pool : {&*quick, &*patient}) {
    may_free = is_freeing = false;
    pool->claim(one, kib).release();
    sync(one);
    std::jthread const trimming([&] { EXPECT_EQ(pool->trim(), kib); });
    ASSERT_TRUE(wait_until([&] { return is_freeing.load(); }));
    EXPECT_EQ(pool->stats().bytes, kib);
    if (pool == &*quick) {
      std::string const text = refused(*pool, kib);
      expect_in(text, {"being given back", "capture_wait_max (20 ms)", "slots_max (1)"});
      expect_not_in(text, {"host_wait_max", "bytes_max"});
      may_free = true;
    } else {
      std::jthread const raising([&] { may_free = true; });
      EXPECT_EQ(pool->claim(one, kib)->size(), kib);
    }
  }
  EXPECT_EQ(most.load(), 1);
  quick.reset();
  patient.reset();
  EXPECT_TRUE(wait_until([&] { return alive.load() == 0; }));
  EXPECT_TRUE(drained());
}

// Remedies that help.

TEST_F(LastWords, AClaimAboveThePolicysLimitIsRefusedAtOnceWithTheNumber) {
  scratch_pool pool = make_scratch(with(named(), &pool_options::host_wait_max, 100 * generous),
                                   {.bytes_max = 8 * kib});
  std::string const text =
      message_of<pool_exhausted>([&] { static_cast<void>(pool.claim(one, 9'000)); });
  expect_in(text, {"scratch_pool::claim: ", "9000 bytes", "10240", "bytes_max (8192)"});
  expect_not_in(text, {"wait_max", "all 0 slots", "slots_max"});
  expect_error<usage_error>([&] { return pool.claim(one, scratch_pool::bytes_max + 1); },
                            {"at most scratch_pool::bytes_max (1099511627776)"});
}

TEST_F(LastWords, EachRefusalNamesTheOptionThatWouldHaveHelpedAndItsValue) {
  scratch_pool slots = make_scratch(with(named(1), &pool_options::host_wait_max, milliseconds(3)));
  scratch_pool bytes = make_scratch(named(), {.bytes_max = 2 * kib});
  {
    auto const held = slots.claim(one, kib);
    std::string const text = refused(slots, kib);
    expect_in(text, {"all 1 slots", "(slots_max)", "raise slots_max (1), release earlier, or",
                     "host_wait_max (3 ms)"});
    expect_not_in(text, {"capture_wait_max", "reclaim_wait_max", "bytes_max"});
  }
  {
    auto const held = bytes.claim(one, 2 * kib);
    std::string const text = refused(bytes, kib);
    expect_in(text, {"(the limit in bytes)", "raise scratch_policy::bytes_max (2048), release",
                     "host_wait_max (0 ms)"});
    expect_not_in(text, {"capture_wait_max", "reclaim_wait_max", "raise slots_max"});
  }
  scratch_pool busy = make_scratch(with(named(1), &pool_options::capture_wait_max, milliseconds(5)),
                                   {.bytes_max = 2 * kib});
  {
    auto const used = busy.claim(two, 2 * kib);
    hold_up(two);
  }
  {
    capture captured{one, cudaStreamCaptureModeGlobal};
    std::string const text = refused(busy, 2 * kib);
    expect_in(text, {"in use by earlier work", "capture_wait_max (5 ms)", "slots_max (1)"});
    expect_not_in(text, {"host_wait_max", "reclaim_wait_max", "release earlier"});
    static_cast<void>(captured.end());
  }
  std::string const text = refused(busy, kib);
  expect_in(text, {"in use by earlier work", "capture_wait_max (5 ms)", "bytes_max (2048)"});
  expect_not_in(text, {"host_wait_max", "reclaim_wait_max", "release earlier", "raise slots_max"});
  flag.raise();
}

TEST_F(LastWords, NoSizeIsTooLargeToBeToldItsBlock) {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  for (std::size_t const bytes : {most, most - 1, most - (std::size_t{1} << 20)}) {
    EXPECT_GE(scratch_pool::block_bytes(bytes), bytes);
  }
  scratch_pool pool = make_scratch(named());
  auto claimer = pool.on(one);
  EXPECT_THROW(static_cast<void>(claimer.claim(most)), usage_error);
  EXPECT_THROW(static_cast<void>(pool.claim(one, most)), usage_error);
}

// What a sharing group holds.

class GroupsSizes : public LastWords {
 protected:
  [[nodiscard]] pool_options in_group(std::size_t slots_max = 64) {
    return with(named(slots_max), &pool_options::group, group);
  }
  [[nodiscard]] graph captured_claims(scratch_pool& pool, std::vector<std::size_t> const& sizes) {
    return captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> all;
      for (std::size_t const each : sizes) all.push_back(pool.claim(on, each));
    });
  }

  sharing_group group{{.label = "batches"}};
};

TEST_F(GroupsSizes, AKeptScalarDoesNotTakeALargeBlock) {
  scratch_pool pool = make_scratch(in_group());
  {
    graph const layers = captured([&](cudaStream_t on) {
      std::vector<lease<device_block>> scalars;
      for (int i = 0; i < 8; ++i) {
        static_cast<void>(pool.claim(on, 500 * kib));
        scalars.push_back(pool.claim(on, 4));
      }
    });
    EXPECT_LE(pool.bytes(), 500 * kib + 12 * kib + 8 * 256);
  }
  EXPECT_TRUE(drained());
}

TEST_F(GroupsSizes, GraphsOfFallingSizesNeedTheLargestAndTheirSmallBlocks) {
  scratch_pool pool = make_scratch(in_group());
  {
    std::vector<graph> all;
    for (std::size_t i = 0; i < 8; ++i) {
      std::vector<std::size_t> sizes(1 + i, 4 * kib);
      sizes.push_back((4096 - 256 * i) * kib);
      all.push_back(captured_claims(pool, sizes));
    }
    EXPECT_LE(pool.bytes(), (4096 + 8 * 4) * kib);
    all.push_back(captured_claims(pool, {1500 * kib}));
    EXPECT_LE(pool.bytes(), (4096 + 8 * 4) * kib) << "not more than four times too large";
  }
  EXPECT_TRUE(drained());
}

TEST_F(GroupsSizes, ALargerBlockServesBeforeAClaimIsRefused) {
  scratch_pool pool = make_scratch(in_group(), {.bytes_max = 64 * kib});
  {
    graph const first = captured_claims(pool, {64 * kib});
    graph const second = captured_claims(pool, {kib});
    EXPECT_EQ(pool.bytes(), 64 * kib);
  }
  EXPECT_TRUE(drained());
}

// It could not be given to the graph: it is as idle as before.
TEST_F(LastWords, AnIdleSlotThatACaptureGivesBackIsNotHiddenBehindBusyOnes) {
  bool has_failed = true;
  std::vector<std::unique_ptr<block_pool>>
      pools;  // until the flag is raised: a free waits for that
  for (std::uint64_t failing = 1; has_failed; ++failing) {
    pools.push_back(std::make_unique<block_pool>(
        make_pool(with(options(2), &pool_options::capture_wait_max, {}))));
    block_pool& pool = *pools.back();
    owned_stream const stream = make_stream();
    {
      block_lease const first = pool.claim(stream);
      pool.claim(stream).release();
    }
    sync(stream);
    use_behind_flag(pool, stream);
    capture captured{one, cudaStreamCaptureModeGlobal};
    try {
      allocation_watch const watch(failing);
      static_cast<void>(pool.claim(one));
      has_failed = false;
    } catch (std::bad_alloc const&) {
      EXPECT_NO_THROW(static_cast<void>(pool.claim(one))) << "it is behind a busy one";
    }
    must(captured.end());
  }
  flag.raise();
  sync_all();
}

}  // namespace
}  // namespace escrow::test
