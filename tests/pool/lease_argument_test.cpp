// Leases as kernel arguments: the resource's device value is passed, and the slot is handed out
// again only after the kernel, on whichever stream that ran.
#include <chrono>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "capture_fixture.hpp"

template <>
struct escrow::kernel_argument_traits<escrow::test::block> {
  static int* device_value(test::block const& object) { return object.data(); }
};

namespace escrow::test {
namespace {

class LeaseArgument : public captured_pool_test {
 protected:
  void TearDown() override {
    flag.raise();
    sync(one);
    sync(two);
    captured_pool_test::TearDown();
    EXPECT_EQ(mismatches.load(), 0);
  }
  void launch_fill(stream_ref stream, auto&& memory, int value) {
    launch(stream, fill, {}, memory, block::length, value);
  }
  void launch_check(stream_ref stream, auto&& memory, int value) {
    launch(stream, check, {}, memory, block::length, value, mismatches.data());
  }

  kernel const fill{kernel_address(kernel_id::fill)};
  kernel const check{kernel_address(kernel_id::check)};
  pinned_flag flag;
  owned_stream one = make_stream();
  owned_stream two = make_stream();
};

TEST_F(LeaseArgument, PassesWhatItsResourcePasses) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  launch_fill(one.get(), claimed, 3);
  launch_check(one.get(), claimed, 3);
  claimed.release();
}

TEST_F(LeaseArgument, OfAnotherStreamThanItsOwnWaitsForThatOneToo) {
  block_pool pool = make_pool(1);
  {
    auto claimed = pool.claim(one);
    must(launch_wait_flag(two, flag.get()));
    for (int i = 0; i < 3; ++i) launch_fill(two.get(), claimed, 3);
    launch_check(two.get(), claimed, 3);
  }
  auto again = pool.claim(one);  // waits in its stream
  launch_fill(one.get(), again, 4);
  EXPECT_EQ(cudaStreamQuery(one), cudaErrorNotReady)
      << "the slot is still used on the other stream";
  flag.raise();
}

TEST_F(LeaseArgument, ThroughASharedPointerIsToldAsWell) {
  block_pool pool = make_pool(1);
  {
    auto const claimed = std::make_shared<block_lease>(pool.claim(one));
    must(launch_wait_flag(two, flag.get()));
    launch_fill(two.get(), claimed, 3);
  }
  auto again = pool.claim(one);
  launch_fill(one.get(), again, 4);
  EXPECT_EQ(cudaStreamQuery(one), cudaErrorNotReady);
  flag.raise();
}

TEST_F(LeaseArgument, StaysWithTheGraphThatCapturedTheLaunch) {
  block_pool pool = make_pool(1);
  {
    graph_exec exec(escrow::capture(one.get(), [&](stream_ref stream) {
      auto claimed = pool.claim(stream);
      launch_fill(stream, claimed, 3);
      launch_check(stream, claimed, 3);
    }));
    for (int i = 0; i < 10; ++i) exec.launch(two.get());
    EXPECT_FALSE(pool.try_claim(one).has_value());
  }
  EXPECT_TRUE(wait_until([&] { return pool.try_claim(one).has_value(); }));
}

TEST_F(LeaseArgument, ThatIsEmptyIsRefused) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  claimed.release();
  EXPECT_THROW(launch_fill(one.get(), claimed, 3), usage_error);
}

TEST_F(LeaseArgument, OfNoCaptureIsRefusedInOneAlsoOnItsOwnStream) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  claimed.record_stream(two);
  for (cudaStream_t const stream : {one.get(), two.get()}) {
    escrow::capture_scope open(stream, cudaStreamCaptureModeGlobal);
    std::string const text = message_of<usage_error>([&] { launch_fill(stream, claimed, 3); });
    EXPECT_NE(text.find("claimed outside"), std::string::npos) << text;
    EXPECT_EQ(node_count(open.end().get()), 0U);
  }
  launch_fill(one.get(), claimed, 4);
  launch_check(one.get(), claimed, 4);
}

TEST_F(LeaseArgument, OfAnotherCaptureIsRefused) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed;
  graph const first =
      escrow::capture(one.get(), [&](stream_ref stream) { claimed.emplace(pool.claim(stream)); });
  graph const second = escrow::capture(one.get(), [&](stream_ref stream) {
    EXPECT_THROW(launch_fill(stream, *claimed, 3), usage_error);
  });
  EXPECT_EQ(node_count(second.get()), 0U);
}

TEST_F(LeaseArgument, MayBeABlockOfAScratchPool) {
  scratch_pool pool;
  auto claimed = pool.claim(one, block::length * sizeof(int));
  launch_fill(one.get(), claimed, 5);
  launch_check(one.get(), claimed, 5);
}

