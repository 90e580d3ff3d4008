// SPDX-License-Identifier: Apache-2.0
// Pools and streams of two devices under one deleter, and graphs that span both, with the other
// device current at every step. Skips where there is one device. The long run uses both at once.
#include <escrow/nodes.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class AcrossDevices : public world_of_two_devices {
 protected:
  static constexpr std::array devices{0, 1};

  void SetUp() override {
    world_of_two_devices::SetUp();
    if (IsSkipped()) return;
    for (int const device : devices) pools[device].emplace(make_pool(options_of(device)));
  }
  void TearDown() override {
    flag.raise();
    if (elsewhere) sync(elsewhere);
    for (int const device : devices) {
      device_scope const there(elsewhere ? 1 - device : 0);
      pools[device].reset();
    }
    world_of_two_devices::TearDown();
  }

  [[nodiscard]] block_pool& pool_of(int device) { return *pools[device]; }
  [[nodiscard]] cudaStream_t stream_of(int device) { return device == 0 ? one : elsewhere; }
  [[nodiscard]] pool_options options_of(int device) {
    return with(options(4), &pool_options::device, device);
  }
  /// Makes `after` wait for `before`, which is of `device`, as an event has to be.
  void order_from(int device, cudaStream_t before, cudaStream_t after) {
    device_scope const there(device);
    order(before, after);
  }
  /// Kernels are launched with their stream's device current, as CUDA demands.
  void work(int device, block_lease& held, int value) {
    device_scope const there(device);
    fill(held, stream_of(device), value);
    check(held, stream_of(device), value, mismatches);
  }
  void hold_up_other() {
    device_scope const there(1);
    hold_up(stream_of(1));
  }
  /// One capture, begun on device 0, that claims and works on both and ends joined.
  [[nodiscard]] graph captured_on_both() {
    return captured([this](cudaStream_t) {
      block_lease here = pool_of(0).claim(stream_of(0));
      work(0, here, 1);
      order_from(0, stream_of(0), stream_of(1));
      block_lease there = pool_of(1).claim(stream_of(1));
      work(1, there, 2);
      work(0, here, 3);
      there.release();
      order_from(1, stream_of(1), stream_of(0));
    });
  }
  [[nodiscard]] std::size_t in_graphs(int device) { return pool_of(device).stats().in_graphs; }
  [[nodiscard]] bool is_kept_by_graphs(std::size_t slots = 1) {
    return stays_false([&] { return in_graphs(1) < slots; });
  }
  [[nodiscard]] bool is_nothing_in_graphs() {
    for (int const device : devices) sync(stream_of(device));
    return wait_until([this] { return in_graphs(0) + in_graphs(1) == 0 && drained(); });
  }

  kernel const fills{kernel_address(kernel_id::fill)};
  kernel const adds{kernel_address(kernel_id::add)};
  std::optional<block_pool> pools[2];
};

TEST_F(AcrossDevices, ACaptureOnAStreamWithTheHandleOfAnEarlierOneIsOfItsOwnDevice) {
  std::optional<graph> both{std::in_place};
  cudaStream_t earlier = nullptr;
  {
    owned_stream const here = make_stream_of(0);
    earlier = here.get();
    capture_to_graph(earlier, both->get(), [&] { pool_of(0).claim(earlier).release(); });
  }
  std::vector<owned_stream> others;  // they keep what is not the handle
  for (int i = 0; i < 1'000 && (others.empty() || others.back().get() != earlier); ++i) {
    others.push_back(make_stream_of(1));
  }
  cudaStream_t const later = others.back().get();
  if (later != earlier) GTEST_SKIP() << "CUDA gave the handle to no other stream";
  fate_ptr const fate = make_fate();
  capture_to_graph(later, both->get(), [&] {
    pool_of(1).claim(later).release();
    worker->retire(later, probe(fate));
  });
  EXPECT_EQ(pool_of(1).stats().in_graphs, 1U);
  both.reset();
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->device, 1);
}

TEST_F(AcrossDevices, AllOwnersAndResourcesOfOneDeleterEndOnTheirOwnDevice) {
  for (int const device : devices) {
    auto const retired = make_fate();
    auto const without_work = make_fate();
    auto const in_capture = make_fate();
    auto const pooled = make_fate();
    auto const of_node = make_fate();
    auto const of_graph = make_fate();
    {
      device_scope const there(device);
      graph built(*worker);
      build(built).add(host_node([kept = std::make_shared<probe>(of_node)] {}));
      worker->retire(built.get(), probe(of_graph));
      worker->retire(probe(without_work));
      must(cudaSetDevice(1 - device));
      retire(stream_of(device), retired);
      EXPECT_EQ(current_device(), 1 - device);
      {
        test::capture captured{stream_of(device), cudaStreamCaptureModeGlobal};
        retire(stream_of(device), in_capture);
        must(captured.end());
      }
      resource_pool<probe> pool{options_of(device), [&] { return probe(pooled); }};
      pool.claim(stream_of(device)).release();
      graph_exec exec{built};
      exec.launch(stream_of(0));
    }
    sync(stream_of(0));
    for (auto const& fate : {retired, without_work, in_capture, pooled, of_node, of_graph}) {
      ASSERT_TRUE(fate->wait());
      EXPECT_EQ(fate->device, device);
    }
  }
}

