// SPDX-License-Identifier: Apache-2.0
// hoist(): callers who instantiate and launch with plain calls get bare execs, and say themselves
// when what these use may be released. And what happens if they do not, or twice.
#include <escrow/nodes.hpp>
#include <stdexcept>

#include "world.hpp"

namespace escrow::test {
namespace {

class Hoist : public world {};

TEST_F(Hoist, MakesExecsOfAPlainCaptureBareInTwoLines) {
  cargo taken = make_cargo();
  owned_graph source = captured_plainly(taken);
  hoisted held = hoist(source);
  EXPECT_TRUE(held.is_bare());
  EXPECT_TRUE(has_no_user_object());
  owned_exec exec = instantiate(source);
  source.reset();
  for (int i = 0; i < 10; ++i) must(cudaGraphLaunch(exec, two));
  EXPECT_TRUE(is_kept(taken));
  held.release_after(two);
  exec.reset();
  EXPECT_TRUE(is_released(taken));
  sync(two);
  EXPECT_EQ(cells.load(), 10);
}

// Stream, exec, graph and pool may be destroyed meanwhile.
TEST_F(Hoist, ReleaseAfterAStreamReleasesOnceItsWorkIsDone) {
  std::optional<cargo> taken(make_cargo());
  fate_ptr const fate = taken->fate;
  {
    graph const source = captured_behind_flag(*taken);
    owned_stream const passing = make_stream();
    hoisted held = hoist(source);
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, passing));
    taken.reset();
    std::thread([&] { held.release_after(passing.get()); }).join();
  }
  EXPECT_TRUE(stays_false([&] { return fate->was_destroyed() || counts.alive() == 0; }));
  EXPECT_FALSE(drains_soon());
  flag.raise();
  EXPECT_TRUE(is_released(fate));
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

TEST_F(Hoist, ReleaseAfterAnEventReleasesOnceItIsDone) {
  cargo taken = make_cargo();
  owned_event const last_use = make_event();
  graph const source = captured_behind_flag(taken);
  hoisted held = hoist(source);
  owned_exec const exec = instantiate(source.get());
  must(cudaGraphLaunch(exec, two));
  must(cudaEventRecord(last_use, two));
  held.release_after(event_ref(last_use));
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(is_released(taken)) << "exec or graph still hold something";
}

TEST_F(Hoist, AgainTakesWhatWasCapturedIntoTheGraphSince) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  graph const source = captured(early);
  hoisted first = hoist(source);
  EXPECT_EQ(source.held().slots, 0U);
  EXPECT_EQ(first.held().slots, 1U);
  capture_into(source.get(), [&](cudaStream_t on) { load(late, on); });
  hoisted second = hoist(source);
  EXPECT_THROW(static_cast<void>(hoist(source)), usage_error);
  EXPECT_TRUE(has_no_user_object());
  EXPECT_EQ(second.held().slots, 1U);
  EXPECT_TRUE(is_kept(early));
  first.release();
  EXPECT_TRUE(is_released(early));
  EXPECT_TRUE(stays_kept(late));
  second.release();
  EXPECT_TRUE(is_released(late));
}

// The capture id is the lease's.
TEST_F(Hoist, OfAGraphThatIsCapturedIntoAgainLetsThatHoldTheSlotOfALeaseFromBefore) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held;
  owned_graph source = captured_plainly([&](cudaStream_t on) {
    held.emplace(pool.claim(on));
    fill(*held, on, 1);
  });
  hoist(source).release();
  capture_into(source, [&](cudaStream_t on) {
    fill(*held, on, 2);
    held.reset();
  });
  owned_exec exec = instantiate(source);
  source.reset();
  EXPECT_TRUE(stays_kept(pool));
  must(cudaGraphLaunch(exec, two));
  sync(two);
  exec.reset();
  EXPECT_TRUE(is_released(pool));
}

// The exec keeps the user object, so the set is not off all graphs.
TEST_F(Hoist, OfAGraphWithAPlainExecGivesItsSlotToNoLaterCaptureIntoTheGraph) {
  block_pool pool = make_pool(1);
  owned_graph const source = captured_plainly([&](cudaStream_t on) { use(pool, on); });
  owned_exec const exec = instantiate(source);
  hoist(source).release();
  capture_into(source, [&](cudaStream_t on) {
    EXPECT_FALSE(pool.try_claim(on)) << "the graph does not hold it";
  });
}

TEST_F(Hoist, OfACloneLeavesTheGraphItsSlotAlsoForALeaseThatIsUsedInALaterCapture) {
  scratch_pool pool(options(1));
  block_pool blocks = make_pool(1);
  std::optional<buffer_lease<int>> held;
  graph const source = captured([&](cudaStream_t on) {
    held.emplace(pool.claim<int>(stream_ref(on), 1));
    use(blocks, on);
  });
  hoist(source.clone()).release();
  capture_into(source.get(), [&](cudaStream_t on) {
    EXPECT_TRUE(blocks.try_claim(on)) << "the graph does not use its slot again";
    EXPECT_NO_THROW(launch(on, function_of<int*, int>(kernel_id::add), {}, *held, 1));
    held.reset();
  });
  run(source);
}

