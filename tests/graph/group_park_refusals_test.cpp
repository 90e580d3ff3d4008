// SPDX-License-Identifier: Apache-2.0
// What stands in the way of parking, and what a parked group refuses.
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>

#include "park_world.hpp"

namespace escrow::test {
namespace {

using GroupParkRefusals = park_world;

// What stands in the way.

TEST_F(GroupParkRefusals, IsRefusedWhileALeaseLives) {
  errors_expected = true;  // the lease outlives its capture
  std::optional<lease<device_block>> kept;
  {
    graph const source =
        captured([&](cudaStream_t on) { kept.emplace(scratch().claim(on, 4096)); });
    expect_no_park({"a lease of \"blocks of 4096 bytes\" (claimed at ", "lives", "release it"});
    kept.reset();
  }
  group->run(two, [&] {
    auto const held = scratch().claim(two, 4096);
    std::jthread([&] {
      expect_error<group_busy>(
          [&] { return group->park({.wait_max = std::chrono::milliseconds(5)}); },
          {"sharing_group::park", "another thread is inside", "batches"});
    }).join();
  });
  EXPECT_THROW(group->run(two, [&] { kept.emplace(scratch().claim(two, 4096)); }), usage_error);
  expect_no_park({"a lease of \"blocks of 4096 bytes\" (claimed at ", "lives"});
  kept.reset();
  group->park();
  group->unpark();
}

TEST_F(GroupParkRefusals, IsRefusedWhileAnotherGraphOrANodeHasALeasesMemory) {
  errors_expected = true;  // the lease outlives its capture
  std::optional<buffer_lease<int>> kept;
  graph const source = captured([&](cudaStream_t on) {
    kept.emplace(scratch().claim<int>(on, 64));
    must(launch_add(on, kept->data(), 1));
  });
  std::string const problem = "has the memory of a lease of \"blocks of 256 bytes\" (claimed at ";
  std::string const remedy = "destroy that graph and its execs before";
  std::optional<graph> other(captured([&](cudaStream_t on) { kept->record_stream(on); }));
  graph built;
  static_cast<void>(
      build(built).add(kernel_node(function_of<int*, int>(kernel_id::add), {}, *kept, 1)));
  kept.reset();
  expect_no_park({problem, remedy});
  std::optional<graph_exec> exec(*other);
  other.reset();
  expect_no_park({problem, remedy});
  exec->launch(two);
  exec.reset();
  sync(two);
  expect_no_park({problem, remedy});  // the node has it
  built = graph();
  park_and_back();
}

TEST_F(GroupParkRefusals, WaitsForTheWorkerWhereALeaseWasRetired) {
  errors_expected = true;  // the lease outlives its capture
  std::optional<lease<device_block>> kept;
  graph const source = captured([&](cudaStream_t on) { kept.emplace(scratch().claim(on, 4096)); });
  hold_up(three);
  worker->retire(three, std::move(*kept));
  expect_error<usage_error>([&] { return group->park(); },
                            {"a lease of", "lives in the group's arena", "wait for its stream"});
  std::jthread raising([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    flag.raise();
  });
  park_and_back();
}

TEST_F(GroupParkRefusals, IsRefusedWhereAPlainExecMayExist) {
  std::optional<graph> source(captured_use(1));
  park_and_back();  // nobody has its handle
  std::string const id = "graph " + std::to_string(source->id());
  owned_exec exec = instantiate(source->get());
  std::string const remedy = "hoist() it";
  expect_no_park({"an exec or a copy of " + id, "\"batches\"", remedy});
  source.reset();
  expect_no_park({"an exec or a copy of " + id, remedy});
  exec.reset();
  EXPECT_TRUE(has_no_user_object());
  EXPECT_EQ(group->park(), 2 * mebibyte) << "of run()";
  group->unpark();
}

TEST_F(GroupParkRefusals, IsRefusedForAGraphOfPlainCudaUntilItIsHoisted) {
  owned_graph source = captured_plainly([&](cudaStream_t on) { use_scratch(scratch(), on, 1); });
  expect_no_park({"by plain CUDA", "an exec of it may exist", "hoist() it"});
  hoisted off = hoist(source.get());
  expect_no_park({"was hoisted, and its launches are not known", "inside hoisted::launch()"});
  owned_exec const exec = instantiate(source.get());
  off.launch(two, [&] { return cudaGraphLaunch(exec, two); });
  park_and_back();
  off.launch(three, [&] {
    expect_error<usage_error>([&] { return group->park(); },
                              {"sharing_group::park", "this thread is inside", "\"batches\""});
    return cudaGraphLaunch(exec, three);
  });
  off.release_after(three);
  sync_all();
}

TEST_F(GroupParkRefusals, IsRefusedForEachHoistedGraphUntilItsOwnFirstLaunch) {
  graph source = captured_use(1);
  graph copy = source.clone();  // holds the same, and has no id
  graph_exec exec(source);
  exec.launch(two);
  std::vector<std::string> const unknown{"was hoisted, and its launches are not known"};
  hoisted first = hoist(source);
  hoisted second = hoist(copy);
  expect_no_park(unknown);
  first.launch(two, [] {});
  expect_no_park(unknown);
  owned_exec plain = instantiate(copy.get());
  source = graph();
  expect_no_park(unknown);
  second.launch(two, [&] { return cudaGraphLaunch(plain, two); });
  park_and_back();
  first.release_after(two);
  second.release_after(two);
  // One that was never launched, and is released, while another one lives.
  graph const again = captured_use(1);
  graph const other = again.clone();
  hoist(again).release();
  sync_all();
  park_and_back();
  hoist(other).release_after(two);
  graph const last = captured_use(1);
  graph_exec const keeping(last);
  hoist(last).release_after(two);
  sync_all();
  park_and_back();
}

TEST_F(GroupParkRefusals, TakesNoNewGraphForTheWholeOfOldParts) {
  graph const source = captured_use(1);
  graph parent;
  parent.add_child(source);
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(parent.clone());  // its handle is given again
    graph shown;
    static_cast<void>(shown.get());
    park_and_back();
    static_cast<void>(parent.clone());
    owned_graph plain = captured_plainly([&](cudaStream_t on) { use_scratch(scratch(), on, 1); });
    hoisted off = hoist(plain.get());
    off.launch(two, [] {});
    park_and_back();
    off.release_after(two);
  }
  sync_all();
}

TEST_F(GroupParkRefusals, LetsOthersGoOnWhileItIsRefused) {
  graph const source = captured_use(1);
  std::atomic<bool> is_over{false};
  {
    test::capture open{one, cudaStreamCaptureModeRelaxed};
    use_scratch(scratch(), one, 1);
    std::jthread parking([&] {
      expect_error<usage_error>([&] { return group->park(); }, {"is being captured"});
      is_over.store(true);
    });
    while (!is_over.load()) {
      use_scratch(scratch(), one, 2);
      graph_exec const made(source);
      EXPECT_FALSE(group->stats().is_parked);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    must(open.end());
  }
  // Another thread instantiates, and the arena of another group is made meanwhile.
  group.emplace(sharing_options{.label = "batches"});
  block_pool others = make_pool(in_group(2));  // has no arena
  scratch_pool scratches(in_group());
  graph const used = captured([&](cudaStream_t on) { use(others, on); });
  std::jthread instantiating;
  {
    graph_lifetime_lock const held;
    instantiating = std::jthread([&] { graph_exec const made(used); });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::jthread parking([&] {
      expect_error<group_busy>(
          [&] { return group->park({.wait_max = std::chrono::milliseconds(50)}); },
          {"sharing_group::park", "another thread instantiates, updates or copies"});
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    test::capture open{one, cudaStreamCaptureModeRelaxed};
    use_scratch(scratches, one, 1);
    parking.join();
    use_scratch(scratches, one, 1);
    must(open.end());
  }
}

TEST_F(GroupParkRefusals, KnowsWhoseHandleWasGivenOut) {
  graph source = captured_use(1);
  graph copy = source.clone();
  graph parent;
  parent.add_child(source);
  graph grandparent;
  grandparent.add_child(parent);
  graph_exec exec(parent);
  park_and_back();
  static_cast<void>(grandparent.get());
  expect_no_park({"an exec or a copy of"});
  grandparent = graph();
  expect_no_park({"an exec or a copy of"});  // of the same references
  source = graph();
  copy = graph();
  parent = graph();
  EXPECT_TRUE(has_no_user_object());
  park_and_back();
  exec.launch(two);
  sync(two);
  // A child of a graph whose handle is out already; a capture and a graph that others made.
  graph const second = captured_use(1);
  {
    graph shown;
    static_cast<void>(shown.get());
    shown.add_child(second);
    expect_no_park({"an exec or a copy of"});
  }
}

TEST_F(GroupParkRefusals, IsRefusedWhileACaptureIsOpenOrAHandleWasTakenOver) {
  {
    test::capture open{one, cudaStreamCaptureModeRelaxed};
    use_scratch(scratch(), one, 1);
    expect_no_park({"is being captured"});
    must(open.end());
  }
  owned_graph plain = captured_plainly([&](cudaStream_t on) { use_scratch(scratch(), on, 1); });
  graph taken(plain.release());
  expect_no_park({"an exec or a copy of"});
  cudaGraph_t detached = captured_use(1).detach();
  taken = graph();
  expect_no_park({"may exist"});
  must(cudaGraphDestroy(detached));
}

TEST_F(GroupParkRefusals, IsRefusedForDeviceLaunchesAndWhatIsHeldUntilClosed) {
#ifndef ESCROW_TEST_RUNTIME_SIM  // which knows no device launch
  {
    graph_exec exec(captured_use(1), {.flags = cudaGraphInstantiateFlagDeviceLaunch});
    expect_no_park({"was instantiated for device launch"});
  }
#endif
  EXPECT_TRUE(drained());
  scratch_pool held(with(in_group(), &pool_options::held_until_closed, true));
  {
    graph const source = captured([&](cudaStream_t on) { use_scratch(held, on, 1); });
  }
  expect_no_park({"that is held until closed", "close the pool"});
  graph const source = captured([&](cudaStream_t on) { use_scratch(held, on, 1); });
  EXPECT_TRUE(held.close_for(generous).empty());
  EXPECT_TRUE(drained());
  group->park();
  group->unpark();
}

TEST_F(GroupParkRefusals, IsRefusedInsideOfARunAndTwice) {
  graph_exec decode(captured_use(1));
  group->run(two, [&] {
    expect_error<usage_error>([&] { return group->park(); },
                              {"sharing_group::park", "this thread is inside"});
    expect_error<usage_error>([&] { return group->unpark(); },
                              {"sharing_group::unpark", "this thread is inside"});
  });
  expect_error<usage_error>([&] { return group->unpark(); },
                            {"group_park_refusals_test.cpp", "sharing_group::unpark",
                             "\"batches\" is not parked", "park() it"});
  group->park();
  expect_error<usage_error>([&] { return group->park(); },
                            {"group_park_refusals_test.cpp", "sharing_group::park",
                             "the sharing group \"batches\" is parked", "unpark() it first"});
  group->unpark();
}

// While it is parked.

TEST_F(GroupParkRefusals, RefusesWhatNeedsItsMemory) {
  graph const source = captured_use(1);
  graph const other = captured_use(1, 2);
  graph_exec exec(source);
  exec_set switched;
  exec_set::member const first = switched.add(captured_use(1, 3));
  exec_set::member const second = switched.add(captured_use(1, 4));
  stream_launcher launcher(graph_exec(source), two);
  owned_graph plain = captured_plainly([&](cudaStream_t on) { use_scratch(scratch(), on, 5); });
  hoisted off = hoist(plain.get());
  off.launch(two, [] {});
  graph mixed = captured_use(1, 6);
  graph third = captured_use(1, 7);
  node const filled = build(mixed).add(memset_node(cells.data() + 4, {.value = 1, .width = 1}));
  graph_exec changed(mixed);
  std::vector<std::string> const parked{"the sharing group \"batches\" is parked",
                                        "unpark() it first"};
  group->park();
  expect_refused({
      {"graph_exec::launch", parked, [&] { exec.launch(two); }},
      {"graph_exec::launch_many", parked, [&] { exec.launch_many(two, 3); }},
      {"graph_exec::upload", parked, [&] { exec.upload(two); }},
      {"graph_exec::update", parked, [&] { exec.update(other); }},
      {"graph_exec::graph_exec", parked, [&] { graph_exec const made(other); }},
      {"graph::clone", parked, [&] { static_cast<void>(source.clone()); }},
      {"graph::add_child", parked, [&] { graph().add_child(source); }},
      {"exec_set::launch", parked, [&] { switched.launch(first, two); }},
      {"exec_set::launch", parked, [&] { switched.launch(second, two); }},
      {"exec_set::add", parked, [&] { static_cast<void>(switched.add(std::move(third))); }},
      {"stream_launcher::launch", parked, [&] { launcher.launch(); }},
      {"set", parked,
       [&] {
         escrow::set(changed, filled, memset_node(cells.data() + 5, {.value = 1, .width = 1}));
       }},
      {"set", parked, [&] { filled.set(memset_node(cells.data() + 5, {.value = 1, .width = 1})); }},
      {"add", parked,
       [&] { build(mixed).add(memset_node(cells.data() + 5, {.value = 1, .width = 1})); }},
      {"hoist", parked, [&] { static_cast<void>(hoist(source)); }},
      {"hoisted::launch", parked, [&] { off.launch(two, [] { FAIL(); }); }},
      {"hoisted::enter", parked, [&] { off.enter(two); }},
      {"sharing_group::run", parked, [&] { group->run(two, [] { FAIL(); }); }},
      {"scratch_pool::claim", parked, [&] { static_cast<void>(captured_use(1)); }},
  });
  EXPECT_EQ(source.held().slots, 1U) << "reports work";
  use_scratch(scratch(), two, 1);  // eager, not of the arena
  graph const kept =
      captured([&](cudaStream_t on) { static_cast<void>(scratch().claim_kept(on, 8)); });
  group->unpark();
  exec.launch(two);
  exec.update(other);
  exec.launch(three);
  switched.launch(first, two);
  switched.launch(second, two);
  launcher.launch();
  off.release_after(two);
  sync_all();
}

}  // namespace
}  // namespace escrow::test