TEST_F(AcrossDevices, RetireAfterWaitsForAnEventOfTheOtherDevice) {
  auto const fate = make_fate();
  owned_event ready;
  hold_up_other();
  {
    device_scope const there(1);
    ready = make_event();
    must(cudaEventRecord(ready, stream_of(1)));
  }
  worker->retire_after(ready.get(), probe(fate));
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(fate->device, 0);
  EXPECT_TRUE(drained());
}

// The text says which call, what, and what to do.
TEST_F(AcrossDevices, AStreamOfTheWrongOneIsRefusedAlsoInACaptureThatSpansBoth) {
  block_lease held = pool_of(0).claim(stream_of(0));
  scratch_pool scratch{options_of(0)};
  auto const expect_refused = [&](block_lease& lease) {
    cudaStream_t const wrong = stream_of(1);
    char const* const what = "`stream` is of device 1";
    char const* const advice = "use a pool of the stream's device";
    expect_error<usage_error>([&] { pool_of(0).claim(wrong).release(); },
                              {"resource_pool::claim", what, "\"blocks\"", advice});
    expect_error<usage_error>([&] { return pool_of(0).try_claim(wrong); },
                              {"resource_pool::try_claim", what, "\"blocks\"", advice});
    expect_error<usage_error>([&] { scratch.claim(wrong, 64).release(); },
                              {"scratch_pool::claim", what, "\"blocks", advice});
    expect_error<usage_error>(
        [&] { lease.release(wrong); },
        {"lease::release", what, "\"blocks\"", "release on a stream of the pool's device"});
    EXPECT_TRUE(lease);
  };
  expect_refused(held);
  held.record_stream(stream_of(1));  // which is what to say instead
  held.release();
  EXPECT_EQ(made(), 1);
  capture captured{stream_of(0), cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream_of(0)));
  order_from(0, stream_of(0), stream_of(1));
  block_lease in_capture = pool_of(0).claim(stream_of(0));
  expect_refused(in_capture);
  EXPECT_TRUE(captured.is_active());
  in_capture.release();
  order_from(1, stream_of(1), stream_of(0));
  EXPECT_EQ(captured.end(), cudaSuccess);
}

// The handle names another stream on each device, of which only this one's captures.
TEST_F(AcrossDevices, TheThreadsOwnStreamInACaptureIsOfTheDeviceThatIsCurrent) {
  device_scope const there(1);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeThreadLocal};
  expect_error<usage_error>([&] { return pool_of(0).claim(cudaStreamPerThread); },
                            {"resource_pool::claim", "`stream` is of device 1"});
  EXPECT_NO_THROW(pool_of(1).claim(cudaStreamPerThread).release());
  EXPECT_EQ(captured.end(), cudaSuccess);
  EXPECT_EQ(pool_of(0).stats().slots, 0U);
}

TEST_F(AcrossDevices, ACaptureThatSpansBothHoldsSlotsOfBothUntilItsGraphAndExecsAreDestroyed) {
  std::optional<graph> made = captured_on_both();
  EXPECT_TRUE(in_graphs(0) == 1 && in_graphs(1) == 1);
  std::optional<graph_exec> exec{*made};
  EXPECT_TRUE(exec->is_bare());
  for (int const device : {0, 1, 1, 0}) {
    device_scope const there(1 - device);
    exec->launch(stream_of(device));
  }
  {
    device_scope const there(1);
    made.reset();
    exec.reset();  // in flight, as below
  }
  EXPECT_TRUE(is_nothing_in_graphs());
  owned_exec plain = instantiate(owned_graph(captured_on_both().detach()));
  for (int const device : devices) must(cudaGraphLaunch(plain, stream_of(device)));
  EXPECT_TRUE(is_kept_by_graphs());
  {
    device_scope const there(1);
    plain.reset();
  }
  EXPECT_TRUE(is_nothing_in_graphs());
}

TEST_F(AcrossDevices, ASlotThatTheOtherDevicesBranchUsesServesAgainAfterTheJoin) {
  graph const made = captured([this](cudaStream_t) {
    block_lease held = pool_of(0).claim(stream_of(0));
    int const first = held->number();
    work(0, held, 1);
    order_from(0, stream_of(0), stream_of(1));
    held.record_stream(stream_of(1));
    {
      device_scope const there(1);
      must(launch_tiny(stream_of(1)));
    }
    held.release();
    EXPECT_NE(pool_of(0).claim(stream_of(0))->number(), first);  // not joined yet
    order_from(1, stream_of(1), stream_of(0));
    block_lease const a = pool_of(0).claim(stream_of(0));
    block_lease const b = pool_of(0).claim(stream_of(0));
    EXPECT_TRUE(a->number() == first || b->number() == first);
  });
  EXPECT_EQ(in_graphs(0), 2U);
}

