// SPDX-License-Identifier: Apache-2.0
// A pool's resources: made, recycled, and destroyed once when they are back. The end of a pool
// names what holds slots, and nothing waits for the GPU.
#include <escrow/nodes.hpp>
#include <limits>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class Resources : public pool_world {
 protected:
  /// A pool that sets each used block to `pattern` before it is handed out again.
  [[nodiscard]] block_pool recycling_pool(std::size_t slots_max, int pattern) {
    return block_pool{options(slots_max), [this] { return block{counts}; },
                      [pattern](block& used, stream_ref stream) {
                        must(launch_fill(stream.get(), used.data(), block::length, pattern));
                      }};
  }
};

TEST_F(Resources, ANewOneIsNotRecycledAndAUsedOneIs) {
  int recycled = 0;
  block_pool pool{options(2), [this] { return block{counts}; },
                  [&recycled](block&, stream_ref) { ++recycled; }};
  pool.claim(one).release();
  EXPECT_EQ(recycled, 0);
  pool.claim(one).release();
  EXPECT_EQ(recycled, 1);
}

TEST_F(Resources, AreRecycledInTheOrderOfTheClaimingStream) {
  block_pool pool = recycling_pool(1, 5);
  use_behind_flag(pool, one);
  expect_next_waits(pool, two, 5);
}

TEST_F(Resources, AreRecycledAtEveryLaunchOfACapturedClaim) {
  block_pool pool = recycling_pool(2, 5);
  capture captured{one, cudaStreamCaptureModeGlobal};
  {
    block_lease held = pool.claim(one);  // new, but the graph will be launched again
    check(held, one, 5, mismatches);
    fill(held, one, 6);
  }
  expect_right_results(captured);
}

TEST_F(Resources, AreEachGivenToDestroyOnceOnTheWorkerBeforeTheirEnd) {
  std::atomic<int> destroyed{0};
  std::atomic<bool> is_right{true};
  auto const here = std::this_thread::get_id();
  {
    auto const destroy = [&](block& dying) {
      destroyed.fetch_add(1);
      if (std::this_thread::get_id() == here || dying.data() == nullptr) is_right.store(false);
    };
    block_pool pool{options(3), [this] { return block{counts}; }, {}, destroy};
    block_lease const first = pool.claim(one);
    block_lease const second = pool.claim(one);
  }
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 2; }));
  EXPECT_EQ(destroyed.load(), 2);
  EXPECT_TRUE(is_right.load());
}

TEST_F(Resources, MayHaveLeasesOfOtherPools) {
  block_pool inner = make_pool(2);
  using both = std::pair<block, block_lease>;
  {
    resource_pool<both> outer{options(2), [&] { return both{block{counts}, inner.claim(one)}; }};
    outer.claim(one).release();
    EXPECT_EQ(inner.stats().slots, 1U);
  }
  // The inner lease is released before its neighbour is destroyed.
  EXPECT_TRUE(wait_until([&] { return counts.destroyed.load() == 1; }));
  EXPECT_TRUE(inner.try_claim(one).has_value());
}

TEST_F(Resources, MoveWithTheirPool) {
  block_pool pool = make_pool(1);
  pool.claim(one).release();
  block_pool moved = std::move(pool);
  EXPECT_EQ(moved.claim(one)->number(), 0);
  moved = make_pool(1);
  EXPECT_EQ(moved.claim(one)->number(), 1);
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 1; }));
}

TEST_F(Resources, NeedADeviceThatExists) {
  pool_options chosen = options(1);
  for (int const missing : {-2, std::numeric_limits<int>::min(), 1000}) {
    chosen.device = missing;
    EXPECT_THROW(static_cast<void>(make_pool(chosen)), cuda_error) << missing;
    EXPECT_THROW(scratch_pool{chosen}, cuda_error) << missing;
    EXPECT_THROW(stream_allocator{chosen}, cuda_error) << missing;
  }
}

class Close : public pool_world {
 protected:
  [[nodiscard]] bool are_destroyed(int count) {
    return wait_until([&] { return counts.destroyed.load() == count; });
  }
};

