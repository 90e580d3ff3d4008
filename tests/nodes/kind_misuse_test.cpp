// SPDX-License-Identifier: Apache-2.0
// Kinds of nodes that must not be used: the error names the call and the problem. Arguments that
// are not there, kinds whose owners were taken; and why CUDA refuses a kind where it is added or
// set.
#include <functional>
#include <limits>

#include "nodes_world.hpp"

namespace escrow::test {
namespace {

constexpr memset_config one_byte{.width = 1};

class KindMisuse : public nodes_world {
 protected:
  std::shared_ptr<event const> const shared_event = std::make_shared<event>();
};

TEST_F(KindMisuse, ANullCallableIsRefusedWhereTheKindIsMade) {
  std::function<void()> const none;
  void (*const null)() = nullptr;
  expect_refused([&] { return host_node(none); }, "host_node", "`function` is null");
  expect_refused([&] { return host_node(null); }, "host_node", "`function` is null");
  int calls = 0;
  void (*const pointer)() = [] {};
  build(*built)
      .add(host_node(pointer))
      .add(host_node([] {}))
      .add(host_node(std::function<void()>([&calls] { ++calls; })));
  run(*built);
  EXPECT_EQ(calls, 1);
}

TEST_F(KindMisuse, AnArgumentThatIsNotThereIsRefusedInTheNameOfTheKind) {
  block_pool pool = make_pool(2);
  block_lease lease = pool.claim(one);
  auto shared_lease = std::make_shared<block_lease>(pool.claim(one));
  shared_lease->release();
  lease.release();
  std::shared_ptr<device_buffer<int>> const null;
  std::unique_ptr<device_buffer<int>> const no_owner;
  std::shared_ptr<block_lease> const no_lease;
  std::shared_ptr<int> const no_memory;
  int* const data = device.data();
  auto const refuses = [&](auto& argument, char const* problem) {
    expect_refused([&] { return memset_node(argument, one_byte); }, "memset_node", problem);
    expect_refused([&] { return memcpy_node(argument, data, 4); }, "memcpy_node", problem);
    expect_refused([&] { return memcpy_node(data, argument, 4); }, "memcpy_node", problem);
  };
  auto const kernel_refuses = [&](auto& argument, char const* problem) {
    refuses(argument, problem);
    expect_refused([&] { return kernel_node(add, {}, argument, 1); }, "kernel_node", problem);
    expect_refused([&] { return kernel_node(kernel(add), {}, argument, 1); }, "kernel_node",
                   problem);
    auto const launches = [&] { launch(one, add, {}, argument, 1); };
    expect_refused(launches, "launch", problem);
    expect_refused([&] { launch(one, kernel(add), {}, argument, 1); }, "launch", problem);
  };
  kernel_refuses(lease, "is an empty lease");
  kernel_refuses(shared_lease, "is an empty lease");
  kernel_refuses(null, "is a null pointer to an owner");
  kernel_refuses(no_lease, "is a null pointer to an owner");
  refuses(no_memory, "null");
  std::unique_ptr<device_buffer<int>> mine;
  expect_refused([&] { return memset_node(std::move(mine), one_byte); }, "memset_node",
                 "is a null pointer to an owner");
  EXPECT_TRUE(pool.close_for(generous).empty());
}

TEST_F(KindMisuse, AnArgumentIsNamedByItsPosition) {
  block_pool pool = make_pool(1);
  block_lease empty = pool.claim(one);
  empty.release();
  int* const data = device.data();
  constexpr char const* problem = "argument 1 (counted from 0) is an empty lease";
  expect_refused([&] { launch(one, copy, {}, data, empty, std::size_t{1}); }, "launch", problem);
  expect_refused([&] { return memcpy_node(data, empty, 4); }, "memcpy_node", problem);
}

TEST_F(KindMisuse, AnArgumentThatWasMovedFromIsRefused) {
  device_buffer<int> from(4);
  device_buffer<int> const to = std::move(from);
  // NOLINTBEGIN(bugprone-use-after-move): that is tested
  constexpr char const* problem = "has no memory: it was moved from";
  expect_refused([&] { return memset_node(std::move(from), one_byte); }, "memset_node", problem);
  expect_refused([&] { return kernel_node(add, {}, std::move(from), 1); }, "kernel_node", problem);
  expect_refused([&] { launch(one, add, {}, std::move(from), 1); }, "launch", problem);
  expect_refused([&] { launch(one, kernel(add), {}, std::move(from), 1); }, "launch", problem);
  // NOLINTEND(bugprone-use-after-move)
  static_cast<void>(kernel_node(add, {}, device_buffer<int>(0), 1));  // has no address
}

TEST_F(KindMisuse, WhatIsLargerThanItsMemoryIsRefused) {
  scratch_pool scratch(options(4));
  auto ints = scratch.claim<int>(one, 100);
  auto block = scratch.claim(one, 1024);
  auto const shared_block = std::make_shared<device_block>(64);
  int numbers[4] = {};
  int* const plain = device.data();
  auto const fills = [](auto& memory, memset_config const& config, std::string const& problem) {
    expect_refused([&] { return memset_node(memory, config); }, "memset_node", problem);
  };
  auto const ints_of = [](std::size_t width, std::size_t height, std::size_t pitch) {
    return memset_config{.element_bytes = 4, .width = width, .height = height, .pitch = pitch};
  };
  static_cast<void>(memset_node(ints, ints_of(100, 1, 0)));
  static_cast<void>(memset_node(block, ints_of(16, 4, 320)));  // the last row ends with the block
  fills(ints, ints_of(101, 1, 0), "the destination has 400 bytes, and the node uses 404");
  fills(ints, ints_of(1, 3, 200), "the destination has 400 bytes, and the node uses 404");
  fills(block, ints_of(17, 4, 320), "the destination has 1024 bytes, and the node uses 1028");
  fills(shared_block, {.width = 65}, "the destination has 64 bytes, and the node uses 65");
  constexpr std::size_t minus_one = std::numeric_limits<std::size_t>::max();
  fills(plain, {.element_bytes = 4, .width = minus_one}, "`width` is more than memory has");
  fills(plain, {.width = 1, .height = minus_one, .pitch = 4}, "`height` rows are more than");
  auto const copies = [](auto& to, auto& from, std::size_t bytes, std::string const& problem) {
    expect_refused([&] { return memcpy_node(to, from, bytes); }, "memcpy_node", problem);
  };
  static_cast<void>(memcpy_node(ints, numbers, sizeof(numbers)));
  copies(ints, numbers, 17, "`from` has 16 bytes, and the node uses 17");
  copies(ints, block, 401, "`to` has 400 bytes, and the node uses 401");
  copies(plain, shared_block, 65, "`from` has 64 bytes");
  copies(plain, plain, minus_one, "`bytes` is 18446744073709551615, which is -1 converted");
  expect_refused([&] { return alloc_node(minus_one); }, "alloc_node", "which is -1 converted");
  node const filled = build(*built).add(memset_node(ints, one_byte));
  expect_refused([&] { filled.set(memset_node(ints, {.width = 401})); }, "memset_node",
                 "the destination has 400 bytes");
}

TEST_F(KindMisuse, ASwitchOfNoBodiesIsRefused) {
  condition const tested = build(*built).make_condition(0);
  expect_refused([&] { return switch_node(tested, 0); }, "switch_node", "`bodies` is 0");
  expect_refused([&] { return switch_node(tested, static_cast<unsigned>(-1)); }, "switch_node",
                 "`bodies` is a negative number");
}

TEST_F(KindMisuse, AKindWhoseOwnersWereTakenIsNotUsedAgain) {
  constexpr char const* was_taken = "`kind` was moved from: its owners were taken";
  auto const is_used_once = [&](auto kind) {
    graph other(*worker);
    node const made = build(other).add(std::move(kind));
    graph_exec exec(other);
    // NOLINTBEGIN(bugprone-use-after-move): that is tested
    expect_refused([&] { build(other).add(std::move(kind)); }, "graph_builder_ref::add", was_taken);
    expect_refused([&] { made.set(std::move(kind)); }, "node::set", was_taken);
    expect_refused([&] { escrow::set(exec, made, std::move(kind)); }, "set", was_taken);
    auto const again = std::move(kind);
    // NOLINTEND(bugprone-use-after-move)
    static_cast<void>(again);
    EXPECT_EQ(nodes_in(other).size(), 1U);
  };
  auto const memory = [this] { return shared(make_fate()); };
  is_used_once(kernel_node(fill, {}, device_buffer<int>(16), 16U, 1));
  is_used_once(kernel_node(add, {}, memory(), 1));
  is_used_once(memset_node(memory(), one_byte));
  is_used_once(memcpy_node(memory(), memory(), 4));
  is_used_once(host_node([mine = memory()] {}));
  is_used_once(host_node(std::function<void()>([] {})));
  is_used_once(record_node(shared_event));
  is_used_once(wait_node(shared_event));
  auto plain = kernel_node(add, {}, cells.data(), 1);
  build(*built).add(std::move(plain));
  build(*built).add(std::move(plain));  // NOLINT(bugprone-use-after-move): it keeps nothing
  run(*built);
  EXPECT_EQ(cells.load(), 2);
}

/// Changes and additions that CUDA refuses: the error says why.
class RefusedByCuda : public KindMisuse {
 protected:
  static void expect_note(auto&& failing, std::vector<std::string> parts) {
    parts.push_back("tests/nodes/kind_misuse_test.cpp");
    test::expect_explained(failing, parts);
  }
};

TEST_F(RefusedByCuda, AChangeToAnotherKindNamesBoth) {
  node const called = build(*built).add(host_node([] {}));
  allocation const memory = build(*built).add(alloc_node(4));
  node const freed = memory.add(free_node(memory.address()));
  memset_config const one_int{.element_bytes = 4, .width = 1};
  auto const kind = [&] { return memset_node(device.data(), one_int); };
  std::string const both = "the node is of kind host, `kind` is of kind memset";
  expect_note([&] { called.set(kind()); },
              {"node::set", both, "destroy the node, and add another"});
  graph_exec exec(*built);
  expect_note([&] { escrow::set(exec, called, kind()); }, {"set: ", both});
  expect_note([&] { memory.set(kind()); }, {"node::set", "the node is of kind alloc"});
  expect_note([&] { freed.set(free_node(memory.address())); },
              {"node::set", "CUDA does not change a node that frees memory"});
}

TEST_F(RefusedByCuda, AFreeOfOtherMemoryAndTheRemovalOfAMemoryNodeAreExplained) {
  char const* const advice = "free each allocation once, by its address()";
  expect_note([&] { build(*built).add(free_node(device.data())); },
              {"graph_builder_ref::add", "`address` is not memory of an alloc_node", advice});
  allocation const memory = build(*built).add(alloc_node(4));
  auto const frees = [&] { memory.add(free_node(memory.address())); };
  frees();
  expect_note(frees, {"another node frees it", advice});
  expect_note([&] { memory.destroy(); },
              {"node::destroy", "CUDA removes no node from a graph with memory nodes"});
  EXPECT_EQ(nodes_in(*built).size(), 2U);
  expect_note([&] { memory.destroy(); }, {"cudaErrorNotSupported"});
}

TEST_F(RefusedByCuda, AnEdgeThatIsThereIsExplained) {
  node const first = build(*built).join();
  node const second = first.join();
  expect_note([&] { second.after(first); }, {"node::after", "the node waits for `other` already"});
}

TEST_F(RefusedByCuda, MemoryOfNoDeviceIsExplained) {
  for (alloc_config const& wrong : {alloc_config{.device = 99}, alloc_config{.peers = {99}}}) {
    expect_note([&] { build(*built).add(alloc_node(4, wrong)); },
                {"graph_builder_ref::add", "`device`, or one of `peers`, is no device"});
  }
  EXPECT_TRUE(nodes_in(*built).empty());
}

TEST_F(RefusedByCuda, ANodeThatIsYoungerThanTheExecIsSuspected) {
  add_to(*built, 0);
  graph_exec exec(*built);
  node const late = add_to(*built, 0);
  expect_note([&] { escrow::set(exec, late, kernel_node(add, {}, cells.data(), 1)); },
              {"set: ", "cudaGraphExecNodeSetParams", "the node is younger than the exec",
               "make another graph_exec"});
}

TEST_F(RefusedByCuda, AKernelWhoseShapeDoesNotFitIsExplainedAsByLaunch) {
  node const made = add_to(*built, 0);
  graph_exec exec(*built);
  std::vector<std::string> const threads{"`block` has 2048 threads, the kernel allows 1024",
                                         "block {64, 32, 1}"};
  auto const kind = [&] { return kernel_node(add, {.block = {64, 32}}, cells.data(), 1); };
  expect_note([&] { build(*built).add(kind()); }, threads);
  expect_note([&] { made.set(kind()); }, threads);
  expect_note([&] { escrow::set(exec, made, kind()); }, threads);
  expect_note([&] { build(*built).add(kernel_node(add, {.grid = {0}}, cells.data(), 1)); },
              {"graph_builder_ref::add", "`grid` has a 0: give at least 1"});
  run(exec);
  EXPECT_EQ(cells.load(), 1);
}

}  // namespace
}  // namespace escrow::test
