// Kernel arguments that own: kept until the kernel is done, in every kind of graph that has it, and
// gone for certain afterwards.
#include <gtest/gtest.h>

#include <cstddef>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "../deleter/probe.hpp"
#include "capturing.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/usage_error.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {

// Somebody's buffer: a handle to shared device memory, which reset() lets go of.
class their_buffer {
 public:
  explicit their_buffer(fate_ptr fate) : memory_(std::make_shared<memory>(std::move(fate))) {}
  void reset() { memory_.reset(); }
  [[nodiscard]] int* data() const { return memory_->cells.data(); }
  [[nodiscard]] auto share() const { return memory_; }

 private:
  struct memory {
    explicit memory(fate_ptr fate) : inner(std::move(fate)) {}
    device_ints cells;
    probe inner;  // goes first
  };
  std::shared_ptr<memory> memory_;
};

}  // namespace escrow::test

template <>
struct escrow::owner_of<escrow::test::their_buffer> {
  static int* device_value(test::their_buffer const& object) { return object.data(); }
  static auto owner(test::their_buffer const& object) { return object.share(); }
};

namespace escrow::test {
namespace {

// What a unique_ptr to device memory of one integer frees it with.
struct frees_and_tells {
  fate_ptr fate;
  void operator()(int* memory) const {
    static_cast<void>(cudaFree(memory));
    probe const goes(fate);
  }
};
using unique_int = std::unique_ptr<int, frees_and_tells>;

// Also in a capture.
unique_int make_unique_int(fate_ptr fate) {
  thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  must(cudaMalloc(&memory, sizeof(int)));
  return {static_cast<int*>(memory), frees_and_tells{std::move(fate)}};
}
std::shared_ptr<int> make_shared_int(fate_ptr fate) {
  return make_unique_int(std::move(fate));
}

class Launch : public testing::Test {
 protected:
  kernel const add{kernel_address(kernel_id::add)};
  kernel const fill{kernel_address(kernel_id::fill)};
  kernel const check{kernel_address(kernel_id::check)};
  kernel const wait_flag{kernel_address(kernel_id::wait_flag)};

  // Nothing that was enqueued with this ends before the flag.
  void hold_up() { launch(stream_, wait_flag, {}, flag_.get()); }
  // Fills the memory and checks it.
  template <class Memory>
  void use(Memory&& memory) {
    launch(stream_, fill, config(), memory, std::size_t{1}, 7);
    launch(stream_, check, config(), std::forward<Memory>(memory), std::size_t{1}, 7,
           mismatches_.data());
  }
  [[nodiscard]] launch_config config() {
    launch_config its;
    its.keeper = &deleter_;
    return its;
  }
  template <class Enqueue>
  [[nodiscard]] graph captured(Enqueue enqueue) {
    return escrow::capture(stream_, [&](stream_ref) { enqueue(); });
  }
  // Whatever has been pushed by now has been reclaimed.
  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !fate_->was_destroyed();
  }
  [[nodiscard]] bool goes() {
    deleter_.drain();
    return fate_->wait() && fate_->times() == 1;
  }
  void run(graph_exec& exec) {
    exec.launch(stream_);
    must(cudaStreamSynchronize(stream_));
    EXPECT_EQ(mismatches_.load(), 0);
  }

  pinned_flag flag_;
  pinned_ints mismatches_;
  pinned_ints cells_{2};
  owned_stream stream_ = make_stream();
  fate_ptr fate_ = make_fate();
  deleter deleter_;
};

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

class LaunchInCapture : public Launch {};

TEST_F(LaunchInCapture, KeepsItsArgumentsAsLongAsAGraphHasTheKernel) {
  std::optional<graph> source = captured([&] { use(make_shared_int(fate_)); });
  std::optional<graph_exec> exec(*source);
  EXPECT_TRUE(exec->is_bare());
  source.reset();
  EXPECT_TRUE(lives());
  for (int i = 0; i < 10; ++i) run(*exec);
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, KeepsAUniquePointerAndWhatAWrapperHad) {
  auto const other = make_fate();
  their_buffer theirs(other);
  std::optional<graph> source = captured([&] {
    use(theirs);
    launch(stream_, fill, config(), make_unique_int(fate_), std::size_t{1}, 7);
  });
  theirs.reset();
  std::optional<graph_exec> exec(*source);
  source.reset();
  run(*exec);
  EXPECT_TRUE(lives());
  EXPECT_FALSE(other->was_destroyed());
  exec.reset();
  EXPECT_TRUE(goes());
  EXPECT_EQ(other->times(), 1);
}

TEST_F(LaunchInCapture, KeepsItsArgumentsForClonesAndTheirExecs) {
  std::optional<graph> source = captured([&] { use(make_shared_int(fate_)); });
  std::optional<graph> copy = source->clone();
  owned_graph plain = clone(source->get());
  source.reset();
  EXPECT_TRUE(lives());
  std::optional<graph_exec> exec(*copy);
  copy.reset();
  run(*exec);
  exec.reset();
  EXPECT_TRUE(lives()) << "the plain clone has it";
  owned_exec of_plain = instantiate(plain);
  plain.reset();
  must(cudaGraphLaunch(of_plain, stream_));
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(lives());
  of_plain.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, KeepsItsArgumentsForAParentOfItsGraph) {
  std::optional<graph> parent(std::in_place);
  static_cast<void>(parent->add_child(captured([&] { use(make_shared_int(fate_)); })));
  EXPECT_TRUE(lives());
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  run(*exec);
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, LetsGoOfItsArgumentsWhenTheCaptureIsAborted) {
  {
    capture open(stream_, cudaStreamCaptureModeThreadLocal);
    use(make_shared_int(fate_));
    EXPECT_TRUE(lives());
    static_cast<void>(cudaStreamQuery(stream_));  // kills it
    EXPECT_THROW(launch(stream_, add, {}, cells_.data(), 1), usage_error);
  }
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, AnUpdateSwapsWhatTheExecKeeps) {
  auto const second = make_fate();
  std::optional<graph> first = captured([&] { use(make_shared_int(fate_)); });
  graph_exec exec(*first);
  first.reset();
  exec.update(captured([&] { use(make_shared_int(second)); }));
  EXPECT_TRUE(goes());
  run(exec);
  EXPECT_FALSE(second->was_destroyed());
}

}  // namespace
}  // namespace escrow::test
