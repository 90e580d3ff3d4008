// The ends of an exec that are not plain: moved, on another thread, after the deleter; and what
// comes back is good for the next.
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class ExecEnds : public hoist_test {};

TEST_F(ExecEnds, AMovedExecHoldsAndItsSourceHoldsNothing) {
  cargo taken = make_cargo();
  std::optional<graph_exec> target;
  {
    graph_exec source(captured(taken));
    source.launch(two);
    target.emplace(std::move(source));
    EXPECT_EQ(source.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  }
  EXPECT_TRUE(stays_kept(taken)) << "the end of the moved-from exec gave back";
  target->launch(two);
  sync(two);
  EXPECT_EQ(cells.load(), 2);
  target.reset();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecEnds, AnExecMovedInFlightGivesBackAfterTheLaunch) {
  cargo taken = make_cargo();
  {
    graph_exec first(captured_behind_flag(taken));
    first.launch(two);
    graph_exec const second = std::move(first);
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecEnds, AssignmentGivesBackWhatTheTargetHeldAfterItsLaunchInFlight) {
  cargo of_target = make_cargo();
  cargo of_source = make_cargo();
  {
    graph_exec target(captured_behind_flag(of_target));
    graph_exec source(captured(of_source));
    target.launch(two);
    target = std::move(source);
    EXPECT_TRUE(stays_kept(of_target));
    EXPECT_TRUE(is_kept(of_source));
    flag.raise();
    EXPECT_TRUE(comes_back(of_target));
    EXPECT_TRUE(is_kept(of_source));
    target.launch(three);
    sync(three);
  }
  EXPECT_TRUE(comes_back(of_source));
}

TEST_F(ExecEnds, AssignmentToItselfChangesNothing) {
  cargo taken = make_cargo();
  std::optional<graph_exec> exec(captured(taken));
  graph_exec& same = *exec;
  *exec = std::move(same);
  ASSERT_NE(exec->get(), nullptr);
  expect_bare_sole_holder(exec, taken);
}

TEST_F(ExecEnds, AVectorOfExecsMayGrow) {
  std::vector<cargo> cargoes;
  std::vector<graph_exec> execs;
  for (int i = 0; i < 8; ++i) {
    cargoes.push_back(make_cargo());
    execs.emplace_back(captured(cargoes.back()));
    execs.back().launch(two);
  }
  sync(two);
  for (cargo& each : cargoes) EXPECT_TRUE(is_kept(each));
  execs.clear();
  for (cargo& each : cargoes) EXPECT_TRUE(comes_back(each));
  EXPECT_EQ(cells.load(), 8);
}

TEST_F(ExecEnds, UsingAMovedFromExecIsAnErrorThatNamesTheCall) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  graph_exec gone(source);
  graph_exec const exec = std::move(gone);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  for (std::string const& text : {
           message_of<usage_error>([&] { gone.launch(two); }),
           message_of<usage_error>([&] { gone.upload(two); }),
           message_of<usage_error>([&] { gone.update(source); }),
       }) {
    EXPECT_NE(text.find("graph_exec::"), std::string::npos) << text;
    EXPECT_NE(text.find("moved"), std::string::npos) << text;
  }
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_TRUE(is_kept(taken));
}

TEST_F(ExecEnds, AnExecMayEndOnAnotherThreadThanItWasMadeAndLaunchedOn) {
  cargo taken = make_cargo();
  graph_exec exec(captured_behind_flag(taken));
  std::thread([&] { exec.launch(two); }).join();
  std::thread([ended = std::move(exec)] {}).join();
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecEnds, AnExecMayOutliveTheThreadOnWhosePerThreadStreamItWasLaunched) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    std::thread([&] { exec.launch(cudaStreamPerThread); }).join();
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecEnds, AnExecLaunchedOnTheLegacyStreamGivesBackAfterTheLaunch) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    exec.launch(cudaStreamLegacy);
  }
  EXPECT_TRUE(stays_kept(taken));
  flag.raise();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ExecEnds, TheSlotThatComesBackServesTheNextGraph) {
  cargo taken = make_cargo();
  for (int round = 1; round <= 20; ++round) {
    taken.fate = make_fate();
    {
      graph_exec exec(captured(taken));
      exec.launch(two);
      exec.launch(three);
    }
    EXPECT_TRUE(comes_back(taken)) << "round " << round;
  }
  EXPECT_EQ(made(), 1);
  sync_all();
  EXPECT_EQ(cells.load(), 40);
}

