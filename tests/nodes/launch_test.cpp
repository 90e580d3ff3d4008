// Launches: kernels and their arguments. What owns an argument is kept until the kernel is done,
// and by every kind of graph that has the kernel.
#include <functional>
#include <optional>
#include <string>

#include "escrow/core/error.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

/// A buffer type of a framework: a handle to shared device memory, which reset() drops.
class their_buffer {
 public:
  explicit their_buffer(fate_ptr fate) : memory_(std::make_shared<memory>(std::move(fate))) {}
  void reset() { memory_.reset(); }
  [[nodiscard]] int* data() const { return memory_->cells.data(); }
  [[nodiscard]] auto share() const { return memory_; }

 private:
  struct memory {
    explicit memory(fate_ptr fate) : end(std::move(fate)) {}
    device_ints cells;
    probe end;
  };
  std::shared_ptr<memory> memory_;
};

}  // namespace
}  // namespace escrow::test

template <>
struct escrow::kernel_argument_traits<escrow::test::their_buffer> {
  static int* device_value(test::their_buffer const& object) { return object.data(); }
  static auto owner(test::their_buffer const& object) { return object.share(); }
};

namespace escrow::test {
namespace {

class launch_world : public nodes_world {
 protected:
  struct frees {
    fate_ptr fate;
    void operator()(int* memory) const {
      static_cast<void>(cudaFree(memory));
      probe const ends(fate);
    }
  };
  using unique_int = std::unique_ptr<int, frees>;
  [[nodiscard]] static unique_int make_unique_int(fate_ptr const& fate) {
    void* memory = nullptr;
    must(cudaMalloc(&memory, sizeof(int)));
    return {static_cast<int*>(memory), frees{fate}};
  }

  [[nodiscard]] launch_config config() {
    launch_config with_worker;
    with_worker.deleter = worker.get();
    return with_worker;
  }
  template <class Memory>
  void fill_and_verify(cudaStream_t on, Memory const& memory) {
    launch(on, fill, config(), memory, 1U, 7);
    launch(on, verify, config(), memory, std::size_t{1}, 7, mismatches.data());
  }

