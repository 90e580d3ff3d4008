// SPDX-License-Identifier: Apache-2.0
// Launches: kernels and their arguments. What owns an argument is kept until the kernel is done,
// and by the graph that has the kernel; so is code that is loaded at run time.
#include <unistd.h>

#include <filesystem>

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

// How often a library was unloaded, and by which thread: the linker passes the calls to us.
std::atomic<int> unloaded{0};
std::atomic<std::thread::id> unloading_thread{};

}  // namespace
}  // namespace escrow::test

extern "C" cudaError_t __real_cudaLibraryUnload(cudaLibrary_t library);
extern "C" cudaError_t __wrap_cudaLibraryUnload(cudaLibrary_t library) {
  using namespace escrow::test;
  unloading_thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
  cudaError_t const status = __real_cudaLibraryUnload(library);
  // Release: the test reads the thread once it has seen the count.
  unloaded.fetch_add(1, std::memory_order_release);
  return status;
}

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
  void fill_and_verify(cudaStream_t on, auto const& memory) {
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
  expect_refused([&] { launch(one, tiny, {}); }, "launch", "the kernel is null; pass");
  void (*const null)(int*, int) = nullptr;
  expect_refused([&] { launch(one, null, {}, cells.data(), 1); }, "launch",
                 "the kernel is null; pass a __global__ function");
  std::shared_ptr<their_buffer> const none;
  expect_refused([&] { launch(one, fill, config(), none, 1U, 7); }, "launch", "a null pointer");
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(Launch, RefusesArgumentsThatTheKernelHasNot) {
  kernel const untyped(kernel_address(kernel_id::add));
  constexpr char const* told = "has other parameters, 2 (of 8, 4 bytes)";
  int* const cell = cells.data();
  expect_refused([&] { launch(one, untyped, {}, cell); }, "launch", told);
  expect_refused([&] { launch(one, untyped, {}, cell, std::size_t{1}); }, "launch", told);
  expect_refused([&] { launch(one, untyped, {}, 1, cell); }, "launch", told);
  expect_refused([&] { launch(one, untyped, {}, cell, 1, 2); }, "launch", told);
  expect_refused([&] { return kernel_node(untyped, {}, cell); }, "kernel_node", told);
  launch(one, untyped, {}, cell, 1);
  sync(one);
  EXPECT_EQ(cells.load(), 1);
}
#endif

TEST_F(Launch, RefusesALeaseOfAnotherCaptureInItsOwnName) {
  block_pool pool = make_pool(2);
  graph const source = captured([&](cudaStream_t on) {
    block_lease claimed = pool.claim(on);
    expect_refused([&] { launch(two, fill, config(), claimed, 1U, 7); }, "launch",
                   "`stream` is not part of the capture that the lease was claimed in");
    capture open(three, cudaStreamCaptureModeThreadLocal);
    expect_refused([&] { launch(three, fill, config(), claimed, 1U, 7); }, "launch",
                   "`stream` is not part of the capture that the lease was claimed in");
    EXPECT_EQ(open.end(), cudaSuccess);
    launch(on, fill, config(), claimed, 1U, 7);
  });
  block_lease eager = pool.claim(two);
  block_lease const moved = std::move(eager);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  expect_refused([&] { launch(two, fill, config(), eager, 1U, 7); }, "launch", "an empty lease");
}

/// Memory that a kernel uses, with an owner of each type.
class LaunchOwner : public launch_world, public testing::WithParamInterface<char const*> {
 protected:
  /// Uses the memory on a stream, and drops the owner.
  using use_function = std::function<void(cudaStream_t)>;
  [[nodiscard]] use_function use_of(auto its) {
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

INSTANTIATE_TEST_SUITE_P(Each, LaunchOwner,
                         testing::Values("SharedPointer", "UniquePointer", "Wrapper",
                                         "SharedWrapper", "StreamShared"),
                         [](auto const& chosen) { return std::string(chosen.param); });

class Libraries : public nodes_world {
 protected:
  void SetUp() override { unloaded.store(0, std::memory_order_relaxed); }

  [[nodiscard]] library loaded() { return library::load(library_code(), *worker); }
  /// A kernel that alone keeps its library.
  [[nodiscard]] kernel found() { return loaded().find("library_add"); }
  void launch_with_worker(kernel const& adding, int value) {
    launch_config config;
    config.deleter = worker.get();
    launch(one, adding, config, cells.data(), value);
  }
  [[nodiscard]] graph captured_launch() {
    return captured([this](cudaStream_t) { launch_with_worker(found(), 1); });
  }
  /// How often it was unloaded, once all that was released so far has been reclaimed.
  [[nodiscard]] int unloads() {
    static_cast<void>(drains_soon());
    return unloaded.load(std::memory_order_acquire);
  }
  [[nodiscard]] static bool stays_loaded() {
    return stays_false([] { return unloaded.load(std::memory_order_acquire) != 0; });
  }
  [[nodiscard]] bool is_unloaded_once() {
    bool const any = wait_until([] { return unloaded.load(std::memory_order_acquire) != 0; });
    EXPECT_NE(unloading_thread.load(std::memory_order_relaxed), std::this_thread::get_id());
    EXPECT_TRUE(drained());
    return any && unloads() == 1;
  }
};

TEST_F(Libraries, AreUnloadedWithTheLastOfTheirHandlesAndKernels) {
  std::optional<library> first = loaded();
  std::optional<library> second = first;
  std::optional<kernel> adding = first->find("library_add");
  std::optional<kernel> tiny = second->find("library_tiny");
  first.reset();
  EXPECT_EQ(unloads(), 0);
  second.reset();
  EXPECT_EQ(unloads(), 0);
  adding.reset();
  EXPECT_EQ(unloads(), 0);
  tiny.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, StayWhileALaunchOfTheirKernelIsRunning) {
  std::optional<kernel> adding = found();
  // A kernel's first launch loads its code, which waits for the kernels that run.
  launch_with_worker(*adding, 1);
  sync(one);
  hold_up(one);
  launch_with_worker(*adding, 3);
  adding.reset();
  EXPECT_TRUE(stays_loaded());
  flag.raise();
  EXPECT_TRUE(is_unloaded_once());
  EXPECT_EQ(cells.load(), 4);
}

TEST_F(Libraries, OfACapturedLaunchStayForTheExecAndItsLaunches) {
  std::optional<graph_exec> exec(captured_launch());
  EXPECT_TRUE(exec->is_bare());
  for (int i = 0; i < 100; ++i) exec->launch(two);
  sync(two);
  EXPECT_EQ(unloads(), 0);
  hold_up(two);
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_loaded());
  flag.raise();
  EXPECT_TRUE(is_unloaded_once());
  EXPECT_EQ(cells.load(), 101);
}

TEST_F(Libraries, OfTheKernelOfANodeStayForTheGraph) {
  node const made = build(*built).add(kernel_node(found(), {.block = {1}}, cells.data(), 3));
  run(*built);
  EXPECT_EQ(cells.load(), 3);
  EXPECT_EQ(unloads(), 0);
  made.set(kernel_node(add, {}, cells.data(), 1));
  static_cast<void>(built->get());  // takes off what nodes do not use any more
  EXPECT_TRUE(is_unloaded_once());
  unloaded.store(0);
  made.set(kernel_node(found(), {.block = {1}}, cells.data(), 4));
  run(*built);
  EXPECT_EQ(cells.load(), 7);
  built.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, AreLoadedFromFiles) {
  std::filesystem::path const file =
      std::filesystem::path(testing::TempDir()) / ("escrow_library_" + std::to_string(getpid()));
  provide_library_file(file.c_str());
  {
    library const from_file = library::load_file(file, *worker);
    std::filesystem::remove(file);
    launch_with_worker(from_file.find("library_add"), 4);
    sync(one);
    EXPECT_EQ(cells.load(), 4);
  }
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, ThatAreNotThereOrNoCodeOrLackTheKernelAreErrors) {
  auto const expect = [](cudaError_t status, auto const& failing) {
    expect_error(failing, status);
  };
  expect(cudaErrorFileNotFound, [&] { return library::load_file("/nowhere/at/all", *worker); });
  std::optional<library> no_code = library::load("this is no code", *worker);
  expect(cudaErrorInvalidKernelImage, [&] { return no_code->find("library_add"); });
  EXPECT_EQ(unloads(), 0);
  no_code.reset();
  EXPECT_TRUE(is_unloaded_once());
  library its = loaded();
  expect(cudaErrorSymbolNotFound, [&] { return its.find("no_such_kernel"); });
  library const taken = std::move(its);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  expect_refused([&] { return its.find("library_add"); }, "library::find", "moved from");
}

TEST_F(Libraries, ErrorsOfThemNameTheCallTheLineWhatWasLoadedAndWhatToDo) {
  auto const expect = [](auto const& failing, std::vector<std::string> parts) {
    parts.push_back("tests/nodes/launch_test.cpp");
    test::expect_error<cuda_error>(failing, parts);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  };
  expect([&] { return library::load_file("/nowhere/at/all", *worker); },
         {"library::load_file: ", "cudaLibraryLoadFromFile", "loading /nowhere/at/all",
          "give the path of a file that can be read"});
  library const no_code = library::load("this is no code", *worker);
  expect([&] { return no_code.find("library_add"); },
         {"library::find: ", "cudaLibraryGetKernel", "\"library_add\"", "load a cubin"});
  library const its = loaded();
  expect([&] { return its.find("no_such_kernel"); },
         {"library::find: ", "looking for the kernel \"no_such_kernel\"",
          "declare it extern \"C\", or give its mangled name"});
  expect_refused([&] { return library::load(nullptr, *worker); }, "library::load",
                 "`image` is null");
}

}  // namespace
}  // namespace escrow::test
