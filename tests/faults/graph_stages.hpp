// SPDX-License-Identifier: Apache-2.0
// The stages of graphs: captured ones that hold slots and owners, and ones that are built by hand.
#pragma once

#include <algorithm>
#include <bitset>
#include <escrow/graph.hpp>
#include <escrow/internal/graph_registry.hpp>
#include <escrow/nodes.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fault_world.hpp"
#include "node_queries.hpp"

namespace escrow::test {

inline constexpr std::uint64_t for_good = 1'000'000;  // calls that fail

/// Captured graphs that hold two slots and an owner each, execs and hoisted references.
class exec_stage : public fault_world {
 public:
  static constexpr std::size_t slots_of_graph = 2;

  std::optional<block_pool> pool;
  std::optional<graph> source;
  std::optional<graph> second;  // as `source`, with slots and an owner of its own
  std::optional<graph> copy;
  std::optional<graph> parent;
  owned_graph plain;  // made with CUDA's own calls
  owned_event event = make_event();
  std::optional<graph_exec> exec;
  std::optional<graph_exec> rival;  // of the same graph
  std::optional<stream_launcher> launcher;
  std::optional<hoisted> handle;
  owned_exec plain_exec;  // of what was hoisted
  std::optional<exec_set> set;
  std::vector<exec_set::member> members;  // of the set
  std::bitset<4> in_flight;               // the owners that launches use until the flag is raised
  bool source_holds = true;               // false once its references were hoisted
  static constexpr std::size_t row = 3;   // the copies of an exec that has some
  int expected_runs = 0;                  // launches that were enqueued

  exec_stage() {
    pool.emplace(options(), [this] { return block{counts}; });
    source.emplace(captured_work(1));
  }
  [[nodiscard]] pool_options options() {
    return {.slots_max = 8, .label = "blocks", .deleter = worker.get()};
  }
  /// Before other graphs are made: `source` is of a group whose launches are recorded late.
  void make_late() {
    pool_options of_group = options();
    of_group.group = sharing_group({.streams_outlive_group = true});
    source.reset();
    EXPECT_TRUE(worker->drain_for(generous));  // its slots are back
    pool.reset();
    EXPECT_TRUE(worker->drain_for(generous));
    fates.clear();
    pool.emplace(of_group, [this] { return block{counts}; });
    source.emplace(captured_work(1));
  }
  /// A graph of library calls whose launches wait for the flag.
  [[nodiscard]] graph captured_work(int value) {
    std::shared_ptr<void> owner = new_owner();
    return escrow::capture(one, [&](stream_ref stream) {
      block_lease first = pool->claim(stream);
      block_lease next = pool->claim(stream);
      must(launch_wait_flag(stream.get(), flag.get()));
      for (block_lease* const each : {&first, &next}) {
        fill(*each, stream.get(), value);
        check(*each, stream.get(), value, mismatches);
      }
      must(launch_add(stream.get(), cells.data(), 1));
      worker->retire(stream, std::move(owner));
    });
  }
  void launch(graph_exec& which, cudaStream_t stream, std::size_t owner = 0) {
    which.launch(stream);
    in_flight.set(owner);
    ++expected_runs;
  }
  /// The launcher of an exec of `source`, on stream `one`.
  void launch_by_launcher() {
    launcher->launch();
    in_flight.set(0);
    ++expected_runs;
  }
  /// The runs of one row, by one call of CUDA: none of them, or all.
  void launch_row(auto&& launching) {
    launching(row);
    in_flight.set(0);
    expected_runs += static_cast<int>(row);
  }
  /// Adds a graph to the set, which takes it.
  void add_member(std::optional<graph>& which) {
    members.reserve(2);
    if (!set) set.emplace();
    members.push_back(set->add(std::move(*which)));
    which.reset();
  }
  void launch_member(std::size_t which, cudaStream_t stream, std::size_t owner) {
    set->launch(members[which], stream);
    in_flight.set(owner);
    ++expected_runs;
  }
  void end_copies() {
    copy.reset();
    parent.reset();
    plain.reset();
    second.reset();
  }
  void end_execs(bool may_wait = true) {
    launcher.reset();
    exec.reset();
    rival.reset();
    set.reset();
    plain_exec.reset();
    if (!handle) return;
    try {
      if (may_wait) handle->release_after(stream_ref(one));
      if (!may_wait) handle->release();
    } catch (std::exception const&) {
      // It was released before, or the end of a launch is not known: it leaks.
    }
    handle.reset();
  }
  /// Waits until everything that can be released was released; whether that was in time.
  [[nodiscard]] bool settle() {
    static_cast<void>(cudaStreamSynchronize(one));
    static_cast<void>(cudaStreamSynchronize(other));
    static_cast<void>(cudaGetLastError());
    sim::run_until_idle();
    return worker->drain_for(generous);
  }
  /// Ends all launches.
  void finish() {
    flag.raise();
    EXPECT_TRUE(settle());
    in_flight.reset();
  }
  /// An exec that says it is bare has no user object, unless there are plain copies. Without
  /// graphs, and with no launch in flight.
  void expect_true_claim() {
    if (!exec || rival) return;
    EXPECT_TRUE(settle());
    EXPECT_LE(exec->is_bare(), sim::alive().user_objects == before_.user_objects)
        << "it is not bare";
  }
  /// Launches keep what they use, whatever was destroyed.
  void expect_nothing_freed_early() {
    for (int i = 0; i < 3; ++i) worker->poll();
    for (std::size_t i = 0; i < fates.size(); ++i)
      EXPECT_FALSE(in_flight[i] && fates[i]->was_destroyed()) << "a launch may use owner " << i;
    if (in_flight.none()) return;
    EXPECT_GE(pool->stats().in_graphs, slots_of_graph * in_flight.count())
        << "a slot was released while a launch may use it";
  }
  void raise_flag() {
    flag.raise();
    pool.reset();  // not before: destroying a slot waits for the device
  }
  /// Destroys everything, where something may have been leaked.
  [[nodiscard]] std::optional<leftovers> end_after_failures(std::string const& api) override {
    for (auto const* const each : {&source, &second, &copy, &parent})
      EXPECT_NO_THROW(static_cast<void>(*each ? nodes_of((*each)->get()).size() : 0));
    end_copies();
    source.reset();
    end_execs();
    expect_nothing_freed_early();
    raise_flag();
    EXPECT_TRUE(settle()) << "a drain hangs";
    EXPECT_EQ(mismatches.load(), 0);
    std::size_t const left = owners_left() + static_cast<std::size_t>(counts.alive());
    EXPECT_TRUE(left == 0 || is_something_kept()) << left << " things leaked, and not counted";
    if (is_something_kept()) return std::nullopt;
    leftovers kept;
    if (api == "cudaStreamDestroy") kept.streams = 1;  // nothing else ends it
    return kept;
  }

