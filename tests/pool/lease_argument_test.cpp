// Leases as arguments of kernels and nodes: the resource's device value is passed, and the slot is
// handed out again only after the kernel, or when no graph has the node.
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

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

TEST_F(LeaseArgument, PassesWhatItsResourcePasses) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  launch_fill(one.get(), claimed, 3);
  launch_check(one.get(), claimed, 3);
  scratch_pool scratch;
  auto memory = scratch.claim(one, block::length * sizeof(int));
  launch_fill(one.get(), memory, 5);
  launch_check(one.get(), memory, 5);
}

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

TEST_F(LeaseArgument, OfNoCaptureIsRefusedInOneAlsoOnItsOwnStream) {
  block_pool pool = make_pool(1);
  auto claimed = pool.claim(one);
  claimed.record_stream(two);
  for (cudaStream_t const stream : {one.get(), two.get()}) {
    escrow::capture_scope open(stream, cudaStreamCaptureModeGlobal);
    expect_error<usage_error>([&] { launch_fill(stream, claimed, 3); }, {"claimed outside"});
    EXPECT_EQ(node_count(open.end().get()), 0U);
  }
  launch_fill(one.get(), claimed, 4);
  launch_check(one.get(), claimed, 4);
}

TEST_F(LeaseArgument, OfAnotherCaptureIsRefused) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> claimed;
  graph const first = captured([&](cudaStream_t on) { claimed.emplace(pool.claim(on)); });
  graph const second =
      captured([&](cudaStream_t on) { EXPECT_THROW(launch_fill(on, *claimed, 3), usage_error); });
  EXPECT_EQ(node_count(second.get()), 0U);
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

TEST_F(LeaseOfANode, MayBeSharedByNodesOfSeveralGraphs) {
  block_pool pool = make_pool(1);
  auto claimed = std::make_shared<block_lease>(pool.claim(one));
  std::optional<graph> first = filling(*claimed);
  std::optional<graph> second = filling(claimed);  // through a shared_ptr
  build(*second).add(kernel_node(check, {}, *claimed, block::length, 3, mismatches.data()));
  claimed.reset();
  first.reset();
  EXPECT_TRUE(is_kept(pool));
  EXPECT_EQ(pool.stats().in_graphs, 1U);
  second.reset();
  EXPECT_TRUE(is_released(pool));
  EXPECT_EQ(pool.stats().in_graphs, 0U);
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
