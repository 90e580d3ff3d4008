// hoist(): a caller who instantiates and launches on his own gets bare execs, and says himself when
// what they use may go.
#include <optional>
#include <thread>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class Hoist : public hoist_test {};

TEST_F(Hoist, MakesACallersOwnCaptureBareInTwoLines) {
  cargo taken = make_cargo();
  owned_graph source = captured_plainly(taken);
  hoisted held = hoist(source);
  EXPECT_TRUE(held.is_bare());
  EXPECT_TRUE(no_user_object_is_left());
  owned_exec exec = instantiate(source);
  source.reset();
  for (int i = 0; i < 10; ++i) must(cudaGraphLaunch(exec, two));
  EXPECT_TRUE(is_kept(taken));
  held.release_after(two);
  exec.reset();
  EXPECT_TRUE(comes_back(taken));
  sync(two);
  EXPECT_EQ(cells.load(), 10);
}

TEST_F(Hoist, ReleaseAfterAStreamLetsGoOnceItsWorkIsDone) {
  cargo taken = make_cargo();
  graph const source = captured_behind_flag(taken);
  hoisted held = hoist(source);
  owned_exec const exec = instantiate(source.get());
  must(cudaGraphLaunch(exec, two));
  held.release_after(two);
  EXPECT_TRUE(stays_kept(taken));
  EXPECT_FALSE(drains_soon());
  flag.raise();
  EXPECT_TRUE(comes_back(taken)) << "neither exec nor graph hold anything";
}

TEST_F(Hoist, ReleaseAfterAStreamOutlivesStreamAndExec) {
  cargo taken = make_cargo();
  {
    graph const source = captured_behind_flag(taken);
    owned_stream const passing = make_stream();
    hoisted held = hoist(source);
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, passing));
    held.release_after(passing);
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, ReleaseAfterAnEventLetsGoOnceItIsDone) {
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
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, ReleaseLetsGoAtOnce) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  hoisted held = hoist(source);
  EXPECT_TRUE(is_kept(taken));
  held.release();
  EXPECT_TRUE(comes_back(taken)) << "the graph still holds";
}

TEST_F(Hoist, LeavesTheGraphWithoutAnything) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  hoisted held = hoist(*source);
  EXPECT_EQ(source->held().slots, 0U);
  EXPECT_EQ(source->held().owners, 0U);
  EXPECT_EQ(held.held().slots, 1U);
  EXPECT_EQ(held.held().owners, 1U);
  source.reset();
  EXPECT_TRUE(stays_kept(taken));
  held.release();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, AgainTakesWhatTheGraphTookUpSince) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  graph const source = captured(early);
  hoisted first = hoist(source);
  capture_into(source.get(), [&](cudaStream_t stream) { load(late, stream); });
  hoisted second = hoist(source);
  hoisted third = hoist(source);
  EXPECT_TRUE(no_user_object_is_left());
  EXPECT_EQ(second.held().slots, 1U);
  EXPECT_EQ(third.held().slots, 0U);
  third.release_after(two);
  EXPECT_TRUE(is_kept(early));
  first.release();
  EXPECT_TRUE(comes_back(early));
  EXPECT_TRUE(stays_kept(late));
  second.release();
  EXPECT_TRUE(comes_back(late));
}

TEST_F(Hoist, TakesWhatChildrenAndNamedBodiesHoldToo) {
  cargo of_child = make_cargo();
  cargo of_body = make_cargo();
  graph whole;
  cudaGraph_t const body = add_conditional(whole.get());
  capture_into(body, [&](cudaStream_t stream) { load(of_body, stream); });
  whole.add_child(captured(of_child));
  hoisted held = hoist(whole, {body});
  EXPECT_TRUE(held.is_bare());
  EXPECT_TRUE(no_user_object_is_left());
  EXPECT_EQ(held.held().slots, 2U);
  owned_exec const exec = instantiate(whole.get());
  must(cudaGraphLaunch(exec, two));
  EXPECT_TRUE(is_kept(of_child));
  EXPECT_TRUE(is_kept(of_body));
  held.release_after(two);
  EXPECT_TRUE(comes_back(of_child));
  EXPECT_TRUE(comes_back(of_body));
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(Hoist, LeavesClonesThatWereMadeEarlierWhatTheyHold) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  std::optional<graph> copy(source->clone());
  owned_graph plain_copy = test::clone(source->get());
  hoist(*source).release();
  source.reset();
  EXPECT_TRUE(stays_kept(taken));
  std::optional<graph_exec> exec(*copy);
  EXPECT_TRUE(exec->is_bare());
  copy.reset();
  exec->launch(two);
  sync(two);
  exec.reset();
  EXPECT_TRUE(stays_kept(taken)) << "the plain clone lost what it held";
  plain_copy.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, LeavesExecsThatWereMadeEarlierWhatTheyHold) {
  cargo taken = make_cargo();
  std::optional<graph> source(captured(taken));
  std::optional<graph_exec> ours(*source);
  owned_exec plain = instantiate(source->get());
  hoist(*source).release();
  source.reset();
  ours->launch(two);
  sync(two);
  ours.reset();
  EXPECT_TRUE(stays_kept(taken)) << "the plain exec lost what it held";
  must(cudaGraphLaunch(plain, two));
  sync(two);
  EXPECT_EQ(cells.load(), 2);
  plain.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, HoldsForAnExecOfOursThatIsMadeAfterwards) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  hoisted held = hoist(source);
  {
    graph_exec exec(source);
    EXPECT_TRUE(exec.is_bare());
    EXPECT_EQ(exec.held().slots, 0U);
    exec.launch(two);
  }
  EXPECT_TRUE(stays_kept(taken));
  held.release_after(two);
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, OfAPlainCloneLeavesWhatItCannotFind) {
  cargo taken = make_cargo();
  owned_graph copy = test::clone(captured(taken).get());
  hoisted held = hoist(copy);
  EXPECT_EQ(held.held().slots, 0U);
  held.release();
  EXPECT_TRUE(stays_kept(taken));
  copy.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(Hoist, OfAGraphThatHoldsNothingIsFine) {
  graph const source = captured_empty_handed();
  hoisted first = hoist(source);
  hoisted second = hoist(source);
  hoisted third = hoist(source);
  EXPECT_TRUE(first.is_bare());
  owned_event const event = make_event();
  must(cudaEventRecord(event, two));
  first.release();
  second.release_after(two);
  third.release_after(event_ref(event));
}

TEST_F(Hoist, MayBeReleasedOnAnotherThreadAndAfterItsPoolIsGone) {
  std::optional<cargo> taken(make_cargo());
  fate_ptr const fate = taken->fate;
  std::optional<graph> source(captured_behind_flag(*taken));
  hoisted held = hoist(*source);
  owned_exec exec = instantiate(source->get());
  source.reset();
  must(cudaGraphLaunch(exec, two));
  taken.reset();
  std::thread([&] { held.release_after(two); }).join();
  EXPECT_TRUE(stays_false([&] { return fate->was_destroyed() || counts.alive() == 0; }));
  flag.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(wait_until([&] { return counts.alive() == 0; }));
}

}  // namespace
}  // namespace escrow::test
