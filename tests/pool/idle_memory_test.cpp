// SPDX-License-Identifier: Apache-2.0
// On the simulated runtime, work that uses memory which is free in its pool ends the process.
#include <array>
#include <cstddef>
#include <cstdlib>
#include <escrow/pool/stream_allocator.hpp>
#include <set>
#include <string>
#include <utility>

#include "graph_nodes.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class IdleMemory : public pool_world {
 protected:
  static constexpr std::size_t bytes = 256;
  /// A process of its own, since this one has threads.
  IdleMemory() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  /// The process ends, with the operand, the pool and what to do.
  static void expect_refused(auto run, std::string const& call, std::string const& operand) {
    EXPECT_DEATH(run(), call + ": " + operand +
                            ": 0x.* is of the pool .*, where it is free; (enqueue the work before "
                            "its lease ends|claim in the capture; change an exec)");
  }
  [[nodiscard]] int* ended() {
    int* memory = nullptr;
    {
      auto const lease = scratch.claim<int>(one, bytes / sizeof(int));
      memory = lease.data();
    }
    return memory;
  }

  scratch_pool scratch{options(16)};
};

TEST_F(IdleMemory, IsNoArgumentOfAKernel) {
  int* const memory = ended();
  expect_refused([&] { static_cast<void>(launch_add(one, memory, 1)); }, "cudaLaunchKernel",
                 "kernel .*add.*, argument 0");
  expect_refused([&] { static_cast<void>(launch_copy(one, cells.data(), memory + 1, 2)); },
                 "cudaLaunchKernel", "kernel .*copy.*, argument 1");
}

TEST_F(IdleMemory, IsNoMemberOfAStruct) {
  pointer_pair pair{.first = cells.data(), .count = 1, .second = ended()};
  std::array<void*, 1> arguments{&pair};
  auto const launch_pair = [&] {
    return cudaLaunchKernel(kernel_address(kernel_id::struct_of_pointers), {1, 1, 1}, {1, 1, 1},
                            arguments.data(), 0, one);
  };
  expect_refused(
      [&] { static_cast<void>(launch_pair()); }, "cudaLaunchKernel",
      "kernel .*struct.*, argument 0, byte 16 .null it where the kernel does not use it.");
  pair.second = cells.data();
  must(launch_pair());
}

TEST_F(IdleMemory, MayBeWhatAPooledObjectHas) {
  struct workspace {
    device_buffer<int> buffer{64};
  };
  resource_pool<workspace> pool(options(4), [] { return workspace(); });
  int* memory = nullptr;
  {
    auto const lease = pool.claim(one.get());
    memory = lease->buffer.data();
    must(launch_add(one, memory, 1));
  }
  expect_refused([&] { static_cast<void>(launch_add(one, memory, 1)); }, "cudaLaunchKernel",
                 "kernel .*add.*, argument 0");
  auto lease = pool.claim(one.get());
  device_buffer<int> const taken = std::move(lease->buffer);
  lease.release();
  must(launch_add(one, taken.data(), 1));  // no object's any more
  sync(one);
}

// Also while a launch still runs, so that the slot is not free yet.
TEST_F(IdleMemory, IsWhatAReleasedHoistedHeld) {
  graph source = captured(
      [&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, 64).data(), 1)); });
  hoisted held = hoist(source);
  owned_exec const exec = instantiate(source.get());
  hold_up(one);
  must(cudaGraphLaunch(exec, one));
  held.release_after(stream_ref(one));
  EXPECT_DEATH(static_cast<void>(cudaGraphLaunch(exec, one)),
               "cudaGraphLaunch: kernel .*add.*, argument 0: 0x.* is of the pool \"blocks.*\", "
               "which all that held it for graphs have given up: use it before");
  flag.raise();
  sync(one);
}

