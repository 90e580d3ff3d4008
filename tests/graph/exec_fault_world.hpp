// A world in which an operation of graphs or execs is made to fail, and what must hold afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <escrow/detail/reference_set.hpp>
#include <escrow/graph.hpp>
#include <escrow/sim.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../pool/capture_fixture.hpp"
#include "owner.hpp"

namespace escrow::test {

/// Graphs that hold slots and owners, execs, and a deleter without a thread, so that the n-th CUDA
/// call is always the same one.
struct exec_world {
  static constexpr std::size_t slots_of_graph = 2;

  tally counts;
  pinned_ints mismatches;
  pinned_ints cell;
  pinned_flag flag;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker;
  owned_stream one = make_stream();
  owned_stream other = make_stream();
  std::optional<block_pool> pool;
  std::vector<watched_owner> owners;  // one for each captured graph
  std::optional<graph> source;
  std::optional<graph> second;  // as `source`, with slots and an owner of its own
  std::optional<graph> copy;
  std::optional<graph> parent;
  owned_graph plain;  // made with CUDA's own calls
  owned_event event = make_event();
  std::optional<graph_exec> exec;
  std::optional<graph_exec> rival;
  std::optional<hoisted> handle;
  std::array<bool, 4> flying{};  // whose owners, and slots, are used until the flag is raised
  bool source_holds = true;      // false once it was hoisted
  int expected_runs = 0;         // launches that were enqueued

  exec_world() {
    deleter_options chosen;
    chosen.own_worker = false;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    worker = std::make_unique<deleter>(chosen);
    pool_options of_pool;
    of_pool.slots_max = 8;
    of_pool.label = "blocks";
    of_pool.deleter = worker.get();
    pool.emplace(of_pool, [this] { return block{counts}; });
    source.emplace(captured(1));
  }

  /// A graph of library calls that holds two slots and an owner and, launched, waits for the flag.
  [[nodiscard]] graph captured(int value) {
    owners.emplace_back();
    return escrow::capture(one, [&](stream_ref stream) {
      block_lease first = pool->claim(stream);
      block_lease next = pool->claim(stream);
      must(launch_wait_flag(stream.get(), flag.get()));
      for (block_lease* const each : {&first, &next}) {
        fill(*each, stream.get(), value);
        check(*each, stream.get(), value, mismatches);
      }
      must(launch_add(stream.get(), cell.data(), 1));
      worker->retire(stream, owners.back().owner());
    });
  }
  void launch(graph_exec& which, cudaStream_t stream, std::size_t owner = 0) {
    which.launch(stream);
    flying[owner] = true;
    ++expected_runs;
  }
  void release_handle() {
    if (!handle) return;
    try {
      handle->release_after(stream_ref(one));
    } catch (usage_error const&) {
      // It was released before.
    }
    handle.reset();
  }
  void end_execs() {
    exec.reset();
    rival.reset();
    release_handle();
  }
  void end_copies() {
    copy.reset();
    parent.reset();
    plain.reset();
    second.reset();
  }
  /// Waits until all that can come back has come back; whether it did so in time.
  [[nodiscard]] bool settle() {
    for (owned_stream const* const each : {&one, &other}) {
      static_cast<void>(cudaStreamSynchronize(*each));
    }
    static_cast<void>(cudaGetLastError());
    sim::run_until_idle();
    return worker->drain_for(generous);
  }
};

/// What the graphs and execs of a world keep alive: slots and owners of each.
[[nodiscard]] inline std::vector<std::pair<std::size_t, std::size_t>> holdings(
    exec_world const& world) {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  auto const add = [&all](auto const& holder) {
    resource_usage const held = holder ? holder->held() : resource_usage{};
    all.emplace_back(held.slots, held.owners);
  };
  for (std::optional<graph> const* const each :
       {&world.source, &world.second, &world.copy, &world.parent}) {
    add(*each);
  }
  add(world.exec);
  add(world.rival);
  add(world.handle);
  return all;
}

/// Work that runs must keep what it uses, whatever ends around it.
inline void expect_nothing_freed_early(exec_world& world) {
  for (int i = 0; i < 3; ++i) world.worker->poll();
  for (std::size_t i = 0; i < world.owners.size(); ++i) {
    if (!world.flying[i]) continue;
    EXPECT_EQ(world.owners[i].times(), 0) << "an owner went while a launch may use it";
  }
  auto const flying = static_cast<std::size_t>(std::ranges::count(world.flying, true));
  EXPECT_GE(world.pool->stats().in_graphs, exec_world::slots_of_graph * flying)
      << "a slot went back while a launch may use it";
}

/// All is back, each once.
inline void expect_all_back(exec_world& world) {
  EXPECT_TRUE(world.settle());
  for (watched_owner const& each : world.owners) EXPECT_EQ(each.times(), 1);
  EXPECT_EQ(world.counts.alive(), 0) << "slots are lost";
  EXPECT_EQ(world.worker->stats().in_graphs, 0u);
  EXPECT_EQ(world.worker->stats().pending, 0u);
  EXPECT_EQ(world.worker->stats().leaked, 0u) << world.errors->all();
  EXPECT_EQ(world.mismatches.load(), 0) << "two launches used a slot at a time";
  EXPECT_EQ(world.cell.load(), world.expected_runs) << "what threw was launched, or the reverse";
  EXPECT_TRUE(graph_registry::global().is_empty());
}

/// Ends everything while launches are in flight, graphs first, and expects that it comes back once
/// they are done.
inline void expect_end_in_flight(exec_world& world) {
  world.end_copies();
  world.source.reset();
  world.end_execs();
  expect_nothing_freed_early(world);
  world.flag.raise();
  world.pool.reset();  // not before: destroying a slot waits for the device
  expect_all_back(world);
}

/// Ends execs first, and expects that the graph still holds what it held.
inline void expect_end_with_the_graph(exec_world& world) {
  world.end_execs();
  world.end_copies();
  expect_nothing_freed_early(world);
  world.flag.raise();
  world.pool.reset();  // not before: destroying a slot waits for the device
  EXPECT_TRUE(world.settle());
  if (world.source && world.source_holds) {
    EXPECT_EQ(world.owners.front().times(), 0) << "the graph has lost what it held";
    EXPECT_GE(world.counts.alive(), static_cast<int>(exec_world::slots_of_graph));
  }
  world.source.reset();
  expect_all_back(world);
}

}  // namespace escrow::test
