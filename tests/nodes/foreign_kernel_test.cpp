// SPDX-License-Identifier: Apache-2.0
// Kernels that other code loaded: what keeps them loaded is kept as long as they may run.
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class ForeignKernel : public nodes_world {
 protected:
  /// A kernel of a library that Escrow does not know, and the only owner of that library.
  [[nodiscard]] kernel loaded() {
    cudaLibrary_t its = nullptr;
    cudaKernel_t found = nullptr;
    must(cudaLibraryLoadData(&its, library_code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    must(cudaLibraryGetKernel(&found, its, "library_add"));
    auto const unload = [ends = fate](cudaLibrary_t doomed) {
      EXPECT_EQ(cudaLibraryUnload(doomed), cudaSuccess);
      probe const told(ends);
    };
    return {found, std::shared_ptr<std::remove_pointer_t<cudaLibrary_t>>(its, unload)};
  }
  fate_ptr fate = make_fate();
};

TEST_F(ForeignKernel, StaysLoadedForANodeItsGraphExecAndTheLastLaunch) {
  hold_up_at(*built).add(kernel_node(loaded(), {}, cells.data(), 3));
  std::optional<graph_exec> exec(*built);
  EXPECT_TRUE(exec->is_bare());
  built.reset();
  EXPECT_TRUE(is_kept(fate));
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(ForeignKernel, StaysLoadedForALaunchAlsoACapturedOne) {
  std::optional<kernel> its = loaded();
  graph const made = captured(
      [&](cudaStream_t on) { launch(on, *its, {.deleter = worker.get()}, cells.data(), 2); });
  its.reset();
  std::optional<graph_exec> exec(made);
  run(*exec);
  EXPECT_TRUE(is_kept(fate));
  EXPECT_EQ(cells.load(), 2);
}

TEST_F(ForeignKernel, StaysLoadedInAnExecThatIsGivenIt) {
  node const made = add_to(*built, 0);
  std::optional<graph_exec> exec(*built);
  escrow::set(*exec, made, kernel_node(loaded(), {}, cells.data(), 5));
  EXPECT_TRUE(is_kept(fate));
  run(*exec);
  EXPECT_EQ(cells.load(), 5);
  made.set(kernel_node(loaded(), {}, cells.data(), 7));
  exec.reset();
  run(*built);
  EXPECT_EQ(cells.load(), 12);
  EXPECT_TRUE(is_released(fate)) << "that of the exec alone";
}

TEST_F(ForeignKernel, TellsItsHandleAndItsOwner) {
  kernel const one_kernel = loaded();
  kernel const twin = one_kernel;
  EXPECT_EQ(one_kernel.library(), twin.library());
  EXPECT_EQ(one_kernel.get(), twin.get());
  EXPECT_EQ(one_kernel.library().use_count(), 3);
  cudaKernel_t const none = nullptr;
  expect_refused([&] { return kernel(none, one_kernel.library()); }, "kernel::kernel",
                 "`loaded` is null");
  auto* const handle = static_cast<cudaKernel_t>(const_cast<void*>(one_kernel.get()));
  expect_refused([&] { return kernel(handle, nullptr); }, "kernel::kernel", "`owner` is null");
  static_assert(!std::is_constructible_v<kernel, cudaFunction_t, std::shared_ptr<void const>>);
}

}  // namespace
}  // namespace escrow::test
