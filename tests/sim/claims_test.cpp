// SPDX-License-Identifier: Apache-2.0
// What the simulator knows of leases with ESCROW_MEMORY=apart: from their claim on, and to their
// end.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <escrow/nodes/launch.hpp>
#include <escrow/sim.hpp>

#include "deep.hpp"
#include "graph_nodes.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked = ::setenv("ESCROW_MEMORY", "apart", 1);  // before main()

void fill_each_on_host(int* const* all, std::size_t count, int value) {
  for (std::size_t i = 0; i < count; ++i) all[i][0] = value;
}
auto* const fill_each = sim::register_kernel<&fill_each_on_host>("fill_each");
void add_on_host(int* to, int what) {
  *to += what;
}
auto* const add = sim::register_kernel<&add_on_host>("add");
void set_on_host(int* to, int value) {
  *to = value;
}
auto* const set_to = sim::register_kernel<&set_on_host>("set");
void raise_on_host(int* to) {
  std::atomic_ref<int>(*to).store(1);
}
auto* const raise_flag = sim::register_kernel<&raise_on_host>("raise");
void take_on_host(int const* /*from*/) {}
auto* const take = sim::register_kernel<&take_on_host>("take");

void await_on_host(int const volatile* /*from*/) {}
auto* const await = sim::register_kernel<&await_on_host>("await");

class MemoryOfLeases : public pool_world {
 protected:
  static constexpr std::size_t count = 64;
  // A process of its own, since this one has threads.
  MemoryOfLeases() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // A kernel that gets to scratch by pointers in memory, as batched ones do, writes it first.
  void run_batch(cudaStream_t on, int value) {
    auto each = scratch.claim<int>(on, count);
    auto table = staging.claim<int*>(on, 1);
    table.data()[0] = each.data();
    launch(on, fill_each, {}, table, std::size_t{1}, value);
    launch(on, add, {}, each, 1);
    launch(on, add, {}, each, 1);
    must(launch_copy(on, cells.data(), each.data(), 1));
  }

  scratch_pool scratch{options(16)};
  scratch_pool staging{options(16), {.source = memory_source::pinned_host()}};
};

TEST_F(MemoryOfLeases, IsNewForTheNextWorkOnTheStream) {
  for (int i = 1; i <= 40; ++i) {  // also where the block is used again
    run_batch(one, i);
    sync(one);
    EXPECT_EQ(*cells.data(), i + 2);
  }
  for (int i = 1; i <= 4; ++i) run_batch(one, i);
  sync(one);
  EXPECT_EQ(*cells.data(), 6);
  auto const reads_first = [&] {
    auto lease = scratch.claim<int>(one, count);
    must(launch_add(one, cells.data(), 1));  // not in it
    launch(one, add, {}, lease, 1);
    sync(one);
  };
  EXPECT_DEATH(reads_first(), "kernel .add. reads scratch of .* that nothing has written since");
}

TEST_F(MemoryOfLeases, IsNewForTheNextWorkInARun) {
  sharing_group group;
  scratch_pool shared(with(options(4), &pool_options::group, group));
  for (int i = 1; i <= 3; ++i) {
    group.run(one, [&](stream_ref on) {
      auto each = shared.claim<int>(on, count);
      auto table = staging.claim<int*>(on, 1);
      table.data()[0] = each.data();
      launch(on, fill_each, {}, table, std::size_t{1}, i);
      launch(on, add, {}, each, 1);
      must(launch_copy(on.get(), cells.data(), each.data(), 1));
    });
  }
  sync(one);
  EXPECT_EQ(*cells.data(), 4);
}

// Objects of a pool without `recycle` keep what earlier leases have left.
class KeptContents : public MemoryOfLeases {
 protected:
  struct bins {
    device_buffer<int> count{64};
    device_buffer<int> copy{64};
  };
  using bins_pool = resource_pool<bins>;

