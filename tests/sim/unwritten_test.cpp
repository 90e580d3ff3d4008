// SPDX-License-Identifier: Apache-2.0
// With ESCROW_MEMORY=apart memory that no work has written has no contents.
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "deep.hpp"
#include "graph_nodes.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked =
    ::setenv("ESCROW_MEMORY", "apart", 1) + ::setenv("ESCROW_REUSE", "soon", 1);  // before main()

class MemoryUnwritten : public pool_world {
 protected:
  // A process of its own, since this one has threads.
  MemoryUnwritten() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  scratch_pool scratch{options(16)};
};

// State that is kept in scratch shows, as on a GPU where another claim had it meanwhile.
TEST_F(MemoryUnwritten, OfAClaimIsNewForItsFirstWork) {
  constexpr std::size_t count = 64;
  std::array<int, count> read{};
  auto const last_of = [&](auto const& lease) {
    must(cudaMemcpyAsync(read.data(), lease.data(), sizeof(read), cudaMemcpyDeviceToHost, one));
    sync(one);
    return read.back();
  };
  int* memory = nullptr;
  {
    auto const lease = scratch.claim<int>(one, count);
    memory = lease.data();
    must(launch_fill(one, memory, count, 7));
    EXPECT_EQ(last_of(lease), 7);  // for the first work alone
  }
  {
    auto const lease = scratch.claim<int>(one, count);
    EXPECT_EQ(lease.data(), memory);
    must(launch_fill(one, memory, 1, 7));
    EXPECT_EQ(last_of(lease), -1);
  }
  auto kept = scratch.claim<int>(one, count);  // a graph holds this one
  graph_exec exec(captured([&](cudaStream_t on) {
    kept.record_stream(on);
    must(launch_fill(on, kept.data(), count, 7));
  }));
  exec.launch(one);
  EXPECT_EQ(last_of(kept), 7);
}

TEST_F(MemoryUnwritten, ToldIfScratchIsReadBeforeItIsWritten) {
  auto out = scratch.claim<int>(two, 4096);
  auto const expect_told = [&](auto const& work) {
    for (std::size_t const count : {std::size_t{1}, std::size_t{4096}}) {
      EXPECT_DEATH(
          {
            auto const lease = scratch.claim<int>(one, count);
            work(lease);
            sync(one);
          },
          "reads scratch of .blocks of (256|16384) bytes. at 0x.* that nothing has written since "
          "its claim");
    }
  };
  auto const copied = [&](auto const& lease) {
    must(cudaMemcpyAsync(out.data(), lease.data(), 4, cudaMemcpyDeviceToDevice, one));
  };
  auto const added = [&](auto const& lease) {
    must(launch_copy(one, out.data(), lease.data(), 1));
  };
  out.record_stream(one);
  expect_told(copied);
  expect_told(added);
  for (int i = 0; i < 3; ++i) {  // also if earlier work has written there
    auto const lease = scratch.claim<int>(one, 4096);
    must(launch_fill(one, lease.data(), 4096, i));
    copied(lease);
    added(lease);
  }
  expect_told(added);
}

TEST_F(MemoryUnwritten, TakesScratchThatIsWrittenInPart) {
  constexpr std::size_t count = 1 << 16;
  std::vector<int> read(count);
  auto const lease = scratch.claim<int>(one, count);
  must(launch_fill(one, lease.data(), 2048, 7));
  must(
      cudaMemcpyAsync(read.data(), lease.data(), count * sizeof(int), cudaMemcpyDeviceToHost, one));
  sync(one);
  EXPECT_EQ(read.front(), 7);
  EXPECT_EQ(read.back(), -1);
}

TEST_F(MemoryUnwritten, TakesScratchOfALeaseThatALaunchHasWritten) {
  constexpr std::size_t count = 4096;
  auto const lease = scratch.claim<int>(one, count);
  test::capture open{one, cudaStreamCaptureModeThreadLocal};
  must(launch_fill(one, lease.data(), count, 7));
  must(open.end());
  owned_exec const exec = instantiate(open.graph());
  must(cudaGraphLaunch(exec, one));
  int read = 0;
  must(cudaMemcpyAsync(&read, lease.data(), sizeof(read), cudaMemcpyDeviceToHost, one));
  sync(one);
  EXPECT_EQ(read, 7);
}

