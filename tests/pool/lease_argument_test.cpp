// Leases as kernel arguments: the resource's device value is passed, and the slot is handed out
// again only after the kernel, on whichever stream that ran.
#include <escrow/graph.hpp>
#include <memory>
#include <utility>

#include "capture_fixture.hpp"

template <>
struct escrow::owner_of<escrow::test::block> {
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

TEST_F(LeaseArgument, MayBeABlockOfAScratchPool) {
  scratch_pool pool;
  auto claimed = pool.claim(one, block::length * sizeof(int));
  launch_fill(one.get(), claimed, 5);
  launch_check(one.get(), claimed, 5);
}

}  // namespace
}  // namespace escrow::test
