// SPDX-License-Identifier: Apache-2.0
// A lease: released once, on its stream or another, moved, and told of further streams; in
// captures, and as an argument of kernels and nodes.
#include <escrow/nodes.hpp>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class Lease : public pool_world {};

TEST_F(Lease, AnEmptyLeaseRefusesEveryCallByName) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  block_lease moved = std::move(held);
  struct row {
    char const* name;
    std::function<void(block_lease&)> call;
  };
  row const rows[] = {{"lease::release", [](auto& it) { it.release(); }},
                      {"lease::release", [&](auto& it) { it.release(two.get()); }},
                      {"lease::record_stream", [&](auto& it) { it.record_stream(two.get()); }},
                      {"lease::get", [](auto& it) { static_cast<void>(it.get()); }},
                      {"launch", [&](auto& it) { it.before_launch(two.get()); }},
                      {"the lease", [](auto& it) { static_cast<void>(it.share_with_node()); }}};
  auto const expect_empty = [&](block_lease& it) {
    EXPECT_FALSE(it);
    for (row const& each : rows) {
      expect_error<usage_error>([&] { each.call(it); }, {each.name, "empty"});
    }
  };
  expect_empty(held);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_TRUE(moved);
  moved.release();
  expect_empty(moved);
  EXPECT_EQ(pool.claim(one)->number(), 0);
}

TEST_F(Lease, MoveAssignmentReleasesWhatWasHeldAndLeavesTheSourceEmpty) {
  block_pool pool = make_pool(2);
  block_lease first = pool.claim(one);
  block_lease second = pool.claim(one);
  first = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): the state is documented
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(pool.claim(one)->number(), 0);
  block_lease& same = first;
  first = std::move(same);
  EXPECT_EQ(first->number(), 1) << "an assignment to itself keeps the lease";
}

TEST_F(Lease, ReleasedOnAnotherStreamItIsThatStreamsNextSlot) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(one);
  fill(held, one, 3);
  order(one, two);
  keep_busy(held, two, 4);
  held.release(two.get());
  pool.claim(two).release();
  EXPECT_EQ(pool.stats().stream_waits, 0U);
  expect_next_waits(pool, three, 4);
}

TEST_F(Lease, RecordStreamMakesTheNextUseWaitForEveryStream) {
  for (cudaStream_t const next : {asking.get(), one.get()}) {  // also on the lease's own stream
    pinned_flag flags[2];
    block_pool pool = make_pool(1);
    {
      block_lease held = pool.claim(one);
      held.record_stream(two);
      held.record_stream(three);
      must(launch_wait_flag(two, flags[0].get()));
      must(launch_wait_flag(three, flags[1].get()));
      fill(held, three, 9);
    }
    block_lease held = pool.claim(next);
    check(held, next, 9, mismatches);
    flags[0].raise();
    sync(two);
    EXPECT_TRUE(stays_busy(next));
    flags[1].raise();
    sync(next);
    held.release();
    end(pool);
  }
}

TEST_F(Lease, TheStreamsOfOneLeaseDoNotDelayALaterOne) {
  block_pool pool = make_pool(1);
  {
    block_lease held = pool.claim(one);
    held.record_stream(two);
  }
  pool.claim(one).release();
  hold_up(two);  // after the release
  block_lease const held = pool.claim(three);
  sync(three);
  EXPECT_FALSE(is_idle(two));
}

class LibraryCall : public pool_world {};

TEST_F(LibraryCall, GivesTheSameResultEagerAndCapturedInEveryMode) {
  block_pool pool = make_pool(4);
  use(pool, two, 1);
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    capture captured{two, mode};
    use(pool, two, 2);
    EXPECT_TRUE(captured.is_active()) << testing::PrintToString(mode);
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    for (int i = 0; i < 5; ++i) must(cudaGraphLaunch(exec, two));
    use(pool, two, 3);
    sync(two);
  }
}

TEST_F(LibraryCall, InAnInvalidatedCaptureIsRefusedByName) {
  block_pool pool = make_pool(1);
  capture captured{one, cudaStreamCaptureModeGlobal};
  invalidate(one);
  std::pair<char const*, std::function<void()>> const calls[] = {
      {"resource_pool::claim:", [&] { static_cast<void>(pool.claim(one)); }},
      {"resource_pool::try_claim:", [&] { static_cast<void>(pool.try_claim(one)); }},
      {"resource_pool::try_claim_for:",
       [&] { static_cast<void>(pool.try_claim_for(one, generous)); }}};
  for (auto const& [name, call] : calls) expect_error<usage_error>(call, {name, "invalidated"});
  EXPECT_EQ(made(), 0);
}

class CapturedLifetime : public pool_world {};