  [[nodiscard]] std::string seen() override {
    std::string text = "holds ";
    auto const add = [&text](auto const& holder) {
      resource_usage const held = holder ? holder->held() : resource_usage{};
      text += text_of(held.slots, held.owners);
    };
    for (std::optional<graph> const* const each : {&source, &second, &copy, &parent}) add(*each);
    add(exec);
    add(rival);
    add(handle);
    add(set);
    exec_set_stats const now = set ? set->stats() : exec_set_stats{};
    text += text_of("set", now.members, now.execs, now.reasons.size());
    return text + alive_graphs() + text_of("runs", expected_runs);
  }
  /// With launches in flight: graphs first (0), or execs first (1). With none, graphs first (2).
  [[nodiscard]] leftovers end(int way) override {
    bool const has_plain_copy = plain.get() != nullptr;
    if (way == 2) finish();
    if (way == 1) end_execs();
    end_copies();
    if (way != 1) source.reset();
    if (way == 2 && !has_plain_copy) expect_true_claim();
    end_execs();
    expect_nothing_freed_early();
    raise_flag();
    EXPECT_TRUE(settle());
    if (source && source_holds) {
      EXPECT_EQ(fates.front()->times(), 0) << "the graph has lost what it held";
      EXPECT_GE(counts.alive(), static_cast<int>(slots_of_graph));
    }
    source.reset();
    EXPECT_TRUE(settle());
    for (fate_ptr const& each : fates) EXPECT_EQ(each->times(), 1);
    EXPECT_EQ(counts.alive(), 0) << "slots are lost";
    drain_all();
    EXPECT_EQ(worker->stats().leaked, 0u) << errors->all();
    EXPECT_EQ(mismatches.load(), 0) << "two launches used a slot at a time";
    EXPECT_EQ(cells.load(), expected_runs) << "a launch that threw ran, or the reverse";
    EXPECT_TRUE(graph_registry::global().is_empty() || !was_registry_empty_);
    return {};
  }
  [[nodiscard]] leftovers end_after_loss() override {
    end_copies();
    source.reset();
    end_execs(false);
    pool.reset();
    sim::run_until_idle();
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    auto const blocks = static_cast<std::size_t>(counts.alive());
    EXPECT_LE(owners_left() + blocks, worker->stats().leaked);
    leftovers left;
    left.device_allocations = blocks;
    left.device_bytes = blocks * block::length * sizeof(int);
    left.events = 3 * worker->stats().leaked;
    return left;
  }

 private:
  bool const was_registry_empty_ = graph_registry::global().is_empty();  // no test before leaked
};

/// Tells when the last share, or the unique owner, of some memory is destroyed, and frees nothing.
struct tells_fate {
  fate_ptr fate;
  void operator()(int*) const { probe const destroyed(fate); }
};

/// A graph that is built by hand, with owners, execs and captures.
class build_stage : public fault_world {
 public:
  using unique = std::unique_ptr<int, tells_fate>;