  kernel const verify{kernel_address(kernel_id::check)};
  fate_ptr fate = make_fate();
};

class Launch : public launch_world {};

TEST_F(Launch, OfAKernelPassesValuesAsTheyAreAndOfAFunctionConvertsThem) {
  launch(one, kernel(add), {.block = {1}}, cells.data(), 3);
  launch(one, add, {}, cells.data(), short{4});
  launch(one, add, {}, shared(fate), 'a' - 'A');
  launch(one, kernel(kernel_address(kernel_id::tiny)), {.grid = {4, 1, 1}, .block = {32, 1, 1}});
  sync(one);
  EXPECT_EQ(cells.load(), 39);
}

TEST_F(Launch, TakesPointersToArraysAndToConstOwnersAndLeavesTheCallersShare) {
  auto const theirs = std::make_shared<their_buffer const>(fate);
  fill_and_verify(one, theirs);
  std::shared_ptr<int[]> const array(cells.data(), [](int*) {});
  launch(one, kernel(add), config(), array, 2);
  std::shared_ptr<void const> const raw = array;
  launch(one, kernel(add), config(), raw, 3);
  sync(one);
  EXPECT_EQ(cells.load(), 5);
  EXPECT_TRUE(drained());
  EXPECT_EQ(array.use_count(), 2);
  EXPECT_TRUE(is_out(fate));
}

TEST_F(Launch, KeepsItsArgumentsWithTheDeleterOfTheProcessIfNoneIsNamed) {
  launch(one, add, {}, shared(fate), 1);
  deleter::global().drain();
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(worker->stats().reclaimed, 0U);
}

TEST_F(Launch, ThatFailsKeepsNothingAndTakesNothing) {
  launch_config too_large = config();
  too_large.block = {4096, 1, 1};
  unique_int mine = make_unique_int(fate);
  std::shared_ptr<int> const other = shared(make_fate());
  EXPECT_THROW(launch(one, copy, too_large, std::move(mine), other, 1U), cuda_error);
  EXPECT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(other.use_count(), 1);
  EXPECT_TRUE(is_kept(fate));
}

TEST_F(Launch, RefusesAStoppedDeleterBeforeAnythingIsTaken) {
  unique_int mine = make_unique_int(fate);
  auto const refuses = [&] {
    auto const call = [&] { launch(one, fill, config(), std::move(mine), 1U, 7); };
    expect_refused(call, "launch", "stopped");
    EXPECT_NE(mine, nullptr);  // NOLINT(bugprone-use-after-move)
  };
  worker->stop();
  refuses();
  capture open(one, cudaStreamCaptureModeGlobal);
  refuses();
  EXPECT_EQ(open.end(), cudaSuccess);
}

TEST_F(Launch, RefusesNullKernelsAndNullPointersToOwners) {
  kernel tiny{kernel_address(kernel_id::tiny)};
  kernel const taken = std::move(tiny);
  launch(one, taken, {});
  // NOLINTNEXTLINE(bugprone-use-after-move)
  expect_refused([&] { launch(one, tiny, {}); }, "launch", "the kernel is null");
  std::shared_ptr<their_buffer> const none;
  expect_refused([&] { launch(one, fill, config(), none, 1U, 7); }, "launch", "a null pointer");
}

/// Memory that a kernel uses, with an owner of each type.
class LaunchOwner : public launch_world, public testing::WithParamInterface<char const*> {
 protected:
  /// Uses the memory on a stream, and drops the owner.
  using use_function = std::function<void(cudaStream_t)>;
  template <class Owner>
  [[nodiscard]] use_function use_of(Owner its) {
    return [this, its = std::move(its)](cudaStream_t on) mutable {
      fill_and_verify(on, its);
      its.reset();
    };
  }
  [[nodiscard]] use_function make(fate_ptr const& its) {
    auto const what = std::string(GetParam());
    if (what == "SharedPointer") return use_of(std::shared_ptr<int>(make_unique_int(its)));
    if (what == "Wrapper") return use_of(their_buffer(its));
    if (what == "StreamShared") {
      auto const whole = make_stream_shared_by<their_buffer>(*worker, its);
      return use_of(std::shared_ptr<int>(whole, whole->data()));
    }
    if (what == "SharedWrapper") {
      return [this, theirs = std::make_shared<their_buffer>(its)](cudaStream_t on) {
        fill_and_verify(on, theirs);
        theirs->reset();
      };
    }
    must(what == "UniquePointer", "there is such an owner");
    return [this, mine = std::make_shared<unique_int>(make_unique_int(its))](cudaStream_t on) {
      launch(on, fill, config(), std::move(*mine), 1U, 7);
      EXPECT_EQ(*mine, nullptr);
    };
  }
  [[nodiscard]] graph captured_use(fate_ptr const& its) {
    auto const use = make(its);
    return captured([&](cudaStream_t on) { use(on); });
  }
};

TEST_P(LaunchOwner, IsKeptUntilTheKernelIsDone) {
  auto const use = make(fate);
  hold_up(one);
  use(one);
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(LaunchOwner, OfACaptureIsKeptByTheGraphItsExecAndLaunches) {
  std::optional<graph> source = captured_use(fate);
  std::optional<graph_exec> exec(*source);
  EXPECT_TRUE(exec->is_bare());
  source.reset();
  for (int i = 0; i < 10; ++i) run(*exec);
  EXPECT_TRUE(is_kept(fate));
  hold_up(two);
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(LaunchOwner, OfACaptureIsKeptByClonesParentsAndTheirExecs) {
  std::optional<graph> source = captured_use(fate);
  std::optional<graph> parent(std::in_place, *worker);
  static_cast<void>(parent->add_child(*source));
  std::optional<graph> twin = source->clone();
  owned_graph plain_twin = clone(source->get());
  source.reset();
  std::optional<graph_exec> exec(*twin);
  twin.reset();
  run(*exec);
  exec.emplace(*parent);
  parent.reset();
  run(*exec);
  owned_exec plain_exec = instantiate(plain_twin);
  plain_twin.reset();
  exec.reset();
  must(cudaGraphLaunch(plain_exec, two));
  sync(two);
  EXPECT_TRUE(is_kept(fate));
  plain_exec.reset();
  EXPECT_TRUE(is_released(fate));
}

TEST_P(LaunchOwner, OfAnAbortedCaptureIsReleased) {
  auto const use = make(fate);
  {
    capture open(one, cudaStreamCaptureModeThreadLocal);
    use(one);
    EXPECT_TRUE(is_kept(fate));
    static_cast<void>(cudaStreamQuery(one));  // aborts it
    EXPECT_THROW(launch(one, add, {}, cells.data(), 1), usage_error);
  }
  EXPECT_TRUE(is_released(fate));
}

TEST_P(LaunchOwner, OfAnExecIsReleasedByAnUpdate) {
  std::optional<graph> first = captured_use(fate);
  graph_exec exec(*first);
  first.reset();
  fate_ptr const second = make_fate();
  auto const use = make(second);
  exec.update(captured([&](cudaStream_t on) { use(on); }));
  EXPECT_TRUE(is_released(fate));
  run(exec);
  EXPECT_TRUE(is_kept(second));
}

INSTANTIATE_TEST_SUITE_P(Each, LaunchOwner,
                         testing::Values("SharedPointer", "UniquePointer", "Wrapper",
                                         "SharedWrapper", "StreamShared"),
                         [](auto const& chosen) { return std::string(chosen.param); });

}  // namespace
}  // namespace escrow::test