TEST_F(AcrossDevices, CopiesChildrenAndUpdatesOfSuchACaptureHoldItsSlotsToo) {
  std::optional<graph> made = captured_on_both();
  std::optional<graph> copy;
  std::optional<graph_exec> exec;
  {
    device_scope const there(1);
    copy = made->clone();
    graph parent(*worker);
    parent.add_child(*made);
    exec.emplace(parent);
    exec->launch(stream_of(1));
    graph other(*worker);
    other.add_child(captured_on_both());
    exec->update(other);
    exec->launch(stream_of(0));
  }
  made.reset();
  EXPECT_TRUE(is_kept_by_graphs(2));
  copy.reset();
  EXPECT_TRUE(wait_until([this] { return drained() && in_graphs(1) == 1; }));
  exec.reset();
  EXPECT_TRUE(is_nothing_in_graphs());
}

TEST_F(AcrossDevices, WhatAnExecOrAHoistHoldsStaysUntilTheOtherDevicesStreamIsDone) {
  std::optional<graph> made = captured_on_both();
  std::optional<graph_exec> exec{*made};
  graph const other = captured_on_both();
  hoisted held = hoist(other);
  owned_exec const plain = instantiate(other.get());
  hold_up_other();
  {
    device_scope const there(1);
    exec->launch(stream_of(1));
    exec.reset();
    made.reset();
  }
  must(cudaGraphLaunch(plain, stream_of(1)));
  held.release_after(stream_of(1));  // device 0 is current
  EXPECT_TRUE(is_kept_by_graphs(2));
  flag.raise();
  EXPECT_TRUE(is_nothing_in_graphs());
}

TEST_F(AcrossDevices, ANodesMemoryIsOfTheDeviceThatIsNamedAndPeersReachIt) {
  int can_reach = 0;
  must(cudaDeviceCanAccessPeer(&can_reach, 0, 1));
  graph built(*worker);
  alloc_config config{.device = 1};
  if (can_reach != 0) config.peers = {0};
  pinned_ints seen;
  allocation const memory = build(built).add(alloc_node(4 * sizeof(int), config));
  cudaMemAllocNodeParams params{};
  must(cudaGraphMemAllocNodeGetParams(memory.get(), &params));
  EXPECT_EQ(params.poolProps.location.id, 1);
  EXPECT_EQ(params.accessDescCount, config.peers.size());
  auto* const data = static_cast<int*>(memory.address());
  node last = memory.add(memset_node(data, {.value = 6, .element_bytes = 4, .width = 4}));
  if (can_reach != 0) last = last.add(kernel_node(adds, {}, data, 5));
  last.add(memcpy_node(seen.data(), data, sizeof(int))).add(free_node(data));
  graph_exec exec(built);
  exec.launch(one);
  sync(one);
  EXPECT_EQ(seen.load(), can_reach != 0 ? 11 : 6);
}

TEST_F(AcrossDevices, AGraphBuiltByHandHasNodesAndMemoryOnBoth) {
  constexpr std::size_t n = 4;
  pinned_ints seen(3 * n);
  std::optional<graph_exec> exec;
  {
    graph built(*worker);
    node last = build(built).join();
    for (int const device : devices) {
      device_scope const there(device);
      auto block = make_stream_shared_by<device_block>(*worker, n * sizeof(int));
      int* const memory = static_cast<int*>(block->data());
      std::shared_ptr<int> const kept(std::move(block), memory);
      last = last.add(memset_node(kept, {.value = 0, .width = n * sizeof(int)}))
                 .add(kernel_node(fills, {}, kept, n, 10 + device))
                 .add(kernel_node(adds, {}, memory, 5))
                 .add(memcpy_node(seen.data() + n * static_cast<std::size_t>(device), kept,
                                  n * sizeof(int)));
    }
    // Memory is of the device that is current when its node is added.
    device_scope const there(1);
    allocation const memory = last.add(alloc_node(n * sizeof(int)));
    cudaMemAllocNodeParams params{};
    must(cudaGraphMemAllocNodeGetParams(memory.get(), &params));
    EXPECT_EQ(params.poolProps.location.id, 1);
    memory.add(kernel_node(fills, {}, static_cast<int*>(memory.address()), n, 9))
        .add(memcpy_node(seen.data() + 2 * n, memory.address(), n * sizeof(int)))
        .add(free_node(memory.address()));
    exec.emplace(built);
  }
  for (int const device : devices) {
    device_scope const there(1 - device);
    exec->launch(stream_of(device));
    sync(stream_of(device));
    for (auto const& [index, value] :
         {std::pair<std::size_t, int>{0, 15}, {1, 10}, {n, 16}, {n + 1, 11}, {2 * n, 9}}) {
      EXPECT_EQ(seen.load(index), value);
    }
  }
  exec.reset();
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().in_graphs, 0U);
}

}  // namespace
}  // namespace escrow::test
