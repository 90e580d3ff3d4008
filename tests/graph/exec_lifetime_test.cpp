// SPDX-License-Identifier: Apache-2.0
// How long an exec keeps what its work uses: with launches in flight, whatever of exec, stream,
// thread, pool and deleter is destroyed first, and after an update; and that slots come back while
// an owner's destructor blocks the worker.
#include <escrow/nodes.hpp>
#include <ostream>

#include "world.hpp"

namespace escrow::test {
namespace {

struct InFlight;

/// A way to launches that wait for the flag. Exec and graph are destroyed afterwards.
struct launching {
  char const* name;
  int launches;
  void (*launch)(InFlight& in, graph_exec exec, graph const& source);

  friend void PrintTo(launching const& each, std::ostream* out) { *out << each.name; }
};

struct InFlight : world, testing::WithParamInterface<launching> {
  static std::vector<launching> of_execs() {
    return {
        {"OnOneStream", 1, [](InFlight& in, auto exec, auto&) { exec.launch(in.two); }},
        {"BehindOtherWork", 1,
         [](InFlight& in, auto exec, auto&) {
           in.hold_up(in.three);
           exec.launch(in.three);
         }},
        {"OnAStreamThatIsDestroyed", 2,
         [](InFlight& in, auto exec, auto&) {
           exec.launch(in.two);
           owned_stream const passing = make_stream();
           exec.launch(passing);
         }},
        {"OnTheLegacyStream", 1, [](auto&, auto exec, auto&) { exec.launch(cudaStreamLegacy); }},
        {"OnAThreadThatEnds", 1,
         [](auto&, auto exec, auto&) {
           std::thread([&] { exec.launch(cudaStreamPerThread); }).join();
         }},
        {"AssignedOver", 1,
         [](InFlight& in, auto exec, auto&) {
           exec.launch(in.two);
           exec = graph_exec(graph());
         }},
        {"UpdatedToItsOwnGraph", 1,
         [](InFlight& in, auto exec, auto& source) {
           exec.launch(in.two);
           exec.update(source);
         }},
        {"BesideAnExecThatIsNotLaunched", 1, [](InFlight& in, auto exec, auto& source) {
           graph_exec const idle(source);
           exec.launch(in.two);
         }}};
  }
  static std::vector<launching> of_launchers() {
    return {{"Twice", 2,
             [](InFlight& in, auto exec, auto&) {
               stream_launcher launcher(std::move(exec), in.two);
               launcher.launch();
               launcher.launch();
             }},
            {"AfterAFlush", 2,
             [](InFlight& in, auto exec, auto&) {
               stream_launcher launcher(std::move(exec), in.two);
               in.hold_up(in.two);
               launcher.flush();
               launcher.launch();
               launcher.flush();
               launcher.launch();
             }},
            {"ThatIsAssignedOver", 1,
             [](InFlight& in, auto exec, auto&) {
               stream_launcher launcher(std::move(exec), in.two);
               launcher.launch();
               launcher = stream_launcher(graph_exec(graph()), in.three);
             }},
            {"BesideAnotherExec", 2, [](InFlight& in, auto exec, auto& source) {
               graph_exec const idle(source);
               stream_launcher launcher(std::move(exec), in.two);
               launcher.launch();
               launcher.launch();
             }}};
  }
};

std::string name_of_launching(testing::TestParamInfo<launching> const& each) {
  return each.param.name;
}

INSTANTIATE_TEST_SUITE_P(Launches, InFlight, testing::ValuesIn(InFlight::of_execs()),
                         name_of_launching);
INSTANTIATE_TEST_SUITE_P(ByALauncher, InFlight, testing::ValuesIn(InFlight::of_launchers()),
                         name_of_launching);

TEST_P(InFlight, KeepsEverythingUntilTheLastLaunchIsDone) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    GetParam().launch(*this, graph_exec(source), source);
    EXPECT_TRUE(is_kept(taken)) << "the graph is there";
  }
  EXPECT_TRUE(stays_kept(taken));
  EXPECT_FALSE(drains_soon()) << "what a launch in flight uses counts as reclaimed";
  EXPECT_EQ(cells.load(2), 0) << "the flag does not hold the launch";
  flag.raise();
  EXPECT_TRUE(drained());
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(have_ended(GetParam().launches));
}

class ExecLifetime : public world {};