TEST_F(Close, WaitsAsLongAsItMayAndReturnsEarlyWhenAllIsBack) {
  block_pool pool = make_pool(2);
  std::optional<block_lease> held = pool.claim(one);
  auto const begin = clock::now();
  EXPECT_EQ(pool.close_for(50ms).size(), 1U);
  EXPECT_GE(clock::now() - begin, 50ms);
  std::atomic<bool> is_waiting{false};
  {
    std::jthread const closing([&] {
      is_waiting.store(true);
      EXPECT_TRUE(pool.close_for(60s).empty());
    });
    EXPECT_TRUE(wait_until([&] { return is_waiting.load(); }));
    held.reset();
  }
  EXPECT_LT(clock::now() - begin, generous);
}

TEST_F(Close, DoesNotWaitForARunningKernelButItsResourceDoes) {
  for (bool const is_destroyed : {false, true}) {  // the pool, or only closed
    pinned_flag done;
    int const before = counts.destroyed.load();
    std::optional<block_pool> pool = make_pool(1);
    {
      block_lease held = pool->claim(one);
      held.record_stream(two);
      must(launch_wait_flag(two, done.get()));
      fill(held, two, 1);
    }
    std::size_t const held_by = is_destroyed ? 0 : pool->close_for(0ns).size();
    EXPECT_EQ(held_by, 0U);
    if (is_destroyed) pool.reset();  // returns, or this test never ends
    EXPECT_FALSE(is_idle(two));
    EXPECT_TRUE(stays_false([&] { return counts.destroyed.load() != before; }));
    done.raise();
    EXPECT_TRUE(are_destroyed(before + 1));
    sync(two);
  }
}

TEST_F(Close, ADrainWaitsForASlotOfAClosedPoolHoweverManyStreamsUsedIt) {
  constexpr std::size_t many = 9;
  std::vector<pinned_flag> flags(many);
  std::vector<owned_stream> streams(many);
  std::optional<block_pool> pool = make_pool(1);
  {
    block_lease held = pool->claim(one);
    for (std::size_t i = 0; i < many; ++i) {
      streams[i] = make_stream();
      held.record_stream(streams[i]);
      must(launch_wait_flag(streams[i], flags[i].get()));
    }
  }
  pool.reset();
  std::atomic<bool> is_drained{false};
  std::jthread const draining([&] {
    EXPECT_TRUE(worker->drain_for(60s));
    EXPECT_EQ(counts.destroyed.load(), 1);
    is_drained.store(true);
  });
  for (std::size_t i = many; i-- > 0;) {
    EXPECT_TRUE(stays_false([&] { return is_drained.load(); })) << i + 1 << " streams are busy";
    flags[i].raise();
  }
}

/// What holds a slot, for as long as it is not destroyed.
using holding = std::shared_ptr<void>;

template <class Holder>
[[nodiscard]] holding keep(Holder&& holder) {
  return std::make_shared<std::decay_t<Holder>>(std::forward<Holder>(holder));
}

/// A pool, and what a report has to say of the one slot that is out.
class Holders : public pool_world {
 protected:
  /// A graph built by hand, whose node has a share in the slot.
  [[nodiscard]] holding share_of_a_node() {
    graph built(*worker);
    block_lease claimed = pool->claim(one);
    earliest = clock::now();
    build(built).add(
        kernel_node(kernel(kernel_address(kernel_id::fill)), {}, claimed, block::length, 1));
    latest = clock::now();
    return keep(std::move(built));
  }
  [[nodiscard]] block_lease claim_captured(cudaStream_t stream) {
    id = info_of(stream).id;
    line = __LINE__ + 2;
    earliest = clock::now();
    block_lease claimed = pool->claim(stream);
    latest = clock::now();
    return claimed;
  }
  [[nodiscard]] holding open_capture(bool has_lease) {
    auto const open = std::make_shared<capture>(one, cudaStreamCaptureModeGlobal);
    block_lease held = claim_captured(one);
    if (!has_lease) held.release();
    return keep(std::pair(open, std::move(held)));
  }
  /// Holds the slot and, launched, waits for `done`.
  [[nodiscard]] graph captured_use() {
    return captured([&](cudaStream_t on) {
      must(launch_wait_flag(on, done->get()));
      block_lease claimed = claim_captured(on);
      fill(claimed, on, 1);
    });
  }