TEST_F(ExecEnds, TheSlotThatComesBackServesAStreamAtOnce) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    exec.launch(two);
  }
  EXPECT_FALSE(taken.slot_is_back(asking));
  flag.raise();
  ASSERT_TRUE(comes_back(taken));
  for (int i = 0; i < 5; ++i) library_work(taken.pool, three, i, mismatches);
}

TEST_F(ExecEnds, AStoppedDeleterStillGetsBackWhatExecsHold) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    exec.launch(two);
    EXPECT_FALSE(worker->stop_for(std::chrono::milliseconds(20))) << "a graph owes something";
    exec.launch(three);
  }
  EXPECT_TRUE(stays_false([&] { return taken.owner_is_gone(); }));
  flag.raise();
  EXPECT_TRUE(taken.fate->wait());
  EXPECT_EQ(taken.fate->thread_name, "escrow");
  EXPECT_TRUE(wait_until([&] { return worker->stop_for({}); })) << "nothing is owed any more";
  sync_all();
  EXPECT_EQ(cells.load(), 2);
}

TEST_F(ExecEnds, AGraphMayBeInstantiatedAfterItsDeleterWasStopped) {
  cargo taken = make_cargo();
  {
    graph source = captured(taken);
    EXPECT_FALSE(worker->stop_for({}));
    graph_exec exec(source);
    source = graph();
    exec.launch(two);
    sync(two);
    EXPECT_TRUE(stays_false([&] { return taken.owner_is_gone(); }));
  }
  EXPECT_TRUE(taken.fate->wait());
  EXPECT_EQ(taken.fate->times(), 1);
}

TEST_F(ExecEnds, ADeleterThatIsGoneStillGetsBackWhatExecsHold) {
  cargo taken = make_cargo();
  {
    graph_exec exec(captured_behind_flag(taken));
    worker.reset();
    exec.launch(two);
  }
  EXPECT_TRUE(stays_false([&] { return taken.owner_is_gone(); }));
  flag.raise();
  EXPECT_TRUE(taken.fate->wait());
  EXPECT_EQ(taken.fate->thread_name, "escrow");
  EXPECT_TRUE(wait_until([&] { return taken.slot_is_back(asking); }));
}

TEST_F(ExecEnds, ThingsOfTwoDeletersInOneGraphGoBackToTheirOwn) {
  deleter_options named;
  named.thread_name = "other";
  deleter other(named);
  cargo taken = make_cargo();
  fate_ptr const fate = make_fate();
  {
    graph_exec exec(escrow::capture(one, [&](stream_ref stream) {
      load(taken, stream.get());
      other.retire(stream, probe(fate));
    }));
    EXPECT_TRUE(exec.is_bare());
    EXPECT_TRUE(no_user_object_is_left());
    exec.launch(two);
    sync(two);
    EXPECT_TRUE(stays_kept(taken));
    EXPECT_FALSE(fate->was_destroyed());
  }
  EXPECT_TRUE(comes_back(taken));
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->thread_name, "other");
}

TEST_F(ExecEnds, AnOwnerThatUsesCudaAndRetiresInItsEndIsFine) {
  fate_ptr const inner = make_fate();
  fate_ptr const outer = make_fate([&] {
    must(cudaFree(nullptr));
    worker->retire(probe(inner));
  });
  {
    graph_exec exec(escrow::capture(one, [&](stream_ref stream) {
      must(launch_tiny(stream.get()));
      worker->retire(stream, probe(outer));
    }));
    exec.launch(two);
  }
  EXPECT_TRUE(outer->wait());
  EXPECT_TRUE(inner->wait());
}

}  // namespace
}  // namespace escrow::test
