// Graphs that span two devices: captured, copied, updated, hoisted and built by hand, with the
// other device current at every step. Skips where there is one.
#include "../nodes/node_queries.hpp"
#include "owners.hpp"
#include "two_devices_fixture.hpp"

namespace escrow::test {
namespace {

TEST_F(AcrossDevices, ACaptureThatSpansBothHoldsSlotsOfBothUntilItsGraphIsGone) {
  std::optional<graph> made = captured_on_both();
  EXPECT_EQ(pool_of(0).stats().in_graphs, 1u);
  EXPECT_EQ(pool_of(1).stats().in_graphs, 1u);
  std::optional<graph_exec> exec{*made};
  EXPECT_TRUE(exec->is_bare());
  for (int const device : {0, 1, 1, 0}) {
    device_scope const there(1 - device);
    exec->launch(stream_of(device));
  }
  {
    device_scope const there(1);
    made.reset();
    exec.reset();  // in flight
  }
  sync_both();
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_TRUE(nothing_is_in_graphs());
  EXPECT_EQ(pool_of(0).claim(stream_of(0))->number() + pool_of(1).claim(stream_of(1))->number(), 1);
}

TEST_F(AcrossDevices, APlainExecOfSuchACaptureKeepsItsSlotsAsWell) {
  owned_graph plain{captured_on_both().detach()};
  owned_exec exec = test::instantiate(plain);
  plain.reset();
  for (int const device : devices) must(cudaGraphLaunch(exec, stream_of(device)));
  EXPECT_TRUE(stays_false([this] { return pool_of(1).stats().in_graphs == 0; }));
  {
    device_scope const there(1);
    exec.reset();
  }
  sync_both();
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_TRUE(nothing_is_in_graphs());
}

TEST_F(AcrossDevices, ASlotThatTheOtherDevicesBranchUsesServesAgainAfterTheJoin) {
  graph const made = escrow::capture(stream_of(0), [this](stream_ref) {
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
    block_lease const one = pool_of(0).claim(stream_of(0));
    block_lease const two = pool_of(0).claim(stream_of(0));
    EXPECT_TRUE(one->number() == first || two->number() == first);
  });
  EXPECT_EQ(pool_of(0).stats().in_graphs, 2u);
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
  EXPECT_TRUE(stays_false([this] { return pool_of(1).stats().in_graphs < 2; }));
  copy.reset();
  EXPECT_TRUE(wait_until([this] { return drained() && pool_of(1).stats().in_graphs == 1; }));
  exec.reset();
  sync_both();
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_TRUE(nothing_is_in_graphs());
}

TEST_F(AcrossDevices, AnExecInFlightOnTheOtherDevicesStreamIsWaitedFor) {
  graph made = escrow::capture(stream_of(0), [this](stream_ref) {
    block_lease held = pool_of(0).claim(stream_of(0));
    work(0, held, 7);
  });
  std::optional<graph_exec> exec{made};
  made = graph(*worker);
  {
    device_scope const there(1);
    must(launch_wait_flag(stream_of(1), flag.get()));
    exec->launch(stream_of(1));
    exec.reset();
  }
  EXPECT_TRUE(stays_false([this] { return pool_of(0).stats().in_graphs == 0; }));
  flag.raise();
  sync_both();
  EXPECT_TRUE(nothing_is_in_graphs());
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(AcrossDevices, WhatIsHoistedGoesAfterTheWorkOfTheOtherDevicesStream) {
  graph const made = captured_on_both();
  hoisted held = hoist(made);
  owned_exec const exec = test::instantiate(made.get());
  {
    device_scope const there(1);
    must(launch_wait_flag(stream_of(1), flag.get()));
  }
  must(cudaGraphLaunch(exec, stream_of(1)));
  held.release_after(stream_of(1));  // device 0 is current
  EXPECT_TRUE(stays_false([this] { return pool_of(0).stats().in_graphs == 0; }));
  flag.raise();
  EXPECT_TRUE(nothing_is_in_graphs());
  sync_both();
}

TEST_F(AcrossDevices, AGraphBuiltByHandHasNodesOnBoth) {
  constexpr std::size_t n = 4;
  std::array<int*, 2> memory{};
  std::array<std::shared_ptr<device_block>, 2> owners;
  pinned_ints seen(2 * n);
  graph built(*worker);
  node last = build(built).join();
  for (int const device : devices) {
    device_scope const there(device);
    owners[at(device)] = make_stream_shared_by<device_block>(*worker, n * sizeof(int));
    memory[at(device)] = static_cast<int*>(owners[at(device)]->data());
    std::shared_ptr<int> const kept(owners[at(device)], memory[at(device)]);
    last = last.add(memset_node(kept, {.value = 0, .width = n * sizeof(int)}))
               .add(kernel_node(fills, {}, kept, n, 10 + device))
               .add(kernel_node(adds, {}, memory[at(device)], 5))
               .add(memcpy_node(seen.data() + at(device) * n, kept, n * sizeof(int)));
  }
  for (auto& each : owners) each.reset();  // the nodes have them
  std::optional<graph_exec> exec{built};
  built = graph(*worker);
  for (int const device : devices) {
    device_scope const there(1 - device);
    exec->launch(stream_of(device));
    sync(stream_of(device));
    EXPECT_EQ(seen.load(0), 15);
    EXPECT_EQ(seen.load(1), 10);
    EXPECT_EQ(seen.load(n), 16);
    EXPECT_EQ(seen.load(n + 1), 11);
  }
  exec.reset();
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().in_graphs, 0u);
}

TEST_F(AcrossDevices, MemoryOfAGraphIsOfTheDeviceThatIsCurrentWhenItsNodeIsAdded) {
  constexpr std::size_t n = 4;
  pinned_ints seen(n);
  graph built(*worker);
  {
    device_scope const there(1);
    allocation const memory = build(built).add(alloc_node(n * sizeof(int)));
    EXPECT_EQ(alloc_params_of(memory).poolProps.location.id, 1);
    memory.add(kernel_node(fills, {}, static_cast<int*>(memory.address()), n, 9))
        .add(memcpy_node(seen.data(), memory.address(), n * sizeof(int)))
        .add(free_node(memory.address()));
  }
  graph_exec exec{built};
  exec.launch(stream_of(0));
  sync(stream_of(0));
  EXPECT_EQ(seen.load(n - 1), 9);
}

TEST_F(AcrossDevices, OwnersOfGraphsEndOnTheDeviceThatWasCurrentWhenTheyWereHandedOver) {
  auto const of_node = make_fate();
  auto const of_graph = make_fate();
  {
    device_scope const there(1);
    graph built(*worker);
    build(built).add(host_node([kept = std::make_shared<probe>(of_node)] {}));
    worker->retire(built.get(), probe(of_graph));
    must(cudaSetDevice(0));
    graph_exec exec{built};
    exec.launch(stream_of(0));
  }
  sync(stream_of(0));
  for (auto const& fate : {of_node, of_graph}) {
    ASSERT_TRUE(fate->wait());
    EXPECT_EQ(fate->device, 1);
  }
}

}  // namespace
}  // namespace escrow::test
