// Launch order follows what is written: execs that share a slot, or an owner that was moved in, run
// one after the other; execs that only share owners which others keep as well run concurrently.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <escrow/nodes.hpp>

#include "lifetime_fixture.hpp"

namespace escrow::test {
namespace {

using weights = std::shared_ptr<int const>;

// A way to keep the same shared object in a capture.
struct keeping {
  char const* name;
  void (*keep)(deleter& with, cudaStream_t stream, weights const& shared);
};

void keep_by_retain(deleter&, cudaStream_t stream, weights const& shared) {
  retain(stream, shared);
}
void keep_by_retire(deleter& with, cudaStream_t stream, weights const& shared) {
  with.retire(stream, shared);
}
void keep_by_moved_copy(deleter& with, cudaStream_t stream, weights const& shared) {
  weights copy = shared;
  with.retire(stream, std::move(copy));
}
void keep_by_launch(deleter& with, cudaStream_t stream, weights const& shared) {
  launch_config config;
  config.deleter = &with;
  launch(stream, kernel(kernel_address(kernel_id::check)), config, shared, std::size_t{1}, 0,
         const_cast<int*>(shared.get()) + 1);
}

class ReadOnlyOwner : public lifetime_test, public testing::WithParamInterface<keeping> {
 protected:
  [[nodiscard]] graph using_weights() {
    return captured_behind_flag([&](cudaStream_t on) { GetParam().keep(*worker, on, shared); });
  }
  // Both are in flight at the same time.
  void expect_concurrent(graph_exec& first, graph_exec& second) {
    first.launch(two);
    ASSERT_TRUE(have_started(1));
    second.launch(three);
    EXPECT_TRUE(have_started(2)) << "the second launch waits for the first";
    EXPECT_EQ(cells.load(1), 0);
    flag.raise();
    EXPECT_TRUE(have_ended(2));
  }

  device_ints memory{2};  // what is read, and how often it was not 0
  weights shared{memory.data(), [](int const*) {}};
};

INSTANTIATE_TEST_SUITE_P(Kept, ReadOnlyOwner,
                         testing::Values(keeping{"ByRetain", &keep_by_retain},
                                         keeping{"ByRetire", &keep_by_retire},
                                         keeping{"ByAMovedCopy", &keep_by_moved_copy},
                                         keeping{"ByLaunch", &keep_by_launch}),
                         [](auto const& each) { return std::string(each.param.name); });

TEST_P(ReadOnlyOwner, DoesNotOrderTwoExecsOfOneGraph) {
  graph const source = using_weights();
  graph_exec first(source);
  graph_exec second(source);
  expect_concurrent(first, second);
}

TEST_P(ReadOnlyOwner, DoesNotOrderTheExecsOfAGraphAndOfItsClone) {
  graph const source = using_weights();
  graph const copy = source.clone();
  graph_exec first(source);
  graph_exec second(copy);
  expect_concurrent(first, second);
}

TEST_P(ReadOnlyOwner, DoesNotOrderTheExecsOfAChildAndOfItsParent) {
  graph const child = using_weights();
  graph parent;
  parent.add_child(child);
  graph_exec first(child);
  graph_exec second(parent);
  expect_concurrent(first, second);
}

TEST_P(ReadOnlyOwner, DoesNotOrderTheExecsOfTwoCaptures) {
  graph_exec first(using_weights());
  graph_exec second(using_weights());
  expect_concurrent(first, second);
}

// The first launch waits, on the GPU, for what comes after the second one in another stream. Plain
// CUDA runs this; with an order between the two it never ends.
TEST_P(ReadOnlyOwner, DoesNotMakeACorrectProgramHang) {
  graph const source = captured([&](cudaStream_t on) { GetParam().keep(*worker, on, shared); });
  graph_exec first(source);
  graph_exec second(source);
  must(launch_wait_flag(two, flag.get()));
  first.launch(two);
  second.launch(three);
  must(launch_add(three, const_cast<int*>(flag.get()), 1));
  EXPECT_TRUE(wait_until([&] { return is_idle(two); })) << "the streams wait for each other";
}

class WrittenInCommon : public lifetime_test {
 protected:
  void expect_ordered(graph_exec& first, graph_exec& second) {
    first.launch(two);
    ASSERT_TRUE(have_started(1));
    second.launch(three);
    EXPECT_TRUE(stays_false([&] { return cells.load(0) > 1; })) << "the launches overlap";
    flag.raise();
    EXPECT_TRUE(have_ended(2));
  }
};

TEST_F(WrittenInCommon, ASlotOrdersTwoExecsOfOneGraph) {
  block_pool pool = make_pool(1);
  graph const source =
      captured_behind_flag([&](cudaStream_t on) { library_work(pool, on, 1, mismatches); });
  graph_exec first(source);
  graph_exec second(source);
  expect_ordered(first, second);
}

TEST_F(WrittenInCommon, ASlotBesideASharedOwnerOrdersTheExecsOfAGraphAndOfItsClone) {
  block_pool pool = make_pool(1);
  graph const source = captured_behind_flag([&](cudaStream_t on) {
    worker->retire(on, std::make_shared<int const>(1));
    library_work(pool, on, 1, mismatches);
  });
  graph const copy = source.clone();
  graph_exec first(source);
  graph_exec second(copy);
  expect_ordered(first, second);
}

TEST_F(WrittenInCommon, AnOwnerThatWasMovedInOrdersTwoExecsOfOneGraph) {
  graph const source =
      captured_behind_flag([&](cudaStream_t on) { worker->retire(on, std::make_unique<int>(1)); });
  graph_exec first(source);
  graph_exec second(source);
  expect_ordered(first, second);
}

TEST_F(WrittenInCommon, ASlotClaimedAfterTheFirstInstantiationDoesNotOrderTheFirstExec) {
  block_pool pool = make_pool(1);
  graph source = captured_behind_flag(
      [&](cudaStream_t on) { worker->retire(on, std::make_shared<int const>(1)); });
  graph_exec first(source);
  capture_into(source.get(), [&](cudaStream_t on) { library_work(pool, on, 1, mismatches); });
  graph_exec second(source);
  first.launch(two);
  ASSERT_TRUE(have_started(1));
  second.launch(three);
  EXPECT_TRUE(have_started(2)) << "the first exec uses no slot, so the second need not wait";
  flag.raise();
  EXPECT_TRUE(have_ended(2));
}

}  // namespace
}  // namespace escrow::test