TEST_F(IdleMemory, IsWhatAnExecHeldThatHasEnded) {
  int* memory = nullptr;
  {
    graph_exec exec(captured([&](cudaStream_t on) {
      auto left = scratch.claim<int>(on, 64);
      memory = left.data();
      must(launch_add(on, memory, 1));
      left.leave_to_graph();
    }));
    hold_up(one);
    exec.launch(one);
    must(launch_add(one, memory, 1));
  }
  EXPECT_DEATH(static_cast<void>(launch_add(one, memory, 1)),
               "cudaLaunchKernel: .* have given up: use it before");
  flag.raise();
  sync(one);
}

TEST_F(IdleMemory, IsNotWhatACopyHolds) {
  graph source = captured(
      [&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, 64).data(), 1)); });
  graph const copy = source.clone();
  hoisted held = hoist(source);
  owned_exec const exec = instantiate(source.get());
  held.release_after(stream_ref(one));
  must(cudaGraphLaunch(exec, one));
  sync(one);
}

TEST_F(IdleMemory, OfAnArenaIsForGraphsAlone) {
  sharing_group group;
  scratch_pool shared(with(options(16), &pool_options::group, group));
  int* memory = nullptr;
  graph_exec exec(captured([&](cudaStream_t on) {
    auto const held = shared.claim<int>(on, 64);
    memory = held.data();
    must(launch_fill(on, memory, 64, 1));
  }));
  exec.launch(one);
  sync(one);
  EXPECT_DEATH(static_cast<void>(launch_add(one, memory, 1)),
               "is of the arena of the sharing group .*, where no lease is: .* by claim_kept");
  group.run(one, [&](stream_ref on) {
    auto const held = shared.claim<int>(on, 64);
    must(launch_add(on.get(), held.data(), 1));
  });
  sync(one);
  static_cast<void>(group.park());
  EXPECT_DEATH(static_cast<void>(cudaGraphLaunch(exec.get(), one)),
               "no memory there while it is parked; unpark.. it first");
  int read = 0;
  EXPECT_DEATH(
      static_cast<void>(cudaMemcpyAsync(&read, memory, sizeof(read), cudaMemcpyDeviceToHost, one)),
      "copy, source: .* no memory there while it is parked; unpark.. it first");
  static_cast<void>(group.unpark());
}

TEST_F(IdleMemory, IsNoOperandOfACopyOrAFill) {
  int* const memory = ended();
  expect_refused([&] { static_cast<void>(cudaMemsetAsync(memory, 0, 4, one)); }, "cudaMemsetAsync",
                 "fill, destination");
  int* const from = cells.data();
  expect_refused(
      [&] { static_cast<void>(cudaMemcpyAsync(memory, from, 4, cudaMemcpyDefault, one)); },
      "cudaMemcpyAsync", "copy, destination");
  expect_refused(
      [&] { static_cast<void>(cudaMemcpyAsync(from, memory, 4, cudaMemcpyDefault, one)); },
      "cudaMemcpyAsync", "copy, source");
}

TEST_F(IdleMemory, IsNotUsedByALaunchedGraph) {
  owned_graph const of_ended = [&] {
    auto early = scratch.claim<int>(one, bytes / sizeof(int));
    return captured_plainly([&](cudaStream_t on) { must(launch_add(on, early.data(), 1)); });
  }();
  owned_exec const exec = instantiate(of_ended);
  expect_refused([&] { static_cast<void>(cudaGraphLaunch(exec, one)); }, "cudaGraphLaunch",
                 "kernel .*add.*, argument 0");
  owned_graph parent = make_graph();
  add_child(parent, of_ended);
  owned_exec const with_child = instantiate(parent);
  expect_refused([&] { static_cast<void>(cudaGraphLaunch(with_child, one)); }, "cudaGraphLaunch",
                 "kernel .*add.*, argument 0");
}

TEST_F(IdleMemory, MayBeWhatAStreamAllocatorGotBack) {
  stream_allocator memory(options(4));
  void* const freed = memory.allocate(one, bytes);
  must(cudaMemsetAsync(freed, 0, bytes, one));
  memory.deallocate(one, freed);
  expect_refused([&] { static_cast<void>(cudaMemsetAsync(freed, 0, bytes, one)); },
                 "cudaMemsetAsync", "fill, destination");
}