  // What the simulator says while three leases count, each first cleared if that is asked.
  std::string said_of(bins_pool& pool, bool are_cleared) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) {
      auto const its = pool.claim(one);
      if (i == 0 || are_cleared) must(cudaMemsetAsync(its->count.data(), 0, 256, one));
      if (are_cleared)
        must(cudaMemcpyAsync(its->copy.data(), its->count.data(), 256, cudaMemcpyDefault, one));
      if (are_cleared) launch(one, add, {}, its->copy, 1);
      launch(one, add, {}, its->count, 1);
    }
    sync(one);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(KeptContents, AreToldOnceIfAKernelReadsThemFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const in_a_process_of_its_own = [this] {
    bins_pool cleared({.label = "cleared"}, [] { return bins(); });
    bins_pool meant(
        {.label = "meant"}, [] { return bins(); }, [](bins&, stream_ref) {});
    bins_pool dirty({.label = "dirty"}, [] { return bins(); });
    EXPECT_EQ(said_of(cleared, true), "");
    EXPECT_EQ(said_of(meant, false), "");
    EXPECT_NE(said_of(dirty, false)
                  .find("kernel \"add\" reads what an earlier lease of \"dirty\" has "
                        "left at 0x"),
              std::string::npos);
    EXPECT_EQ(said_of(dirty, false), "") << "told once";
    std::exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_a_process_of_its_own(), testing::ExitedWithCode(0), "");
}

// A table of addresses outlives a lease. The next claim gets other memory.
TEST_F(MemoryOfLeases, IsClosedToWorkThatComesBehindTheEnd) {
  auto table = staging.claim<int*>(one, 1);
  {
    auto const lease = scratch.claim<int>(one, count);
    table.data()[0] = lease.data();
    launch(one, fill_each, {}, table, std::size_t{1}, 1);
  }
  sync(one);
  auto const expect_told = [&] {
    EXPECT_DEATH(
        {
          launch(one, fill_each, {}, table, std::size_t{1}, 2);
          sync(one);
        },
        "kernel .fill_each. writes memory of .blocks of 256 bytes. at 0x.* that is free there: ");
    graph_exec exec(
        captured([&](cudaStream_t on) { launch(on, fill_each, {}, table, std::size_t{1}, 2); }));
    EXPECT_DEATH(
        {
          exec.launch(one);
          sync(one);
        },
        "kernel .fill_each. writes memory of .blocks of 256 bytes. at 0x.* that is free there: ");
  };
  expect_told();
  auto const next = scratch.claim<int>(one, count);  // of another block
  expect_told();
}