  std::optional<block_pool> pool{make_pool(8)};
  std::optional<pinned_flag> done;
  std::uint64_t id = 0;
  unsigned line = 0;
  clock::time_point earliest{};
  clock::time_point latest{};
};

TEST_F(Holders, AreNamedByCloseForWithIdLabelCountTimeAndPlace) {
  struct row {
    char const* name;
    std::function<holding()> hold;
  };
  row const rows[] = {{"a lease", [&] { return keep(pool->claim(one)); }},
                      {"an open capture with a lease", [&] { return open_capture(true); }},
                      {"an open capture", [&] { return open_capture(false); }},
                      {"a graph", [&] { return keep(captured_use()); }},
                      {"its clone", [&] { return keep(captured_use().clone()); }},
                      {"an exec that was launched",
                       [&] {
                         done->raise();
                         auto const exec = std::make_shared<graph_exec>(captured_use());
                         run(*exec);
                         return exec;
                       }},
                      {"a plain exec",
                       [&] {
                         owned_graph const source{captured_use().detach()};
                         return keep(instantiate(source));
                       }},
                      {"an exec destroyed in flight",
                       [&] {
                         graph_exec(captured_use()).launch(two);
                         return std::shared_ptr<pinned_flag>(&*done, [](auto* of) { of->raise(); });
                       }},
                      {"a node's share", [&] { return share_of_a_node(); }}};
  for (row const& each : rows) {
    SCOPED_TRACE(each.name);
    pool.emplace(make_pool(8));
    done.emplace();
    id = line = 0;
    earliest = latest = {};
    holding held = each.hold();
    auto const all = pool->close_for(0ns);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].label, "blocks");
    EXPECT_EQ(all[0].slots, 1U);
    EXPECT_EQ(all[0].capture_id, id);
    EXPECT_GE(all[0].since, earliest);
    EXPECT_LE(all[0].since, latest);
    EXPECT_EQ(all[0].where.line(), line);
    std::string const file = id == 0 ? "" : __FILE__;
    EXPECT_EQ(all[0].where.file_name(), file);
    held.reset();
    end(*pool);
  }
}

TEST_F(Holders, AreNamedApartFirstGraphsThenSharesThenLeases) {
  std::optional<block_lease> leased = pool->claim(one);
  block_lease const second = pool->claim(one);
  holding share = share_of_a_node();
  std::optional<graph> source = captured([&](cudaStream_t on) {
    block_lease const both[] = {pool->claim(on), pool->claim(on)};
    must(launch_tiny(on));
  });
  capture open{two, cudaStreamCaptureModeGlobal};
  claim_captured(two).release();
  auto const all = pool->close_for(1ms);
  ASSERT_EQ(all.size(), 4U);
  std::uint64_t const ids[] = {source->id(), id, 0, 0};
  std::size_t const slots[] = {2, 1, 1, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].capture_id, ids[i]);
    EXPECT_EQ(all[i].slots, slots[i]);
    EXPECT_EQ(all[i].label, "blocks");
    EXPECT_EQ(all[i].since == clock::time_point{}, i == 3);
  }
  leased.reset();
  EXPECT_EQ(pool->close_for(0ns).back().slots, 1U);
  source.reset();
  share.reset();
  EXPECT_TRUE(wait_until([&] { return pool->close_for(0ns).size() == 2; }));
  must(open.end());
}

class PoolEnd : public Close {};

TEST_F(PoolEnd, IsLeftToTheWorkerByAClaimThatRecyclesItsLastSlot) {
  deleter polled{deleter_options{.own_worker = false}};
  pool_options chosen = options(1);
  chosen.deleter = &polled;
  {
    std::optional<block_pool> ended = make_pool(chosen);
    block_pool other = make_pool(chosen);
    owned_graph graph = captured_use(*ended);
    block_lease const only = other.claim(one);
    ended.reset();
    graph.reset();
    EXPECT_FALSE(other.try_claim(one).has_value());
    EXPECT_EQ(counts.destroyed.load(), 0);
    EXPECT_TRUE(polled.drain_for(generous));
    EXPECT_EQ(counts.destroyed.load(), 1);
  }
  sync(one);
  EXPECT_TRUE(polled.drain_for(generous));
}

}  // namespace
}  // namespace escrow::test