TEST_F(IdleMemory, IsNotClaimedAgainSoonIfReuseIsLate) {
  auto const use_late = [&] {
    std::set<int*> seen;
    for (int i = 0; i < 16; ++i) seen.insert(ended());
    must(seen.size() == 16 && seen.contains(ended()) ? cudaSuccess : cudaErrorUnknown);
    int* const memory = ended();
    auto const next = scratch.claim<int>(one, bytes / sizeof(int));
    static_cast<void>(launch_add(one, memory + 1, 1));  // where no other memory may end
  };
  ASSERT_EQ(::setenv("ESCROW_REUSE", "late", 1), 0);  // for the process of the test that ends
  expect_refused(use_late, "cudaLaunchKernel", "kernel .*add.*, argument 0");
  ::unsetenv("ESCROW_REUSE");
}

TEST_F(IdleMemory, IsNotWhatAGraphKeepsOrAnotherLeaseHas) {
  graph const keeps =
      captured([&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, 8).data(), 1)); });
  graph_exec exec(keeps);
  exec.launch(one);
  int* const memory = ended();
  auto const next = scratch.claim<int>(one, bytes / sizeof(int));
  ASSERT_EQ(next.data(), memory);
  must(launch_add(one, memory, 1));
  sync(one);
}

TEST_F(IdleMemory, IsNotWhereOneThatIsUsedEnds) {
  // Gives out pieces of one allocation, which have no gaps.
  device_block const all(4 * bytes);
  scratch_pool without_gaps({.slots_max = 4}, {.source = pieces_of(all)});
  auto first = without_gaps.claim<int>(one, bytes / sizeof(int));
  auto second = without_gaps.claim<int>(one, bytes / sizeof(int));
  int* const end = first.data() + bytes / sizeof(int);
  ASSERT_EQ(second.data(), end);
  second.release();
  must(launch_copy(one, cells.data(), end, 0));
  must(cudaMemsetAsync(end + 1, 0, 0, one));  // nothing
  expect_refused([&] { static_cast<void>(launch_copy(one, cells.data(), end + 1, 0)); },
                 "cudaLaunchKernel", "kernel .*copy.*, argument 1");
  sync(one);
}

TEST_F(IdleMemory, IsNotWhereALeaseOfAnArenaEnds) {
  sharing_group group;
  scratch_pool shared(with(options(16), &pool_options::group, group));
  for (std::size_t const count : {std::size_t{64}, (std::size_t{2} << 20) / sizeof(int)}) {
    group.run(one, [&](stream_ref on) {
      auto const held = shared.claim<int>(on, count);
      must(kernel_call(kernel_id::two_pointers, held.data(), held.data() + count).launch(on.get()));
    });
  }
  sync(one);
}

TEST_F(IdleMemory, IsNotWhatPooledObjectsOnlyPointTo) {
  struct engine {
    int const* table;
    device_buffer<int> own{64};
  };
  std::optional<device_buffer<int>> table;  // of all objects, made with the first
  resource_pool<engine> engines(options(4), [&table] {
    if (!table) table.emplace(64);
    return engine{.table = table->data()};
  });
  struct page {
    int* at;
    [[nodiscard]] int* data() const { return at; }
    [[nodiscard]] static std::size_t bytes() { return 64 * sizeof(int); }
  };
  device_ints cache{128};
  std::size_t pages = 0;
  resource_pool<page> of_cache(options(2), [&] { return page{cache.data() + 64 * pages++}; });
  {
    auto const engine_lease = engines.claim(one.get());
    auto const page_lease = of_cache.claim(one.get());
  }
  must(launch_add(one, table->data(), 1));
  must(launch_add(one, cache.data(), 1));
  sync(one);
}

}  // namespace
}  // namespace escrow::test