// What a launch finds in the arena of its group is what another one has left.
TEST_F(MemoryUnwritten, ToldIfALaunchReadsScratchThatItHasNotWritten) {
  constexpr std::size_t count = 4096;
  constexpr auto text =
      "kernel .*add.* reads scratch of .batches. at 0x.* that nothing has written since its claim";
  sharing_group group({.label = "batches"});
  scratch_pool grouped(with(options(4), &pool_options::group, group));
  auto const filling = [&](cudaStream_t on, int value) {
    auto const lease = grouped.claim<int>(on, count);
    if (value != 0) must(launch_fill(on, lease.data(), count, value));
    must(launch_add(on, lease.data(), 1));
  };
  graph_exec fills(captured([&](cudaStream_t on) { filling(on, 7); }));
  graph_exec adds(captured([&](cudaStream_t on) { filling(on, 0); }));
  for (int i = 0; i < 3; ++i) {
    fills.launch(one);
    group.run(two, [&](stream_ref on) { filling(on.get(), i + 1); });
    must(cudaStreamSynchronize(two));
  }
  auto const launched = [&] {
    adds.launch(one);
    sync(one);
  };
  EXPECT_DEATH(launched(), text);
  auto const ran = [&] {
    group.run(one, [&](stream_ref on) { filling(on.get(), 0); });
    sync(one);
  };
  EXPECT_DEATH(ran(), text);
}

// Without a group only this graph has the memory, and each claim in its capture in turn.
TEST_F(MemoryUnwritten, ToldIfALaunchReadsScratchOfItsOwnThatItHasNotWritten) {
  constexpr std::size_t count = 4096;
  auto const filled = [&](cudaStream_t on) {
    auto lease = scratch.claim<int>(on, count);
    must(launch_fill(on, lease.data(), count, 7));
    return lease;
  };
  filled(one).release();
  sync(one);
  graph_exec fills(captured([&](cudaStream_t on) {
    auto const lease = filled(on);
    must(launch_add(on, lease.data(), 1));
  }));
  graph_exec keeps(captured([&](cudaStream_t on) {
    auto left = filled(on);
    auto const lease = scratch.claim<int>(on, count);
    must(launch_copy(on, lease.data(), left.data(), count));
    left.leave_to_graph();
  }));
  for (int i = 0; i < 3; ++i) {
    fills.launch(one);
    keeps.launch(one);
  }
  sync(one);
  filled(one).release();
  sync(one);
  auto const launched = [&] {
    graph_exec adds(captured(
        [&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, count).data(), 1)); }));
    adds.launch(one);
    sync(one);
  };
  EXPECT_DEATH(launched(), "kernel .*add.* reads scratch of .* that nothing has written since");
}

// The graph has it for more than one launch.
TEST_F(MemoryUnwritten, TakesWhatALaunchLeavesInMemoryThatIsLeftToIt) {
  constexpr std::size_t count = 4096;
  auto early = scratch.claim<int>(one, count);
  must(launch_fill(one, early.data(), count, 7));
  early.release();
  sync(one);
  int* kept = nullptr;
  graph_exec adds(captured([&](cudaStream_t on) {
    auto left = scratch.claim<int>(on, count);
    kept = left.data();
    left.leave_to_graph();
    must(launch_add(on, kept, 1));
    must(launch_copy(on, cells.data(), kept, 1));
  }));
  must(launch_fill(one, kept, count, 0));
  for (int i = 0; i < 3; ++i) adds.launch(one);
  sync(one);
  EXPECT_EQ(*cells.data(), 3);
}

// As a counter that each launch sets back.
TEST_F(MemoryUnwritten, TakesWhatAnObjectOfAPoolHas) {
  resource_pool<device_buffer<int>> counters(options(2), [this] {
    device_buffer<int> made(1024);
    must(cudaMemsetAsync(made.data(), 0, made.bytes(), two));
    sync(two);
    return made;
  });
  graph_exec adds(captured([&](cudaStream_t on) {
    auto const each = counters.claim(on);
    must(launch_add(on, each->data(), 1));
    must(launch_copy(on, cells.data(), each->data(), 1));
  }));
  for (int i = 0; i < 3; ++i) adds.launch(one);
  sync(one);
  EXPECT_EQ(*cells.data(), 3);
}