class LeaseOfANode : public LeaseArgument {
 protected:
  // A graph whose only node fills the resource, of one of two streams.
  [[nodiscard]] graph filling(block_lease& claimed, int value = 3) {
    graph built(*worker);
    build(built).add(kernel_node(fill, {}, claimed, block::length, value));
    return built;
  }
  [[nodiscard]] bool is_back(block_pool& pool) {
    worker->drain();
    return pool.try_claim(one).has_value();
  }
};

TEST_F(LeaseOfANode, StaysWithTheGraphItsCloneTheirExecsAndLaunches) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  std::optional<graph> built = filling(*claimed);
  std::optional<graph> copy = built->clone();
  std::optional<graph_exec> exec(*copy);
  EXPECT_TRUE(exec->is_bare());
  claimed.reset();
  EXPECT_FALSE(is_back(pool));
  built.reset();
  copy.reset();
  EXPECT_FALSE(is_back(pool));
  exec->launch(two.get());
  EXPECT_FALSE(is_back(pool));
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return is_back(pool); }));
}

TEST_F(LeaseOfANode, StaysWithTheLeaseThatOutlivesTheGraph) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  static_cast<void>(filling(*claimed));
  EXPECT_FALSE(is_back(pool));
  launch_fill(one.get(), *claimed, 4);
  launch_check(one.get(), *claimed, 4);
  claimed.reset();
  EXPECT_TRUE(is_back(pool));
  EXPECT_EQ(pool.stats().slots, 1U);
}

TEST_F(LeaseOfANode, IsGivenBackByANodeThatIsDestroyedOrChanged) {
  block_pool pool = make_pool(2);
  graph built(*worker);
  auto const add_node = [&] {
    auto claimed = pool.claim(one);
    return build(built).add(kernel_node(fill, {}, claimed, block::length, 3));
  };
  node const destroyed = add_node();
  node const changed = add_node();
  EXPECT_FALSE(is_back(pool));
  destroyed.destroy();
  EXPECT_TRUE(is_back(pool));
  auto third = pool.claim(one);
  changed.set(kernel_node(fill, {}, third, block::length, 4));
  EXPECT_TRUE(is_back(pool)) << "that of the changed node";
}

TEST_F(LeaseOfANode, MayBeSharedByNodesOfSeveralGraphs) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed = pool.claim(one);
  std::optional<graph> first = filling(*claimed);
  std::optional<graph> second = filling(*claimed);
  build(*second).add(kernel_node(check, {}, *claimed, block::length, 3, mismatches.data()));
  claimed.reset();
  first.reset();
  EXPECT_FALSE(is_back(pool));
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  second.reset();
  EXPECT_TRUE(is_back(pool));
  EXPECT_EQ(pool.stats().in_graphs, 0U);
}

TEST_F(LeaseOfANode, OfACaptureIsHandedOutToNoOtherClaimOfIt) {
  block_pool pool = make_pool(2);
  graph built(*worker);
  graph const captured = escrow::capture(one.get(), [&](stream_ref stream) {
    {
      auto claimed = pool.claim(stream);
      build(built).add(kernel_node(fill, {}, claimed, block::length, 3));
    }
    static_cast<void>(pool.claim(stream));
  });
  EXPECT_EQ(pool.stats().slots, 2U);
}

TEST_F(LeaseOfANode, MayBeGivenThroughASharedPointer) {
  block_pool pool = make_pool(1);
  std::optional<graph> built(std::in_place, *worker);
  {
    auto const claimed = std::make_shared<block_lease>(pool.claim(one));
    build(*built).add(kernel_node(fill, {}, claimed, block::length, 3));
  }
  EXPECT_FALSE(is_back(pool));
  built.reset();
  EXPECT_TRUE(is_back(pool));
}

TEST_F(LeaseOfANode, IsNamedByAPoolThatIsClosed) {
  block_pool pool = make_pool(1);
  std::optional<graph> built;
  {
    auto claimed = pool.claim(one);
    built.emplace(filling(claimed));
  }
  auto const holders = pool.close_for(std::chrono::nanoseconds(0));
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_EQ(holders[0].slots, 1U);
  EXPECT_EQ(holders[0].capture_id, 0U);
  EXPECT_NE(holders[0].since, std::chrono::steady_clock::time_point()) << "it is no lease";
  built.reset();
  worker->drain();
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(LeaseOfANode, ThatIsEmptyIsRefused) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  claimed.release();
  EXPECT_THROW(static_cast<void>(filling(claimed)), usage_error);
}

}  // namespace
}  // namespace escrow::test
