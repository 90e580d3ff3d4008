// Kernel arguments that own: kept until the kernel is done, and gone for certain afterwards.
#include "escrow/core/error.hpp"
#include "launch_fixture.hpp"

namespace escrow::test {
namespace {

class Launch : public launch_test {};

TEST_F(Launch, PassesPlainValuesAsTheyAre) {
  launch(stream_, add, {}, cells_.data(), 3);
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(), 3);
}

TEST_F(Launch, ConvertsTheArgumentsOfAFunctionWhoseTypesAreKnown) {
  auto* const function = reinterpret_cast<void (*)(int*, int)>(kernel_address(kernel_id::add));
  launch(stream_, function, {}, cells_.data(), short{4});
  auto const owned = std::shared_ptr<int>(cells_.data(), [](int*) {});
  launch(stream_, function, {}, owned, 'a' - 'A');
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(), 36);
}

TEST_F(Launch, WithNoArgumentsRuns) {
  kernel const tiny{kernel_address(kernel_id::tiny)};
  launch(stream_, tiny, {.grid = {4, 1, 1}, .block = {32, 1, 1}});
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(Launch, KeepsASharedPointerUntilTheKernelIsDone) {
  hold_up();
  use(make_shared_int(fate_));
  EXPECT_TRUE(stays_false([&] { return fate_->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(goes());
  EXPECT_EQ(mismatches_.load(), 0);
}

TEST_F(Launch, LeavesACallersShareToTheCaller) {
  auto const mine = make_shared_int(fate_);
  use(mine);
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(lives());
  EXPECT_EQ(mine.use_count(), 1);
}

TEST_F(Launch, KeepsAUniquePointerThatIsMovedIn) {
  auto mine = make_unique_int(fate_);
  hold_up();
  launch(stream_, fill, config(), std::move(mine), std::size_t{1}, 7);
  EXPECT_EQ(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(stays_false([&] { return fate_->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(goes());
}

TEST_F(Launch, KeepsTheAllocationThoughTheWrapperIsReset) {
  their_buffer theirs(fate_);
  hold_up();
  use(theirs);
  theirs.reset();
  EXPECT_TRUE(stays_false([&] { return fate_->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(goes());
  EXPECT_EQ(mismatches_.load(), 0);
}

TEST_F(Launch, KeepsTheAllocationThoughASharedWrapperIsReset) {
  auto const theirs = std::make_shared<their_buffer>(fate_);
  hold_up();
  use(theirs);
  theirs->reset();
  EXPECT_TRUE(stays_false([&] { return fate_->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(goes());
}

TEST_F(Launch, KeepsAnObjectOfMakeStreamShared) {
  {
    auto const whole = make_stream_shared_by<their_buffer>(deleter_, fate_);
    auto const part = std::shared_ptr<int>(whole, whole->data());
    hold_up();
    use(part);
  }
  EXPECT_TRUE(stays_false([&] { return fate_->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(goes());
}

TEST_F(Launch, KeepsWithTheProcessesOwnDeleterIfNoneIsNamed) {
  launch(stream_, fill, {}, make_shared_int(fate_), std::size_t{1}, 7);
  deleter::global().drain();
  EXPECT_EQ(fate_->times(), 1);
  EXPECT_EQ(deleter_.stats().reclaimed, 0U);
}

TEST_F(Launch, ThatFailsKeepsNothingAndTakesNothing) {
  kernel const copy{kernel_address(kernel_id::copy)};
  launch_config too_large = config();
  too_large.block = {4096, 1, 1};
  auto mine = make_unique_int(fate_);
  auto const shared = make_shared_int(make_fate());
  EXPECT_THROW(launch(stream_, copy, too_large, std::move(mine), shared, std::size_t{1}),
               cuda_error);
  ASSERT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(shared.use_count(), 1);
  EXPECT_TRUE(lives());
}

TEST_F(Launch, OfAKernelThatWasMovedFromIsRefused) {
  kernel tiny{kernel_address(kernel_id::tiny)};
  kernel const taken = std::move(tiny);
  launch(stream_, taken, {});
  EXPECT_THROW(launch(stream_, tiny, {}), usage_error);  // NOLINT(bugprone-use-after-move)
}

TEST_F(Launch, RefusesANullPointerToAnOwner) {
  std::shared_ptr<their_buffer> const none;
  EXPECT_THROW(launch(stream_, fill, config(), none, std::size_t{1}, 7), usage_error);
}

TEST_F(Launch, TakesPointersToConstOwnersAndArrays) {
  auto const theirs = std::make_shared<their_buffer const>(fate_);
  use(theirs);
  std::shared_ptr<int[]> const array(cells_.data(), [](int*) {});
  launch(stream_, add, config(), array, 2);
  std::shared_ptr<void const> const raw = array;
  launch(stream_, add, config(), raw, 3);
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(), 5);
}

TEST_F(Launch, RefusesAStoppedKeeperBeforeAnythingIsTaken) {
  deleter_.stop();
  auto mine = make_unique_int(fate_);
  EXPECT_THROW(launch(stream_, fill, config(), std::move(mine), std::size_t{1}, 7), usage_error);
  ASSERT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  {
    capture open(stream_, cudaStreamCaptureModeGlobal);
    EXPECT_THROW(launch(stream_, fill, config(), std::move(mine), std::size_t{1}, 7), usage_error);
    EXPECT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(open.end(), cudaSuccess);
  }
}

}  // namespace
}  // namespace escrow::test