TEST_F(ExecLifetime, WhatTwoDeletersOwnIsReclaimedByEachOfThem) {
  deleter_options named;
  named.thread_name = "other";
  deleter other(named);
  cargo taken = make_cargo();
  fate_ptr const fate = make_fate();
  {
    graph_exec exec(captured([&](cudaStream_t on) {
      load(taken, on);
      other.retire(on, probe(fate));
    }));
    EXPECT_TRUE(exec.is_bare());
    EXPECT_TRUE(has_no_user_object());
    exec.launch(two);
    sync(two);
    EXPECT_TRUE(stays_kept(taken));
    EXPECT_TRUE(is_out(fate));
  }
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->thread_name, "other");
}

// The longest way to a release: an exec is an owner itself, what its launch used is released when
// that is done, and releases more. The drain begins while the launch goes on, so that each step
// comes behind the drain's marker.
TEST_F(ExecLifetime, ADrainWaitsForAllThatAnExecWhichIsRetiredInFlightReleases) {
  deleter polled{deleter_options{.own_worker = false}};
  fate_ptr const fate = make_fate();
  {
    pool_options chosen = options(1);
    chosen.deleter = &polled;
    block_pool pool = make_pool(chosen);
    auto const shared = make_stream_shared_by<probe>(polled, fate);
    graph_exec exec(captured_behind_flag([&](cudaStream_t on) {
      record_stream(shared, on);
      polled.retire(on, pool.claim(on));
    }));
    exec.launch(two);
    polled.retire(std::move(exec));
  }
  std::jthread const raising([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    flag.raise();
  });
  polled.drain();
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(counts.alive(), 0) << "the resource of a destroyed pool";
}

// What an update swaps, and when the old is released.
class ExecUpdate : public world {};

TEST_F(ExecUpdate, InFlightReleasesTheOldAfterTheLaunchAlsoIfTheNewIsLaunchedAtOnce) {
  cargo old = make_cargo();
  cargo fresh = make_cargo();
  std::optional<graph_exec> exec(captured_behind_flag(old));
  graph const longer = captured_behind_flag(fresh);
  exec->launch(two);
  exec->update(longer);
  exec->launch(two);
  exec->launch(three);
  EXPECT_TRUE(stays_kept(old));
  EXPECT_EQ(cells.load(2), 0);
  flag.raise();
  EXPECT_TRUE(is_released(old)) << "it waits for launches that do not use it";
  EXPECT_TRUE(have_ended(3));
  EXPECT_TRUE(is_kept(fresh));
}

TEST_F(ExecUpdate, EndsTheOrderWithThoseOfTheOldGraph) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  graph const source = captured(taken);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  first.update(captured(other));
  hold_up(two);
  first.launch(two);  // behind the flag
  second.launch(three);
  EXPECT_TRUE(wait_until([&] { return cells.load() == 2; }))
      << "it waits for a launch that shares nothing with it";
}

// CUDA gives handles of destroyed graphs again, while execs of those graphs are still there.
TEST_F(ExecLifetime, OfAHandleGivenAgainHoldsOnlyWhatTheNewGraphHolds) {
  cargo of_old = make_cargo();
  std::optional<owned_graph> old_graph(captured_plainly(of_old));
  cudaGraph_t const old_handle = old_graph->get();
  std::optional<graph_exec> of_old_graph(old_handle);
  old_graph.reset();
  bool is_same[2]{};
  for (std::size_t i = 0; i < 400 && (!is_same[0] || !is_same[1]); ++i) {
    bool const holds = i % 2 == 1;
    cargo of_new = make_cargo();
    owned_graph fresh = holds ? captured_plainly(of_new) : chain({add_call(cells.data(), 1)});
    is_same[i % 2] |= fresh.get() == old_handle;
    graph_exec exec(fresh.get());
    EXPECT_EQ(exec.held().slots, holds ? 1U : 0U);
    EXPECT_EQ(exec.held().owners, holds ? 1U : 0U);
    fresh.reset();
    run(exec);
    EXPECT_TRUE(is_out(of_new.fate));
    exec = graph_exec(graph());
    EXPECT_TRUE(!holds || is_released(of_new)) << "it stays with the exec of the old graph";
    EXPECT_TRUE(is_out(of_old.fate));
  }
  expect_bare_only_holder(of_old_graph, of_old);
  if (!is_same[0] || !is_same[1]) GTEST_SKIP() << "no handle was given again";
}