TEST_F(MemoryUnwritten, TakesWhatALaunchLeavesInAKeptLease) {
  constexpr std::size_t count = 4096;
  sharing_group group;
  scratch_pool grouped(with(options(4), &pool_options::group, group));
  std::optional<buffer_lease<int>> kept;
  graph_exec writes(captured([&](cudaStream_t on) {
    kept.emplace(grouped.claim_kept<int>(on, count));
    auto const lease = grouped.claim<int>(on, count);
    must(launch_fill(on, lease.data(), count, 7));
    must(launch_copy(on, kept->data(), lease.data(), count));
  }));
  graph_exec reads(captured([&](cudaStream_t on) {
    auto const lease = grouped.claim<int>(on, count);
    kept->record_stream(on);
    must(launch_copy(on, lease.data(), kept->data(), count));
    must(launch_add(on, lease.data(), 1));
    must(launch_copy(on, cells.data(), lease.data(), 1));
  }));
  for (int i = 0; i < 3; ++i) {
    writes.launch(one);
    reads.launch(one);
  }
  sync(one);
  EXPECT_EQ(*cells.data(), 8);
}

void ignore_on_host(std::uintptr_t /*address*/) {}
auto* const ignores = sim::register_kernel<&ignore_on_host>("ignores");

// Parking copies what it knows nothing of.
TEST_F(MemoryUnwritten, IsCopiedByWhoParksIt) {
  sharing_group group;
  scratch_pool grouped(with(options(4), &pool_options::group, group));
  graph_exec exec(captured([&](cudaStream_t on) {
    auto const lease = grouped.claim<int>(on, 4096);
    auto address = reinterpret_cast<std::uintptr_t>(lease.data());
    void* argument = &address;
    must(cudaLaunchKernel(reinterpret_cast<void const*>(ignores), {1}, {1}, &argument, 0, on));
  }));
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(group.park({.keep_contents = true}));
    static_cast<void>(group.unpark());
    exec.launch(one);
  }
  sync(one);
}

TEST_F(MemoryUnwritten, IsNotZeroAsItIsMade) {
  for (std::size_t const count : {std::size_t{64}, std::size_t{512}}) {  // less than a page
    auto const lease = scratch.claim<int>(one, count);
    must(launch_fill(one, lease.data() + 1, 1, 7));
    int read = 0;
    must(cudaMemcpyAsync(&read, lease.data(), sizeof(read), cudaMemcpyDeviceToHost, one));
    sync(one);
    EXPECT_EQ(read, -1);
  }
}

TEST_F(MemoryUnwritten, IsNotResetWhileInUse) {
  static_cast<void>(scratch.claim<int>(one, 64));
  EXPECT_DEATH(sim::reset(), "reset.. after Escrow was used.*call it once, before that");
}

TEST_F(MemoryUnwritten, ToldIfAKernelReadsNewMemory) {
  constexpr std::size_t count = 4096;
  void* memory = nullptr;
  must(cudaMalloc(&memory, count * sizeof(int)));
  auto* const ints = static_cast<int*>(memory);
  EXPECT_DEATH(
      {
        must(launch_add(one, ints + 1024, 1));
        sync(one);
      },
      "kernel .*add.* reads memory at 0x.* that nothing has written since it was allocated");
  must(launch_fill(one, ints, 2048, 1));
  must(launch_add(one, ints + 1024, 1));
  std::vector<int> all(count);  // of which a part is written
  must(cudaMemcpyAsync(all.data(), memory, count * sizeof(int), cudaMemcpyDeviceToHost, one));
  sync(one);
  EXPECT_EQ(all[1024], 2);
  EXPECT_EQ(all[2048], -1);
  must(cudaFree(memory));
}

}  // namespace
}  // namespace escrow::test