TEST_F(CapturedLifetime, ACaptureThatComesToNothingReturnsTheSlot) {
  struct row {
    char const* name;
    std::function<void(block_pool&)> run;
  };
  row const rows[] = {
      {"its graph is destroyed", [&](auto& pool) { static_cast<void>(captured_use(pool)); }},
      {"it is invalidated",
       [&](auto& pool) {
         capture captured{one, cudaStreamCaptureModeGlobal};
         use(pool, one);
         invalidate(one);
         EXPECT_EQ(captured.end(), cudaErrorStreamCaptureInvalidated);
       }},
      {"its stream is destroyed", [&](auto& pool) {
         owned_stream const destroyed = make_stream();
         must(cudaStreamBeginCapture(destroyed, cudaStreamCaptureModeGlobal));
         use(pool, destroyed);
       }}};
  for (row const& each : rows) {
    block_pool pool = make_pool(1);
    each.run(pool);
    EXPECT_TRUE(is_released(pool)) << each.name;
  }
}

// The worker may be taking it from the graph to its free list.
TEST_F(CapturedLifetime, ASlotIsFreeAtOnceWhenItsGraphIsDestroyed) {
  constexpr int rounds = is_sanitized ? 10'000 : 100'000;
  block_pool pool = make_pool(1);
  for (int i = 0; i < rounds; ++i) {
    {
      capture captured{one, cudaStreamCaptureModeThreadLocal};
      ASSERT_TRUE(pool.try_claim(one).has_value()) << "round " << i;
      must(captured.end());
    }
    ASSERT_TRUE(pool.try_claim(two).has_value()) << "round " << i;
    sync(two);
  }
}

// When the graph is captured into again, the stream given to record_stream() is not in that
// capture.
TEST_F(CapturedLifetime, ALeaseIsReleasedInItsCaptureOnlyIfAllItsStreamsAreStillInIt) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  owned_graph graph = captured_plainly([&](cudaStream_t on) {
    held = pool.claim(on);
    order(on, two);
    held->record_stream(two);
    fill(*held, two, 1);
    order(two, on);
  });
  capture_into(graph, [&](cudaStream_t) {
    expect_error<usage_error>([&] { held->release(); }, {"lease::release", "record_stream",
                                                         "not part of the capture any more"});
  });
  held->release();
  EXPECT_TRUE(is_kept(pool)) << "its graph has it";
  graph.reset();
  EXPECT_TRUE(is_released(pool));
}

// As an argument of a kernel or node: the resource's device value is passed, and the slot is handed
// out again only after the kernel, or when no graph has the node.
class LeaseArgument : public pool_world {
 protected:
  void launch_fill(stream_ref stream, auto&& memory, int value) {
    launch(stream, fill, {}, memory, block::length, value);
  }
  void launch_check(stream_ref stream, auto&& memory, int value) {
    launch(stream, check, {}, memory, block::length, value, mismatches.data());
  }

  kernel const fill{kernel_address(kernel_id::fill)};
  kernel const check{kernel_address(kernel_id::check)};
};

TEST_F(LeaseArgument, AfterItsCaptureIsKnownToItsEndOnTheWorkerAlsoOnItsOwnStream) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  owned_graph graph = captured_plainly([&](cudaStream_t on) { held.emplace(pool.claim(on)); });
  hold_up(one);
  launch_fill(one.get(), *held, 4);
  worker->retire(two, *std::exchange(held, std::nullopt));
  ASSERT_TRUE(drained());
  graph.reset();
  expect_waits_for_record(pool, one);
}

TEST_F(LeaseArgument, OfTypedMemoryIsATypedPointer) {
  auto const typed_fill = function_of<int*, std::size_t, int>(kernel_id::fill);
  auto const typed_check = function_of<int const*, std::size_t, int, int*>(kernel_id::check);
  scratch_pool scratch;
  constexpr std::size_t count = 100;
  {
    auto memory = scratch.claim<int>(one, count);
    static_assert(std::is_same_v<decltype(detail::device_value_of(memory)), int*>);
    EXPECT_EQ(memory.size(), count);
    EXPECT_EQ(memory.data(), memory->data());
    launch(two.get(), typed_fill, {}, memory, memory.size(), 3);
    launch(two.get(), typed_check, {}, memory, count, 3, mismatches.data());
    sync(two);
    launch_fill(one.get(), memory, 4);
  }
  EXPECT_EQ(scratch.stats().bytes_idle, 448U);
  graph_exec exec(captured([&](cudaStream_t on) {
    auto memory = scratch.claim<int>(on, count);
    launch(on, typed_fill, {}, memory, count, 5);
  }));
  exec.launch(two.get());
  EXPECT_EQ(scratch.stats().bytes_in_graphs, 448U);
  device_buffer<int> buffer(count);
  int const* const data = buffer.data();
  launch(one.get(), typed_fill, {}, std::move(buffer), count, 6);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_NE(data, nullptr);
}