TEST_F(Hoist, TakesWhatChildrenAndNamedBodiesHoldToo) {
  cargo of_child = make_cargo();
  cargo of_body = make_cargo();
  graph whole;
  cudaGraph_t const body = add_conditional(whole.get());
  capture_into(body, [&](cudaStream_t on) { load(of_body, on); });
  whole.add_child(captured(of_child));
  hoisted held = hoist(whole, {body});
  EXPECT_TRUE(held.is_bare());
  EXPECT_TRUE(has_no_user_object());
  EXPECT_EQ(held.held().slots, 2U);
  owned_exec const exec = instantiate(whole.get());
  must(cudaGraphLaunch(exec, two));
  EXPECT_TRUE(is_kept(of_child));
  EXPECT_TRUE(is_kept(of_body));
  held.release_after(two);
  EXPECT_TRUE(is_released(of_child));
  EXPECT_TRUE(is_released(of_body));
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(Hoist, MisuseIsAnErrorThatNamesTheCall) {
  cargo taken = make_cargo();
  cargo other = make_cargo();
  owned_event const event = make_event();
  must(cudaEventRecord(event, two));
  hoisted released = hoist(captured(taken));
  released.release();
  graph const source = captured(other);
  hoisted moved = hoist(source);
  cargo of_plain = make_cargo();
  owned_graph const plain = captured_plainly(of_plain);
  hoist(plain).release();
  hoisted held = std::move(moved);
  test::capture open{three, cudaStreamCaptureModeThreadLocal};
  // NOLINTBEGIN(bugprone-use-after-move): that is tested
  expect_refused({
      {"hoisted::release", {"released"}, [&] { released.release(); }},
      {"hoisted::release_after", {"released"}, [&] { released.release_after(two); }},
      {"hoisted::release_after", {"released"}, [&] { released.release_after(event_ref(event)); }},
      {"hoisted::release_after", {"moved"}, [&] { moved.release_after(two); }},
      {"hoisted::release_after", {"stream"}, [&] { held.release_after(three); }},
      {"hoisted::release_at_end", {"released"}, [&] { released.release_at_end(two); }},
      {"hoist", {"hoisted before, and holds nothing new"}, [&] { hoist(source).release(); }},
      {"hoist", {"keep the first `hoisted`"}, [&] { hoist(source.get()).release(); }},
      {"hoist", {"hoisted before"}, [&] { hoist(plain).release(); }},
  });
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(is_kept(other)) << "what fails releases nothing";
  held.release_after(two);
  EXPECT_TRUE(is_released(other));
}

TEST_F(Hoist, WithoutAReleaseLeaksWhatIsHeldAndReportsThat) {
  cargo assigned_over = make_cargo();
  cargo destroyed = make_cargo();
  errors_expected = true;
  {
    hoisted held = hoist(captured(assigned_over));
    held = hoist(captured(destroyed));
    EXPECT_EQ(worker->stats().leaked, 1U);
    EXPECT_TRUE(is_kept(destroyed));
  }
  lost = 2;
  owed = 4;  // a slot and an owner each
  EXPECT_EQ(worker->stats().leaked, 2U);
  EXPECT_EQ(errors->size(), 2U) << errors->all();
  EXPECT_NE(errors->all().find("hoisted"), std::string::npos) << errors->all();
  EXPECT_NE(errors->all().find("release"), std::string::npos) << errors->all();
  EXPECT_TRUE(stays_kept(assigned_over));
  EXPECT_TRUE(is_kept(destroyed));
}

TEST_F(Hoist, ReleaseAtEndLeaksNothingIfAnExceptionEndsItBeforeTheInstantiation) {
  cargo taken = make_cargo();
  owned_graph const source = captured_plainly(taken);
  auto const instantiate_after_a_failure = [&] {
    hoisted held = hoist(source);
    held.release_at_end(two);
    throw std::runtime_error("the caller's");
  };
  EXPECT_THROW(instantiate_after_a_failure(), std::runtime_error);
  EXPECT_TRUE(is_released(taken));
  EXPECT_EQ(worker->stats().leaked, 0U);
  EXPECT_THROW(hoist(source).release(), usage_error) << "what the graph uses was released";
}

TEST_F(Hoist, ReleaseAtEndReleasesAfterTheLaunchesIfAnExceptionEndsItAmongThem) {
  cargo taken = make_cargo();
  graph const source = captured_behind_flag(taken);
  owned_exec exec;
  auto const launch_and_fail = [&] {
    hoisted held = hoist(source);
    held.release_at_end(two);
    exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    throw std::runtime_error("the caller's");
  };
  EXPECT_THROW(launch_and_fail(), std::runtime_error);
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(is_released(taken));
  EXPECT_EQ(worker->stats().leaked, 0U);
}

TEST_F(Hoist, ReleaseAtEndOnACapturingStreamLeaksAndReportsThat) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  errors_expected = true;
  test::capture open{three, cudaStreamCaptureModeThreadLocal};
  {
    hoisted held = hoist(source);
    held.release_at_end(three);
  }
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_NE(errors->all().find("`stream` is being captured"), std::string::npos) << errors->all();
  EXPECT_EQ(worker->stats().leaked, 1U);
  lost = 1;
  owed = 2;  // a slot and an owner
  EXPECT_TRUE(stays_kept(taken));
}

TEST_F(Hoist, WithoutAReleaseOfNothingLeaksNothing) {
  graph const source = captured_without_cargo();
  EXPECT_TRUE(hoist(source).is_bare());
  EXPECT_EQ(errors->size(), 0U);
  EXPECT_EQ(worker->stats().leaked, 0U);
  hoist(source).release();
  hoist(source).release_after(two);
}

TEST_F(Hoist, OnceReleasedItsGraphIsRefusedAlsoIfOthersHaveItsHandle) {
  scratch_pool scratch(options(4));
  graph const source = captured(
      [&](cudaStream_t on) { must(launch_add(on, scratch.claim<int>(on, 64).data(), 1)); });
  hoisted held = hoist(source);
  owned_exec const exec = instantiate(source.get());
  held.launch(one, [&] { return cudaGraphLaunch(exec, one); });
  sync(one);
  held.release();
  expect_error<usage_error>([&] { graph_exec const late(source); },
                            {"has released what the graph uses"});
}

}  // namespace
}  // namespace escrow::test