  std::unique_ptr<changes_world> kinds = std::make_unique<changes_world>();
  kernel const add{kernel_address(kernel_id::add)};
  std::optional<graph> built{std::in_place, *worker};
  std::optional<node> first;
  std::optional<graph> copy;
  std::optional<graph> third;
  std::optional<graph_exec> exec;
  std::optional<body_graph> body;
  std::optional<condition> looked_at;
  std::optional<allocation> memory;
  std::optional<capture_scope> scope;
  std::optional<library> loaded;
  std::optional<kernel> found;
  owned_graph plain;
  unique mine;                     // an owner that an operation takes
  std::shared_ptr<int> shared;     // one that it shares
  std::optional<int> expected;     // what a run of the graph adds to the first cell
  std::function<void()> at_end;    // expects what the operation has done
  bool polls_when_seen = true;     // not if that is the operation
  bool sees_owners = false;        // of what the graph holds nothing may be missing
  bool may_lose = false;           // owners may be destroyed if it fails
  bool has_failed = false;         // for good, so that the operation may not have done its work
  std::vector<std::size_t> going;  // the numbers of the owners that the operation releases

  /// The first cell, with an owner.
  [[nodiscard]] std::shared_ptr<int> owner() { return {cells.data(), tells_fate{fate()}}; }
  [[nodiscard]] unique unique_owner() { return {cells.data(), tells_fate{fate()}}; }
  /// A graph of one node that adds 1 and has an owner.
  void build_one() { first.emplace(build(*built).add(kernel_node(add, {}, owner(), 1))); }
  /// Runs the exec, or the graph, once.
  void run() {
    if (!exec) exec.emplace(*built);
    exec->launch(one);
    must(cudaStreamSynchronize(one));
  }

  [[nodiscard]] std::string seen() override {
    if (polls_when_seen) reclaim();
    std::string text = text_of("answer", answer, "capturing", is_capturing(), "mine",
                               mine != nullptr, "destroyed");
    for (fate_ptr const& each : fates) text += text_of(each->times());
    for (std::optional<graph> const* const each : {&built, &copy, &third})
      text += !*each ? "no graph "
                     : text_of("nodes", nodes_in(**each).size(), "edges", edges_in(**each).size());
    if (built && sees_owners) text += text_of("holds", built->held().owners);
    for (auto const& each : built ? built->core()->bodies : std::vector<graph_core::body>())
      text += text_of("body", nodes_of(each.graph).size());
    return text + alive_graphs() +
           text_of("has", exec.has_value(), looked_at.has_value(), memory.has_value(),
                   scope.has_value(), loaded.has_value(), found.has_value());
  }

  [[nodiscard]] std::optional<leftovers> end_after_failures(std::string const& api) override {
    has_failed = true;
    expected.reset();
    at_end = nullptr;
    scope.reset();
    cudaGraph_t dropped = nullptr;
    bool const is_open = info_of(one).status != cudaStreamCaptureStatusNone;
    if (is_open) must(cudaStreamEndCapture(one, &dropped));
    owned_graph const doomed(dropped);
    return fault_world::end_after_failures(api);
  }

 private:
  void reclaim() {
    while (worker->poll() != 0) {
    }
  }
  void before_end(bool is_lost) override {
    if (!has_failed) shared.reset();                         // what failed does not keep it
    if (!is_lost && built) static_cast<void>(built->get());  // what changed nodes kept goes
    if (!is_lost) reclaim();
    for (std::size_t i = 0; !is_lost && i < fates.size(); ++i) {
      if (may_lose && fates[i]->was_destroyed()) continue;
      auto const goes = std::ranges::count(going, i);
      EXPECT_TRUE(fates[i]->times() == goes || (has_failed && fates[i]->times() < goes))
          << "owner " << i;
    }
    flag.raise();
    scope.reset();
  }
  leftovers end_all(bool is_lost, bool is_end_known) override {
    if (!is_lost && expected) {
      cells.store(0, 0);
      run();
      EXPECT_EQ(cells.load(), *expected);
    }
    if (!is_lost && at_end) at_end();
    found.reset();
    loaded.reset();
    mine.reset();
    shared.reset();
    body.reset();
    exec.reset();
    copy.reset();
    third.reset();
    built.reset();
    plain.reset();
    kinds.reset();
    sim::run_until_idle();
    drain_all();
    expect_counted(is_end_known && !has_failed);
    leftovers left;
    left.events = 2 * worker->stats().leaked;
    if (!is_end_known) left.libraries = sim::alive().libraries - libraries_before_;
    return left;
  }

  std::size_t const libraries_before_ = sim::alive().libraries;
};

}  // namespace escrow::test