// Also to a body that a graph begins to run later.
TEST_F(MemoryOfLeases, StaysOpenToWorkOfBeforeTheEnd) {
  auto table = staging.claim<int*>(one, 1);
  owned_graph const graph = make_graph();
  auto const body =
      add_conditional_node(graph, make_condition(graph, 1), cudaGraphCondTypeIf).bodies[0];
  must(cudaStreamBeginCaptureToGraph(two, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
  launch(two, fill_each, {}, table.data(), std::size_t{1}, 3);
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(two, &ended));
  owned_exec const exec = instantiate(graph);
  hold_up(one);
  {
    auto const lease = scratch.claim<int>(one, count);
    table.data()[0] = lease.data();
    must(cudaGraphLaunch(exec, one));
    must(launch_copy(one, cells.data(), lease.data(), 1));
  }
  auto other = scratch.claim<int>(two, count);
  launch(two, set_to, {}, other, 5);  // it begins first
  sync(two);
  flag.raise();
  sync(one);
  EXPECT_EQ(*cells.data(), 3);
}

// What waits for an event of the claiming stream may write it before that stream works on.
TEST_F(MemoryOfLeases, StaysAsAnotherStreamWritesItBehindAnEvent) {
  run_batch(one, 1);  // the block has contents
  sync(one);
  auto lease = scratch.claim<int>(one, count);
  auto table = staging.claim<int*>(one, 1);
  table.data()[0] = lease.data();
  event claimed;
  claimed.ref().record(one);
  claimed.ref().wait(two);
  lease.record_stream(two);
  table.record_stream(two);
  launch(two, fill_each, {}, table, std::size_t{1}, 5);
  event filled;
  filled.ref().record(two);
  filled.ref().wait(one);
  must(launch_add(one, cells.data(), 0));
  must(launch_copy(one, cells.data(), lease.data(), 1));
  sync(one);
  EXPECT_EQ(*cells.data(), 5);
}

TEST_F(MemoryOfLeases, IsNewForWhatWaitsForAnEventBehindTheClaim) {
  run_batch(one, 1);
  sync(one);
  auto const reads_on_two = [&] {
    auto lease = scratch.claim<int>(one, count);
    event claimed;
    claimed.ref().record(one);
    claimed.ref().wait(two);
    lease.record_stream(two);
    launch(two, add, {}, lease, 1);
    sync(two);
  };
  EXPECT_DEATH(reads_on_two(), "kernel .add. reads scratch of .* that nothing has written since");
}

// The claiming stream has no work between.
TEST_F(MemoryOfLeases, StaysAsAnotherStreamThatItIsToldOfWritesIt) {
  run_batch(one, 1);
  sync(one);
  auto lease = scratch.claim<int>(one, count);
  auto table = staging.claim<int*>(two, 1);
  table.data()[0] = lease.data();
  lease.record_stream(two);
  launch(two, fill_each, {}, table, std::size_t{1}, 5);
  sync(two);
  must(launch_add(one, cells.data(), 0));
  sync(one);
  int read = 0;
  must(cudaMemcpy(&read, lease.data(), sizeof(read), cudaMemcpyDeviceToHost));
  EXPECT_EQ(read, 5);
}

TEST_F(MemoryOfLeases, ThatIsPinnedIsNotTheHostsBehindTheirEnd) {
  int volatile* memory = nullptr;
  {
    auto const lease = staging.claim<int>(one, count);
    memory = lease.data();
    *memory = 1;
    must(cudaMemcpyAsync(cells.data(), lease.data(), sizeof(int), cudaMemcpyDefault, one));
  }
  sync(one);
  auto constexpr text =
      "the host uses pinned memory at 0x.* that is free in its pool: .* keep the lease";
  EXPECT_DEATH(*memory = 2, text);
  EXPECT_DEATH(static_cast<void>(*memory), text);
  for (int i = 0; i < 20; ++i) {  // not the next one gets it, but a later one does
    auto const again = staging.claim<int>(one, count);
    EXPECT_NE(i == 0 ? again.data() : nullptr, memory);
    *again.data() = i;
    must(cudaMemcpyAsync(cells.data(), again.data(), sizeof(int), cudaMemcpyDefault, one));
    sync(one);
    EXPECT_EQ(*cells.data(), i);
  }
}

TEST_F(MemoryOfLeases, ThatIsPinnedIsAnyonesOnceItIsFreed) {
  void* before = nullptr;
  {
    scratch_pool ends(options(1), {.source = memory_source::pinned_host()});
    before = ends.claim<int>(one, count).data();
    ASSERT_TRUE(ends.close_for(generous).empty());
  }
  EXPECT_TRUE(deleter::global().drain_for(generous));
  bool is_again = is_sanitized;
  for (int i = 0; i < 2000; ++i) {  // the simulator keeps an address for a while
    void* memory = nullptr;
    must(cudaMallocHost(&memory, count * sizeof(int)));
    is_again |= memory == before;
    auto* const values = static_cast<int*>(memory);
    *values = i;
    must(cudaMemcpyAsync(cells.data(), values, sizeof(int), cudaMemcpyDefault, one));
    sync(one);
    EXPECT_EQ(*values, i);
    must(cudaFreeHost(memory));
  }
  EXPECT_TRUE(is_again);
}

// The copies of a graph read what its host writes before each launch.
TEST_F(MemoryOfLeases, ThatIsPinnedIsTheHostsWhileAGraphHasIt) {
  int* memory = nullptr;
  graph_exec exec(captured([&](cudaStream_t on) {
    auto const lease = staging.claim<int>(on, count);
    memory = lease.data();
    must(cudaMemcpyAsync(cells.data(), memory, sizeof(int), cudaMemcpyDefault, on));
  }));
  for (int i = 1; i <= 3; ++i) {
    *memory = i;
    exec.launch(one);
    sync(one);
    EXPECT_EQ(*cells.data(), i);
  }
}

TEST_F(MemoryOfLeases, ThatIsPinnedIsNotTheHostsBesideAKernelThatIsGivenIt) {
  auto lease = staging.claim<int>(one, count);
  int volatile* const memory = lease.data();
  auto const expect_told = [&](char const* text) { EXPECT_DEATH(memory[count - 1] = 2, text); };
  *memory = 1;
  hold_up(one);
  launch(one, take, {}, lease);
  EXPECT_EQ(*memory, 1);
  expect_told("the host writes pinned memory at 0x.* that a kernel, .* has yet to read: wait");
  launch(one, add, {}, lease, 1);
  expect_told("the host uses pinned memory at 0x.* that a kernel, .* has yet to write: wait");
  flag.raise();
  sync(one);
  EXPECT_EQ(*memory, 2);
  graph_exec exec(captured([&](cudaStream_t on) { launch(on, add, {}, lease, 1); }));
  flag.lower();
  hold_up(one);
  exec.launch(one);
  expect_told("the host uses pinned memory at 0x.* that a kernel, .* has yet to write: wait");
  flag.raise();
  sync(one);
  EXPECT_EQ(*memory, 3);
}

// It reads the first value, at least, behind a pointer to const, in a graph, too.
TEST_F(MemoryOfLeases, ThatIsPinnedIsNotTheHostsToWriteBesideAKernelThatReadsIt) {
  device_buffer<int> const token(count, memory_source::pinned_host());
  int volatile* const memory = token.data();
  *memory = 1;
  hold_up(one);
  launch(one, take, {}, token.data());
  auto const expect_told = [&] {
    EXPECT_DEATH(*memory = 2, "the host writes pinned memory at 0x.* a kernel, .* has yet to read");
  };
  expect_told();
  memory[1] = *memory;  // how far it goes is not known
  flag.raise();
  sync(one);
  *memory = 3;
  graph_exec exec(captured([&](cudaStream_t on) { launch(on, take, {}, token.data()); }));
  flag.lower();
  hold_up(one);
  exec.launch(one);
  expect_told();
  flag.raise();
  sync(one);
  flag.lower();
  hold_up(one);
  launch(one, await, {}, token.data());
  *memory = 4;  // others may write what is volatile
  flag.raise();
  sync(one);
}

TEST_F(MemoryOfLeases, ThatIsPinnedMayBeAFlag) {
  sim::let_work_share(true);
  auto lease = staging.claim<int>(one, count);
  std::atomic_ref<int> const raised(*lease.data());
  raised = 0;
  hold_up(one);
  launch(one, raise_flag, {}, lease);
  EXPECT_EQ(raised, 0);
  flag.raise();
  EXPECT_TRUE(wait_until([&] { return raised == 1; }));
  sync(one);
  sim::let_work_share(false);
}

// Who gets a part of it at an address knows where that ends.
TEST_F(MemoryOfLeases, ThatIsPinnedIsTheHostsBesideAKernelThatGetsAnAddress) {
  auto const lease = staging.claim<int>(one, count);
  hold_up(one);
  launch(one, add, {}, lease.data(), 1);
  lease.data()[1] = 1;
  flag.raise();
  sync(one);
  EXPECT_EQ(lease.data()[1], 1);
}

}  // namespace
}  // namespace escrow::test
