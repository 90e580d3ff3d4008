// Execs that share something, launched from several threads at once: the results are right, and
// nobody waits for ever.
#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class ExecTurns : public hoist_test {
 protected:
  // A graph that uses the cargo, and finds out whether it is alone in doing so: `room` names a
  // number that is 0 while nobody is at it.
  [[nodiscard]] graph captured_alone(cargo& taken, std::size_t room) {
    int* const inside = rooms_.data() + room;
    return escrow::capture(one, [&](stream_ref stream) {
      must(launch_add(stream.get(), inside, 1));
      load(taken, stream.get());
      must(launch_sleep(stream.get(), 20));  // long enough for another to come in
      must(launch_check(stream.get(), inside, 1, 1, mismatches.data()));
      must(launch_add(stream.get(), inside, -1));
      must(launch_add(stream.get(), cells.data() + room, 1));
    });
  }
  [[nodiscard]] static graph sequence(graph const& first, graph const& second) {
    graph both;
    both.add_child(first);
    both.add_child(second);
    return both;
  }
  // Each of the execs is launched from a thread of its own, on a stream of its own.
  void launch_from_threads(std::vector<graph_exec>& execs, int launches) {
    std::vector<owned_stream> streams;
    for (std::size_t i = 0; i < execs.size(); ++i) streams.push_back(make_stream());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < execs.size(); ++i) {
      threads.emplace_back([&exec = execs[i], &stream = streams[i], launches] {
        for (int n = 0; n < launches; ++n) exec.launch(stream);
      });
    }
    for (std::thread& each : threads) each.join();
    for (owned_stream const& each : streams) sync(each);
  }

 private:
  device_ints rooms_{4};
};

TEST_F(ExecTurns, TwoExecsOfOneGraphLaunchedFromTwoThreadsAreNeverAtItTogether) {
  cargo taken = make_cargo();
  graph const source = captured_alone(taken, 0);
  std::vector<graph_exec> execs;
  execs.emplace_back(source);
  execs.emplace_back(source);
  launch_from_threads(execs, 1000);
  EXPECT_EQ(cells.load(0), 2000);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ExecTurns, AGraphItsCloneItsParentAndItsParentsCloneFromFourThreads) {
  cargo taken = make_cargo();
  graph const source = captured_alone(taken, 0);
  graph parent;
  parent.add_child(source);
  std::vector<graph_exec> execs;
  execs.emplace_back(source);
  execs.emplace_back(source.clone());
  execs.emplace_back(parent);
  execs.emplace_back(parent.clone());
  launch_from_threads(execs, 250);
  EXPECT_EQ(cells.load(0), 1000);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ExecTurns, ExecsThatShareCrosswiseDoNotWaitForEachOtherForEver) {
  cargo x = make_cargo();
  cargo y = make_cargo();
  graph const of_x = captured_alone(x, 0);
  graph const of_y = captured_alone(y, 1);
  std::vector<graph_exec> execs;
  execs.emplace_back(sequence(of_x, of_y));
  execs.emplace_back(sequence(of_y, of_x));
  execs.emplace_back(of_x);
  execs.emplace_back(of_y);
  launch_from_threads(execs, 300);
  EXPECT_EQ(cells.load(0), 900);
  EXPECT_EQ(cells.load(1), 900);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ExecTurns, AChainOfPartlySharingExecsIsAloneInEachRoom) {
  std::array<cargo, 3> taken{make_cargo(), make_cargo(), make_cargo()};
  graph const a = captured_alone(taken[0], 0);
  graph const b = captured_alone(taken[1], 1);
  graph const c = captured_alone(taken[2], 2);
  std::vector<graph_exec> execs;
  execs.emplace_back(sequence(a, b));
  execs.emplace_back(sequence(b, c));
  execs.emplace_back(sequence(c, a));
  launch_from_threads(execs, 300);
  for (std::size_t room = 0; room < 3; ++room) EXPECT_EQ(cells.load(room), 600);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ExecTurns, OneThreadLaunchingTwoExecsOnManyStreamsIsFine) {
  cargo taken = make_cargo();
  graph const source = captured_alone(taken, 0);
  std::array<graph_exec, 2> execs{graph_exec(source), graph_exec(source)};
  std::array<cudaStream_t, 3> const streams{one, two, three};
  for (std::size_t i = 0; i < 1000; ++i) execs[(i / 2) % 2].launch(streams[i % 3]);
  sync_all();
  EXPECT_EQ(cells.load(0), 1000);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_F(ExecTurns, ExecsMadeAndEndedWhileAnotherThreadLaunchesTakeTheirTurns) {
  cargo taken = make_cargo();
  graph const source = captured_alone(taken, 0);
  graph const copy = source.clone();
  graph_exec steady(source);
  std::thread launching([&] {
    for (int i = 0; i < 500; ++i) steady.launch(two);
  });
  for (int i = 0; i < 200; ++i) {
    graph_exec passing(copy);
    passing.launch(three);
  }
  launching.join();
  sync_all();
  EXPECT_EQ(cells.load(0), 700);
  EXPECT_EQ(mismatches.load(), 0);
}

}  // namespace
}  // namespace escrow::test
