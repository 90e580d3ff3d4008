// SPDX-License-Identifier: Apache-2.0
// What a node of each kind does when it runs, and what CUDA tells of it. The conditional kinds are
// in build_shape_test.cpp. Memory without a type is an argument for a pointer of any type.
#include <array>
#include <cstring>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class BuildKinds : public nodes_world {
 protected:
  [[nodiscard]] std::vector<unsigned> device_bytes() const {
    std::vector<int> const ints = device.read();
    std::vector<unsigned char> bytes(ints.size() * sizeof(int));
    std::memcpy(bytes.data(), ints.data(), bytes.size());
    return {bytes.begin(), bytes.end()};
  }
  owned_event const borrowed = make_event();
};

TEST_F(BuildKinds, AKernelIsLaunchedWithItsShapeAndArguments) {
  node const made = build(*built).add(
      kernel_node(add, {.grid = {3}, .block = {2, 2}, .shared_bytes = 64}, cells.data(), short{2}));
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeKernel);
  cudaKernelNodeParams const read = kernel_params_of(made);
  EXPECT_EQ(read.func, kernel(add).get());
  EXPECT_EQ(read.gridDim.x, 3U);
  EXPECT_EQ(read.blockDim.y, 2U);
  EXPECT_EQ(read.sharedMemBytes, 64U);
  made.set(kernel_node(add, {}, cells.data(), 5));
  run(*built);
  EXPECT_EQ(cells.load(), 5);
}

TEST_F(BuildKinds, MemoryIsThereFromItsNodeToTheOneThatFreesIt) {
  allocation const memory = build(*built).add(alloc_node(8 * sizeof(int)));
  ASSERT_NE(memory.address(), nullptr);
  EXPECT_EQ(memory.bytes(), 8 * sizeof(int));
  EXPECT_EQ(type_of(memory), cudaGraphNodeTypeMemAlloc);
  EXPECT_EQ(alloc_params_of(memory).dptr, memory.address());
  EXPECT_GE(alloc_params_of(memory).bytesize, memory.bytes());
  EXPECT_EQ(alloc_params_of(memory).poolProps.location.type, cudaMemLocationTypeDevice);
  EXPECT_EQ(alloc_params_of(memory).poolProps.location.id, 0);
  auto* const data = static_cast<int*>(memory.address());
  node const freed = memory.add(kernel_node(fill, {.block = {8}}, data, 8U, 7))
                         .add(kernel_node(copy, {.block = {8}}, cells.data(), data, 8U))
                         .add(free_node(memory.address()));
  EXPECT_EQ(type_of(freed), cudaGraphNodeTypeMemFree);
  EXPECT_EQ(freed_by(freed), memory.address());
  EXPECT_THROW(freed.set(free_node(memory.address())), cuda_error) << "CUDA changes no such node";
  graph_exec exec(*built);
  for (int i = 0; i < 3; ++i) {
    cells.store(7, 0);
    run(exec);
    EXPECT_EQ(cells.load(0), 7);
    EXPECT_EQ(cells.load(7), 7);
  }
}

TEST_F(BuildKinds, AMemsetWritesElementsOfOneTwoOrFourBytes) {
  auto* const bytes = reinterpret_cast<unsigned char*>(device.data());
  node const last =
      build(*built)
          .add(memset_node(bytes, {.value = 0xff, .width = 3}))
          .add(memset_node(bytes + 4, {.value = 0xffee, .element_bytes = 2, .width = 2}))
          .add(memset_node(bytes + 8, {.value = 0x77665544, .element_bytes = 4, .width = 1}))
          .add(memset_node(bytes + 12, {.value = 0xffffffff, .element_bytes = 4, .width = 1}));
  EXPECT_EQ(type_of(last), cudaGraphNodeTypeMemset);
  EXPECT_EQ(memset_params_of(last).dst, bytes + 12);
  EXPECT_EQ(memset_params_of(last).value, 0xffffffffU);
  EXPECT_EQ(memset_params_of(last).elementSize, 4U);
  run(*built);
  std::vector<unsigned> expected{0xff, 0xff, 0xff, 0,    0xee, 0xff, 0xee, 0xff,
                                 0x44, 0x55, 0x66, 0x77, 0xff, 0xff, 0xff, 0xff};
  expected.resize(32);
  EXPECT_EQ(device_bytes(), expected);
}

TEST_F(BuildKinds, AMemsetOfRowsLeavesWhatIsBetweenThem) {
  for (unsigned const element : {1U, 2U, 4U}) {
    SCOPED_TRACE(element);
    graph rows(*worker);
    must(cudaMemset(device.data(), 0, 32));
    unsigned const value = element == 4 ? 0x04030201 : 0x0201 & (0xffffU >> (16 - 8 * element));
    node const made = build(rows).add(memset_node(
        device.data(),
        {.value = value, .element_bytes = element, .width = 2, .height = 3, .pitch = 8}));
    cudaMemsetParams const read = memset_params_of(made);
    EXPECT_EQ(read.elementSize, element);
    EXPECT_EQ(read.width, 2U);
    EXPECT_EQ(read.height, 3U);
    run(rows);
    std::vector<unsigned> expected(32);
    for (std::size_t i = 0; i < std::size_t{6} * element; ++i) {
      std::size_t const in_row = i % (2 * element);
      expected[i / (2 * element) * read.pitch + in_row] = static_cast<unsigned>(i % element + 1);
    }
    EXPECT_EQ(device_bytes(), expected);
  }
}

