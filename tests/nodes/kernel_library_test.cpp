// Code that is loaded at run time: unloaded once, by the worker, after the last launch and with the
// last graph that has a kernel of it.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

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

namespace escrow::test {
namespace {

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

TEST_F(Libraries, StayForPlainClonesAndExecs) {
  std::optional<graph> source = captured_launch();
  owned_graph twin = clone(source->get());
  source.reset();
  owned_exec exec = instantiate(twin);
  twin.reset();
  must(cudaGraphLaunch(exec, two));
  sync(two);
  EXPECT_EQ(unloads(), 0);
  exec.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, OfTheKernelOfANodeStayForTheGraph) {
  node const made = build(*built).add(kernel_node(found(), {.block = {1}}, cells.data(), 3));
  run(*built);
  EXPECT_EQ(cells.load(), 3);
  EXPECT_EQ(unloads(), 0);
  made.set(kernel_node(add, {}, cells.data(), 1));
  EXPECT_TRUE(is_unloaded_once());
  unloaded.store(0);
  made.set(kernel_node(found(), {.block = {1}}, cells.data(), 4));
  run(*built);
  EXPECT_EQ(cells.load(), 7);
  built.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, AreLoadedInACaptureWithoutHarmToIt) {
  capture open(one, cudaStreamCaptureModeGlobal);
  launch_with_worker(found(), 1);
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(unloads(), 0);
  open.graph().reset();
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

TEST_F(Libraries, ThatAreNotThereOrNoCodeAreErrors) {
  expect_error([&] { static_cast<void>(library::load_file("/nowhere/at/all", *worker)); },
               cudaErrorFileNotFound);
  EXPECT_EQ(unloads(), 0);
  std::optional<library> no_code = library::load("this is no code", *worker);
  expect_error([&] { static_cast<void>(no_code->find("library_add")); },
               cudaErrorInvalidKernelImage);
  EXPECT_EQ(unloads(), 0);
  no_code.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, ReportAKernelThatTheyDoNotHaveAndRefuseIfMovedFrom) {
  library its = loaded();
  expect_error([&] { static_cast<void>(its.find("no_such_kernel")); }, cudaErrorSymbolNotFound);
  library const taken = std::move(its);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  expect_refused([&] { static_cast<void>(its.find("library_add")); }, "library::find",
                 "moved from");
}

}  // namespace
}  // namespace escrow::test
