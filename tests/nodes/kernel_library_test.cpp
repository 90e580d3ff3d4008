// Code that is loaded at run time: unloaded once, by the worker, after the last launch and with the
// last graph that has a kernel of it.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

// Counts what the library under test unloads: the linker hands us its calls.
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

class Libraries : public testing::Test {
 protected:
  void SetUp() override { unloaded.store(0, std::memory_order_relaxed); }
  void TearDown() override { EXPECT_EQ(deleter_.stats().errors, 0U); }

  [[nodiscard]] library loaded() { return library::load(library_code(), deleter_); }
  // A kernel whose library is gone but for it.
  [[nodiscard]] kernel found() { return loaded().find("library_add"); }
  void launch_add(kernel const& add, int value) {
    launch_config config;
    config.deleter = &deleter_;
    launch(stream_, add, config, cells_.data(), value);
  }
  void hold_up() { must(launch_wait_flag(stream_, flag_.get())); }
  [[nodiscard]] graph captured() {
    return escrow::capture(stream_, [this](stream_ref) { launch_add(found(), 1); });
  }
  // How often it was unloaded, once all that was let go so far has been reclaimed.
  [[nodiscard]] int unloads() {
    deleter_.drain();
    return unloaded.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool stays_loaded() {
    return stays_false([] { return unloaded.load(std::memory_order_acquire) != 0; });
  }
  [[nodiscard]] bool is_unloaded_once() {
    bool const any = wait_until([] { return unloaded.load(std::memory_order_acquire) != 0; });
    EXPECT_NE(unloading_thread.load(std::memory_order_relaxed), std::this_thread::get_id());
    return any && unloads() == 1;
  }

  pinned_flag flag_;
  pinned_ints cells_;
  owned_stream stream_ = make_stream();
  deleter deleter_;
};

TEST_F(Libraries, AreUnloadedWithTheLastOfTheirHandlesAndKernels) {
  std::optional<library> first = loaded();
  std::optional<library> copy = first;
  std::optional<kernel> add = first->find("library_add");
  std::optional<kernel> tiny = copy->find("library_tiny");
  first.reset();
  EXPECT_EQ(unloads(), 0);
  copy.reset();
  EXPECT_EQ(unloads(), 0);
  add.reset();
  EXPECT_EQ(unloads(), 0);
  tiny.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, StayWhileALaunchOfTheirKernelIsRunning) {
  std::optional<kernel> add = found();
  // A kernel's first launch loads its code, which waits for the kernels that run.
  launch_add(*add, 1);
  must(cudaStreamSynchronize(stream_));
  hold_up();
  launch_add(*add, 3);
  add.reset();
  EXPECT_TRUE(stays_loaded());
  flag_.raise();
  EXPECT_TRUE(is_unloaded_once());
  EXPECT_EQ(cells_.load(), 4);
}

TEST_F(Libraries, StayForAThousandLaunchesOfAGraphThatHasTheirKernel) {
  std::optional<graph> source = captured();
  std::optional<graph_exec> exec(*source);
  EXPECT_TRUE(exec->is_bare());
  source.reset();
  EXPECT_EQ(unloads(), 0);
  for (int i = 0; i < 1000; ++i) exec->launch(stream_);
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(unloads(), 0);
  EXPECT_EQ(cells_.load(), 1000);
  exec.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, StayUntilTheLastLaunchOfAnExecThatIsGoneIsDone) {
  {
    graph_exec exec(captured());
    hold_up();
    exec.launch(stream_);
  }
  EXPECT_TRUE(stays_loaded());
  flag_.raise();
  EXPECT_TRUE(is_unloaded_once());
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(Libraries, StayForPlainExecsAndClones) {
  std::optional<graph> source = captured();
  owned_graph copy = clone(source->get());
  source.reset();
  owned_exec exec = instantiate(copy);
  copy.reset();
  EXPECT_EQ(unloads(), 0);
  must(cudaGraphLaunch(exec, stream_));
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(unloads(), 0);
  exec.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, AreLoadedInACaptureWithoutHarmToIt) {
  capture open(stream_, cudaStreamCaptureModeGlobal);
  launch_add(found(), 1);
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
    library const from_file = library::load_file(file, deleter_);
    std::filesystem::remove(file);
    launch_add(from_file.find("library_add"), 4);
    must(cudaStreamSynchronize(stream_));
    EXPECT_EQ(cells_.load(), 4);
  }
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, FromAFileThatIsNotThereAreErrorsAndLeaveNothing) {
  try {
    static_cast<void>(library::load_file("/nowhere/at/all", deleter_));
    FAIL() << "loaded what is not there";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorFileNotFound);
  }
  EXPECT_EQ(unloads(), 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(Libraries, OfWhatIsNoCodeAreErrorsWhenAKernelIsAskedForAndAreUnloadedAllTheSame) {
  std::optional<library> none = library::load("this is no code", deleter_);
  try {
    static_cast<void>(none->find("library_add"));
    FAIL() << "found a kernel in what is no code";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorInvalidKernelImage);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(unloads(), 0);
  none.reset();
  EXPECT_TRUE(is_unloaded_once());
}

TEST_F(Libraries, AreFoundAgainByTheHandlesOfTheirKernels) {
  auto add = std::make_unique<kernel>(found());
  void const* const handle = add->get();
  EXPECT_FALSE(library::kernel_of(&handle).has_value()) << "no kernel";
  auto again = std::make_unique<kernel>(library::kernel_of(handle).value());
  EXPECT_EQ(again->library(), add->library());
  add.reset();
  EXPECT_EQ(unloads(), 0) << "what was found again keeps it";
  again.reset();
  EXPECT_TRUE(is_unloaded_once());
  EXPECT_FALSE(library::kernel_of(handle).has_value());
}

TEST_F(Libraries, SayWhichKernelTheyDoNotHave) {
  library its = loaded();
  try {
    static_cast<void>(its.find("no_such_kernel"));
    FAIL() << "found what is not there";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorSymbolNotFound);
  }
  library const taken = std::move(its);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  EXPECT_THROW(static_cast<void>(its.find("library_add")), usage_error);
}

}  // namespace
}  // namespace escrow::test