// A destructor that blocks the worker delays no claim.
class BlockedWorker : public world {
 protected:
  static constexpr std::size_t bytes = 256;

  // Ends before the memory of the pool is freed: cudaFree waits for the device.
  void TearDown() override {
    flag.raise();
    may_end.store(true);
    blocks.reset();
    EXPECT_TRUE(drained());
    world::TearDown();
  }
  [[nodiscard]] bool has_free_slot() { return blocks->try_claim(two.get()).has_value(); }

  std::optional<resource_pool<device_block>> blocks{std::in_place, options(1),
                                                    [] { return device_block(bytes); }};
};

TEST_F(BlockedWorker, TheSlotOfALeaseThatANodeSharesIsClaimedAgain) {
  {
    graph built(*worker);
    auto held = blocks->claim(two.get());
    build(built)
        .add(kernel_node(kernel(kernel_address(kernel_id::wait_flag)), {}, flag.get()))
        .add(memset_node(held, {.width = bytes}));
    graph_exec exec(built);
    exec.launch(two);
    held.release();
  }
  block_worker();
  EXPECT_FALSE(has_free_slot()) << "the launch still uses it";
  flag.raise();
  sync(two);
  EXPECT_TRUE(has_free_slot());
}

TEST_F(BlockedWorker, TheSlotOfAHoistedGraphIsClaimedAgainOnceTheEventIsDone) {
  owned_event last_use = make_event();
  {
    graph const source =
        captured_behind_flag([&](cudaStream_t on) { static_cast<void>(blocks->claim(on)); });
    hoisted held = hoist(source);
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    must(cudaEventRecord(last_use, two));
    block_worker();
    held.release_after(event_ref(last_use));
    last_use.reset();
  }
  EXPECT_FALSE(has_free_slot()) << "the launch still uses it";
  flag.raise();
  sync(two);
  EXPECT_TRUE(has_free_slot());
}

TEST_F(BlockedWorker, TheSlotOfAHoistedGraphIsClaimedAgainIfTheEventWasDoneBefore) {
  hoisted held = hoist(captured([&](cudaStream_t on) { static_cast<void>(blocks->claim(on)); }));
  owned_event const last_use = make_event();
  must(cudaEventRecord(last_use, two));
  sync(two);
  block_worker();
  EXPECT_FALSE(has_free_slot());
  held.release_after(event_ref(last_use));
  EXPECT_TRUE(has_free_slot());
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(BlockedWorker, TheSlotOfAHoistedGraphIsClaimedAgainIfTheEventsDeviceIsLost) {
  hoisted held = hoist(captured([&](cudaStream_t on) { static_cast<void>(blocks->claim(on)); }));
  owned_event const last_use = make_event();
  must(cudaEventRecord(last_use, two));
  block_worker();
  sim::fail_call_here("cudaEventQuery", cudaErrorIllegalAddress, 1, 1);
  held.release_after(event_ref(last_use));
  EXPECT_TRUE(has_free_slot());
}
#endif

/// The parameter is what becomes of a graph whose owner blocks the worker.
class BlockingOwner : public world, public testing::WithParamInterface<char const*> {
 protected:
  static void launch_and_end(graph const& source, cudaStream_t on) {
    std::string const what = GetParam();
    if (what == "LaunchedByAnExec") return graph_exec(source).launch(on);
    if (what == "Destroyed") return;
    must(what == "LaunchedByAPlainExec", "that becomes of it");
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, on));
  }
};

INSTANTIATE_TEST_SUITE_P(Ends, BlockingOwner,
                         testing::Values("Destroyed", "LaunchedByAnExec", "LaunchedByAPlainExec"),
                         [](auto const& each) { return std::string(each.param); });

TEST_P(BlockingOwner, DoesNotKeepTheSlotsOfItsGraph) {
  block_pool pool = make_pool(2);
  // In the order in which a reclaiming thread might meet them.
  std::optional<graph> source = captured([&](cudaStream_t on) {
    block_lease const before = pool.claim(on);
    retire(on, make_blocking());
    block_lease const after = pool.claim(on);
    must(launch_tiny(on));
  });
  hold_up(two);
  launch_and_end(*source, two);
  source.reset();
  flag.raise();
  EXPECT_TRUE(wait_until([this] { return is_blocking.load(); }));
  EXPECT_TRUE(can_claim(pool, 2)) << "a claim waits for a destructor";
  EXPECT_FALSE(may_end.load());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