TEST_F(LeaseArgument, OfAnotherStreamThanItsOwnWaitsForThatOneToo) {
  for (bool const is_shared : {false, true}) {  // through a shared_ptr
    pinned_flag done;
    block_pool pool = make_pool(1);
    {
      auto const claimed = std::make_shared<block_lease>(pool.claim(one));
      must(launch_wait_flag(two, done.get()));
      for (int i = 0; i < 3; ++i) {
        if (is_shared) launch_fill(two.get(), claimed, 3);
        if (!is_shared) launch_fill(two.get(), *claimed, 3);
      }
    }
    std::optional<block_lease> again = pool.claim(one);  // waits in its stream
    launch_fill(one.get(), *again, 4);
    EXPECT_FALSE(is_idle(one)) << "the slot is still used on the other stream";
    done.raise();
    sync(one);
    again.reset();
    end(pool);
  }
}

TEST_F(LeaseArgument, StaysWithTheGraphThatCapturedTheLaunch) {
  block_pool pool = make_pool(1);
  {
    graph_exec exec(captured([&](cudaStream_t on) {
      auto claimed = pool.claim(on);
      launch_fill(on, claimed, 3);
      launch_check(on, claimed, 3);
    }));
    for (int i = 0; i < 10; ++i) exec.launch(two.get());
    EXPECT_TRUE(is_kept(pool));
  }
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseArgument, OfNoCaptureIsKeptByTheGraphOfOneAlsoOnItsOwnStream) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  claimed->record_stream(two);
  for (cudaStream_t const stream : {one.get(), two.get()}) {
    escrow::capture_scope open(stream, cudaStreamCaptureModeGlobal);
    launch_fill(stream, *claimed, 3);
    graph const captured = open.end();
    EXPECT_EQ(node_count(captured.get()), 1U);
    EXPECT_EQ(captured.held().slots, 1U);
    run(captured);
  }
  launch_fill(one.get(), *claimed, 4);
  launch_check(one.get(), *claimed, 4);
  claimed.reset();
  sync(one);
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseArgument, OfACaptureThatGoesOnIsRefusedInAnother) {
  block_pool pool = make_pool(1);
  escrow::capture_scope mine(one, cudaStreamCaptureModeRelaxed);
  block_lease claimed = pool.claim(one);
  escrow::capture_scope other(two, cudaStreamCaptureModeRelaxed);
  expect_error<usage_error>([&] { launch_fill(two.get(), claimed, 3); },
                            {"launch", "not part of the capture", "fork `stream`"});
  expect_error<usage_error>([&] { claimed.record_stream(two); },
                            {"lease::record_stream", "not part of the capture"});
  EXPECT_EQ(node_count(other.end().get()), 0U);
  claimed.release();
  static_cast<void>(mine.end());
}

class LeaseOfANode : public LeaseArgument {
 protected:
  /// A graph whose only node fills the resource.
  [[nodiscard]] graph filling(auto& claimed) {
    graph built(*worker);
    build(built).add(kernel_node(fill, {}, claimed, block::length, 3));
    return built;
  }
};

TEST_F(LeaseOfANode, StaysWithTheGraphItsCloneTheirExecsAndLaunches) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  std::optional<graph> built = filling(*claimed);
  claimed.reset();
  EXPECT_TRUE(is_kept(pool));
  std::optional<graph> copy = built->clone();
  built.reset();
  EXPECT_TRUE(is_kept(pool));
  std::optional<graph_exec> exec(*copy);
  EXPECT_TRUE(exec->is_bare());
  copy.reset();
  EXPECT_TRUE(is_kept(pool));
  hold_up(two);
  exec->launch(two.get());
  exec.reset();
  EXPECT_TRUE(is_kept(pool));
  flag.raise();
  EXPECT_TRUE(is_released(pool));
}

TEST_F(LeaseOfANode, StaysWithTheLeaseThatOutlivesTheGraph) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  static_cast<void>(filling(*claimed));
  EXPECT_TRUE(is_kept(pool));
  launch_fill(one.get(), *claimed, 4);
  launch_check(one.get(), *claimed, 4);
  claimed.reset();
  EXPECT_TRUE(is_released(pool));
  EXPECT_EQ(pool.stats().slots, 1U);
}

TEST_F(LeaseOfANode, OfACaptureIsHandedOutToNoOtherClaimOfIt) {
  block_pool pool = make_pool(2);
  graph built(*worker);
  graph const first = captured([&](cudaStream_t on) {
    {
      auto claimed = pool.claim(on);
      build(built).add(kernel_node(fill, {}, claimed, block::length, 3));
    }
    static_cast<void>(pool.claim(on));
  });
  EXPECT_EQ(pool.stats().slots, 2U);
}

}  // namespace
}  // namespace escrow::test