TEST_F(BuildKinds, AMemcpyGoesBetweenAnyTwoOfDevicePinnedAndPageableMemory) {
  std::vector<int> pageable(8);
  std::array<int*, 3> const kinds{device.data(), cells.data(), pageable.data()};
  int value = 0;
  for (int* const to : kinds) {
    for (int* const from : kinds) {
      graph copying(*worker);
      int const in = ++value;
      int out = 0;
      node const made = build(copying)
                            .add(memcpy_node(from, &in, sizeof(int)))
                            .add(memcpy_node(to + 4, from, sizeof(int)));
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
  graph child(*worker);
  add_to(child, 0, 2);
  node const last = add_to(*built, 1)
                        .add(child_node(child))
                        .add(kernel_node(copy, {}, cells.data() + 2, cells.data(), 1U));
  node const embedded = predecessors_of(last).at(0);
  EXPECT_EQ(type_of(embedded), cudaGraphNodeTypeGraph);
  EXPECT_NE(embedded_in(embedded), child.get());
  EXPECT_EQ(node_count(embedded_in(embedded)), 1U);
  add_to(child, 0, 100);
  child = graph(*worker);
  graph_exec exec(*built);
  EXPECT_TRUE(exec.is_bare());
  run(exec);
  run(exec);
  EXPECT_EQ(cells.load(0), 4);
  EXPECT_EQ(cells.load(2), 4);
}

TEST_F(BuildKinds, ACallableIsCalledOnceALaunchInItsTurn) {
  std::atomic<int> calls{0};
  int seen = 0;
  node const made = add_to(*built, 0).add(host_node([&calls, &seen, this] {
    seen = cells.load();
    // Release: a thread that sees the count sees `seen`.
    calls.fetch_add(1, std::memory_order_release);
  }));
  add_to(made, 1);
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeHost);
  EXPECT_NE(host_params_of(made).fn, nullptr);
  graph_exec exec(*built);
  for (int i = 1; i <= 3; ++i) {
    run(exec);
    // Acquire: pairs with the release of the callable.
    EXPECT_EQ(calls.load(std::memory_order_acquire), i);
    EXPECT_EQ(seen, i);
  }
}

TEST_F(BuildKinds, AreValuesThatCanBeAddedAgain) {
  std::atomic<int> sum{0};
  std::shared_ptr<int> const owner = shared(make_fate());
  graph second(*worker);
  {
    auto const added = kernel_node(add, {}, owner, 2);
    auto const counted = host_node([&sum] { sum.fetch_add(1, std::memory_order_release); });
    for (graph const* each : {&*built, &second})
      static_cast<void>(build(*each).add(added).add(counted));
  }
  EXPECT_EQ(owner.use_count(), 3) << "each graph has a share";
  run(*built);
  run(second);
  EXPECT_EQ(cells.load(), 4);
  EXPECT_EQ(sum.load(std::memory_order_acquire), 2);
}

TEST_F(BuildKinds, AStoredKindOwnsWhatWasMovedIntoIt) {
  fate_ptr const fate = make_fate();
  using unique = std::unique_ptr<int, tells>;
  auto const make = [&] {  // the argument ends with the call
    unique mine(cells.data(), tells{fate});
    return kernel_node(add, {}, std::move(mine), 2);
  };
  auto kind = make();
  auto dropped = make();
  EXPECT_EQ(fate->times(), 0);
  build(*built).add(std::move(kind));
  { auto const ends = std::move(dropped); }
  EXPECT_EQ(fate->times(), 1) << "of the kind that was dropped";
  auto buffer = kernel_node(fill, {.block = {4}}, device_buffer<int>(16), 16U, 7);
  auto filled = memset_node(device_buffer<int>(4), {.width = 16});
  auto copied = memcpy_node(device_buffer<int>(4), device_buffer<int>(4), 16);
  build(*built).add(std::move(buffer)).add(std::move(filled)).add(std::move(copied));
  EXPECT_EQ(owners_held(), 4U);
  run(*built);
  EXPECT_EQ(cells.load(), 2);
  built.reset();
  EXPECT_TRUE(drained());
  EXPECT_EQ(fate->times(), 2);
}

TEST_F(BuildKinds, AKindThatCannotBeMadeLeavesWhatWasToBeMovedIntoIt) {
  device_buffer<int> mine(4);
  std::shared_ptr<device_buffer<int>> const none;
  EXPECT_THROW(static_cast<void>(memcpy_node(std::move(mine), none, 4)), usage_error);
  EXPECT_THROW(static_cast<void>(memset_node(std::move(mine), {.width = 0})), usage_error);
  launch_config too_much{.shared_bytes = std::size_t{1} << 32};
  EXPECT_THROW(static_cast<void>(kernel_node(fill, too_much, std::move(mine), 4U, 1)), usage_error);
  EXPECT_NE(mine.data(), nullptr);  // NOLINT(bugprone-use-after-move)
}

TEST_F(BuildKinds, AStoredChildIsThereUntilItIsAdded) {
  auto const kind = [this] {
    graph inner(*worker);
    add_to(inner, 0, 3);
    return child_node(inner);
  }();
  build(*built).add(kind);
  run(*built);
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(BuildKinds, AnArrayIsCopiedToAndFromAndWritten) {
  int const from[2] = {5, 6};
  int to[2] = {};
  unsigned char bytes[2][2] = {{1, 1}, {1, 1}};
  build(*built)
      .add(memcpy_node(device.data(), from, sizeof(from)))
      .add(memcpy_node(to, device.data(), sizeof(to)))
      .add(memcpy_node(bytes, device.data() + 4, sizeof(bytes)));
  run(*built);
  EXPECT_EQ(to[0], 5);
  EXPECT_EQ(to[1], 6);
  EXPECT_EQ(bytes[1][1], 0);
  int in_device[1] = {};
  static_cast<void>(memset_node(in_device, {.width = 4}));  // compiles: it may be managed memory
}

TEST_F(BuildKinds, MoreMemoryThanThereIsIsAnErrorOfCuda) {
  expect_error([&] { return build(*built).add(alloc_node(std::size_t{1} << 60)); },
               cudaErrorMemoryAllocation);
  EXPECT_TRUE(nodes_in(*built).empty());
}

TEST_F(BuildKinds, AnEventIsAwaitedAndRecordedInItsTurn) {
  auto const awaited = std::make_shared<event const>();
  event_ref const recorded = borrowed.get();
  node const waiting = build(*built).add(wait_node(awaited));
  node const recording = add_to(waiting, 0).add(record_node(recorded));
  EXPECT_EQ(type_of(waiting), cudaGraphNodeTypeWaitEvent);
  EXPECT_EQ(event_of(waiting), awaited->get());
  EXPECT_EQ(type_of(recording), cudaGraphNodeTypeEventRecord);
  EXPECT_EQ(event_of(recording), recorded.get());
  graph_exec exec(*built);
  run(exec);  // an event that was not recorded delays nothing
  EXPECT_EQ(cells.load(), 1);
  hold_up(one);
  awaited->ref().record(one.get());
  exec.launch(two);
  EXPECT_TRUE(stays_false([&] { return recorded.is_done(); }));
  EXPECT_EQ(cells.load(), 1);
  flag.raise();
  sync(two);
  EXPECT_TRUE(recorded.is_done());
  EXPECT_EQ(cells.load(), 2);
}

class TypedMemory : public nodes_world {};

TEST_F(TypedMemory, IsPassedForAPointerOfAnyTypeByLeasesBlocksSharesAndNodes) {
  scratch_pool pool;
  auto memory = pool.claim(one, sizeof(int) * 4);
  launch(one, fill, {.block = {4}}, memory, 4U, 7);
  launch(one, copy, {.block = {4}}, cells.data(), memory, 4U);
  device_block block(sizeof(int) * 4);
  launch(one, fill, {.block = {4}}, std::move(block), 4U, 7);
  EXPECT_EQ(block.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  std::shared_ptr<void> const untyped(device.data(), [](void*) {});
  launch(one, fill, {.block = {4}}, untyped, 4U, 8);
  sync(one);
  EXPECT_EQ(cells.load(3), 7);
  EXPECT_EQ(device.read()[3], 8);
  build(*built)
      .add(kernel_node(fill, {.block = {4}}, memory, 4U, 9))
      .add(kernel_node(copy, {.block = {4}}, cells.data(), memory, 4U));
  run(*built);
  EXPECT_EQ(cells.load(3), 9);
  built.reset();
}

// A plain pointer has the type that it has; and memory that may only be read is not written.
static_assert(detail::can_be_passed<int*, device_block>());
static_assert(detail::can_be_passed<int const*, std::shared_ptr<void const>>());
static_assert(!detail::can_be_passed<int*, std::shared_ptr<void const>>());
static_assert(!detail::can_be_passed<int*, void*>());
static_assert(!detail::can_be_passed<int*, std::shared_ptr<float>>());
static_assert(!detail::can_be_passed<int, device_block>());

// What a node keeps of two owners fits in the deleter's node, without an allocation.
template <class Owner>
using kept_of_two = detail::node_arguments<Owner, Owner, int&, float, int&>;
static_assert(sizeof(kept_of_two<std::shared_ptr<int>&>) <= retired_object::capacity);
static_assert(sizeof(kept_of_two<std::unique_ptr<int>>) <= retired_object::capacity);

}  // namespace
}  // namespace escrow::test
