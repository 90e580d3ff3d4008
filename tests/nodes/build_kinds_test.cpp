// Graphs that are built by hand: what a node of each kind does when it runs, and what is read back
// of it. Events are in build_events_test.cpp, the conditional kinds in build_conditions_test.cpp.
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "build_fixture.hpp"
#include "build_graph.hpp"

namespace escrow::test {
namespace {

class BuildKinds : public build_test {};

TEST_F(BuildKinds, AKernelIsLaunchedWithItsArguments) {
  node const made = build(built_).add(kernel_node(
      add, {.grid = {3}, .block = {2, 2}, .shared_bytes = 64}, cells_.data(), short{2}));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeKernel);
  cudaKernelNodeParams const read = kernel_params_of(made);
  EXPECT_EQ(read.func, kernel(add).get());
  EXPECT_EQ(read.gridDim.x, 3U);
  EXPECT_EQ(read.blockDim.y, 2U);
  EXPECT_EQ(read.sharedMemBytes, 64U);
  graph plain;
  add_to(plain, 0, 5);
  run(plain);
  EXPECT_EQ(cells_.load(), 5);
}

TEST_F(BuildKinds, AKernelOfALibraryWhoseHandleIsDestroyedRuns) {
  {
    kernel const found = library::load(library_code()).find("library_add");
    build(built_).add(kernel_node(found, {.block = {1}}, cells_.data(), 3));
  }
  run(built_);
  EXPECT_EQ(cells_.load(), 3);
}

TEST_F(BuildKinds, AnEmptyNodeDoesNothingButWait) {
  node const made = build(built_).join();
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeEmpty);
  add_to(made, 0, 1);
  run(built_);
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(BuildKinds, MemoryIsThereFromItsNodeToTheOneThatFreesIt) {
  allocation const memory = build(built_).add(alloc_node(8 * sizeof(int)));
  ASSERT_NE(memory.address(), nullptr);
  EXPECT_EQ(memory.bytes(), 8 * sizeof(int));
  EXPECT_EQ(type_of(memory), cudaGraphNodeTypeMemAlloc);
  EXPECT_EQ(alloc_params_of(memory).dptr, memory.address());
  EXPECT_GE(alloc_params_of(memory).bytesize, memory.bytes());
  EXPECT_EQ(alloc_params_of(memory).poolProps.location.id, 0);
  auto* const data = static_cast<int*>(memory.address());
  node const freed = memory.add(kernel_node(fill, {.block = {8}}, data, 8U, 7))
                         .add(kernel_node(copy, {.block = {8}}, cells_.data(), data, 8U))
                         .add(free_node(memory.address()));
  EXPECT_EQ(type_of(freed), cudaGraphNodeTypeMemFree);
  EXPECT_EQ(freed_by(freed), memory.address());
  graph_exec exec(built_);
  for (int i = 0; i < 3; ++i) {
    cells_.store(7, 0);
    run(exec);
    EXPECT_EQ(cells_.load(0), 7);
    EXPECT_EQ(cells_.load(7), 7);
  }
}

TEST_F(BuildKinds, MemoryOfOneGraphIsFreedByAnotherByItsAddress) {
  allocation const memory = build(built_).add(alloc_node(64));
  graph freeing;
  node const freed = build(freeing).add(free_node(memory.address()));
  EXPECT_EQ(freed_by(freed), memory.address());
  graph_exec first(built_);
  graph_exec second(freeing);
  for (int i = 0; i < 3; ++i) {
    first.launch(stream_);
    second.launch(stream_);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(BuildKinds, AMemsetWritesElementsOfOneTwoOrFourBytes) {
  auto* const bytes = reinterpret_cast<unsigned char*>(device_.data());
  node const last =
      build(built_)
          .add(memset_node(bytes, {.value = 0xff, .width = 3}))
          .add(memset_node(bytes + 4, {.value = 0x3322, .element_bytes = 2, .width = 2}))
          .add(memset_node(bytes + 8, {.value = 0x77665544, .element_bytes = 4, .width = 1}));
  EXPECT_EQ(type_of(last), cudaGraphNodeTypeMemset);
  EXPECT_EQ(memset_params_of(last).dst, bytes + 8);
  EXPECT_EQ(memset_params_of(last).value, 0x77665544U);
  EXPECT_EQ(memset_params_of(last).elementSize, 4U);
  EXPECT_EQ(memset_params_of(last).width, 1U);
  EXPECT_EQ(memset_params_of(last).height, 1U);
  run(built_);
  std::vector<unsigned> expected{0xff, 0xff, 0xff, 0,    0x22, 0x33,
                                 0x22, 0x33, 0x44, 0x55, 0x66, 0x77};
  expected.resize(32);
  EXPECT_EQ(bytes_of(device_), expected);
}

TEST_F(BuildKinds, AMemsetOfRowsLeavesWhatIsBetweenThem) {
  for (unsigned const element : {1U, 2U, 4U}) {
    graph rows;
    must(cudaMemset(device_.data(), 0, 32));
    unsigned const value = element == 4 ? 0x04030201 : 0x0201 & (0xffffU >> (16 - 8 * element));
    node const made = build(rows).add(memset_node(
        device_.data(),
        {.value = value, .element_bytes = element, .width = 2, .height = 3, .pitch = 12}));
    cudaMemsetParams const read = memset_params_of(made);
    EXPECT_EQ(read.elementSize, element);
    EXPECT_EQ(read.width, 2U);
    EXPECT_EQ(read.height, 3U);
    run(rows);
    std::vector<unsigned> expected(32);
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t i = 0; i < std::size_t{2} * element; ++i) {
        expected[row * read.pitch + i] = static_cast<unsigned>(i % element + 1);
      }
    }
    EXPECT_EQ(bytes_of(device_), expected) << "elements of " << element;
  }
}

TEST_F(BuildKinds, AMemcpyGoesBetweenAnyTwoOfDevicePinnedAndPageableMemory) {
  std::vector<int> pageable(8);
  std::array<int*, 3> const kinds{device_.data(), cells_.data(), pageable.data()};
  int value = 0;
  for (int* const to : kinds) {
    for (int* const from : kinds) {
      graph copying;
      int const in = ++value;
      int out = 0;
      node const made = build(copying)
                            .add(memcpy_node(from, &in, sizeof(int)))
                            .add(memcpy_node(to + 4, from, sizeof(int)));
      EXPECT_EQ(type_of(made), cudaGraphNodeTypeMemcpy);
      cudaMemcpy3DParms const read = memcpy_params_of(made);
      EXPECT_EQ(read.dstPtr.ptr, to + 4);
      EXPECT_EQ(read.srcPtr.ptr, from);
      EXPECT_EQ(read.extent.width * read.extent.height * read.extent.depth, sizeof(int));
      static_cast<void>(made.add(memcpy_node(&out, to + 4, sizeof(int))));
      run(copying);
      EXPECT_EQ(out, value);
    }
  }
}

TEST_F(BuildKinds, AnEmbeddedGraphRunsAsItWasThen) {
  graph child;
  add_to(child, 0, 2);
  node const made =
      add_to(built_, 1, 1)
          .add(child_node(child))
          .add(kernel_node(copy, {.block = {1}}, cells_.data() + 2, cells_.data(), 1U));
  node const embedded = predecessors_of(made).at(0);
  EXPECT_EQ(type_of(embedded), cudaGraphNodeTypeGraph);
  EXPECT_NE(embedded_in(embedded), child.get());
  EXPECT_EQ(node_count(embedded_in(embedded)), 1U);
  add_to(child, 0, 100);
  child = graph();
  graph_exec exec(built_);
  EXPECT_TRUE(exec.is_bare());
  run(exec);
  run(exec);
  EXPECT_EQ(cells_.load(0), 4);
  EXPECT_EQ(cells_.load(2), 4);
}

TEST_F(BuildKinds, ACallableIsCalledOnceALaunchInItsTurn) {
  std::atomic<int> calls{0};
  int seen = 0;
  node const made = add_to(built_, 0, 1).add(host_node([&calls, &seen, this] {
    seen = cells_.load();
    // Release: whoever sees the count sees what was seen.
    calls.fetch_add(1, std::memory_order_release);
  }));
  add_to(made, 1, 1);
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeHost);
  EXPECT_NE(host_params_of(made).fn, nullptr);
  graph_exec exec(built_);
  for (int i = 1; i <= 3; ++i) {
    run(exec);
    // Acquire: pairs with the release of the callable.
    EXPECT_EQ(calls.load(std::memory_order_acquire), i);
    EXPECT_EQ(seen, i);
  }
}

// What a C function finds at its argument, and where it says so.
struct told {
  std::atomic<int>* to;
  int value;
};
void CUDART_CB tell(void* data) {
  auto const* const given = static_cast<told const*>(data);
  bool const is_aligned = reinterpret_cast<std::uintptr_t>(data) % alignof(std::max_align_t) == 0;
  // Release: pairs with the acquire of the test.
  given->to->fetch_add(is_aligned ? given->value : -1, std::memory_order_release);
}

TEST_F(BuildKinds, ACFunctionIsCalledWithACopyOfItsData) {
  std::atomic<int> sum{0};
  told data{&sum, 5};
  node const made = build(built_).add(host_node(&tell, &data, sizeof(data)));
  data = {nullptr, -1};
  cudaHostNodeParams const read = host_params_of(made);
  EXPECT_EQ(read.fn, &tell);
  ASSERT_NE(read.userData, &data);
  EXPECT_EQ(static_cast<told const*>(read.userData)->value, 5);
  graph_exec exec(built_);
  run(exec);
  run(exec);
  EXPECT_EQ(sum.load(std::memory_order_acquire), 10);
}

TEST_F(BuildKinds, AreValuesThatCanBeAddedAgain) {
  std::atomic<int> sum{0};
  std::shared_ptr<int> owner(cells_.data(), [](int*) {});
  std::optional<graph> second(std::in_place);
  {
    told const data{&sum, 3};
    auto const added = kernel_node(add, {}, owner, 2);
    auto const called = host_node(&tell, &data, sizeof(data));
    auto const counted = host_node([&sum] { sum.fetch_add(1, std::memory_order_release); });
    for (graph const* each : {&built_, &*second}) {
      static_cast<void>(build(*each).add(added).add(called).add(counted));
    }
  }
  EXPECT_EQ(owner.use_count(), 3) << "each graph has a share";
  run(built_);
  run(*second);
  EXPECT_EQ(cells_.load(), 4);
  EXPECT_EQ(sum.load(std::memory_order_acquire), 8);
}

TEST_F(BuildKinds, ACFunctionNeedsNoData) {
  cudaHostFn_t const nothing = [](void*) noexcept {};
  static_cast<void>(build(built_).add(host_node(nothing, nullptr, 0)));
  run(built_);
}

}  // namespace
}  // namespace escrow::test
