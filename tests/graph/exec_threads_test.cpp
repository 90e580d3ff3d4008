// Execs that share something, launched from several threads at the same time: no two use it at the
// same time, and no thread waits without end.
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

using execs = std::vector<graph_exec>;

/// Execs of graphs of two slots.
struct sharing {
  char const* name;
  execs (*make)(graph const& x, graph const& y);
  int launches;            // of each exec
  int runs_x, runs_y = 0;  // of all of them together

  friend void PrintTo(sharing const& each, std::ostream* out) { *out << each.name; }
};

graph sequence(graph const& first, graph const& second) {
  graph both;
  both.add_child(first);
  both.add_child(second);
  return both;
}
template <class... Sources>
execs execs_of(Sources const&... sources) {
  execs made;
  (made.emplace_back(sources), ...);
  return made;
}

class SharingExecs : public world {
 protected:
  // Uses the cargo, and finds out whether it is alone in doing so: `room` has a number that is 0
  // while nothing runs in it.
  [[nodiscard]] graph captured_alone(cargo& taken, std::size_t room) {
    int* const inside = rooms_.data() + room;
    return captured([&](cudaStream_t on) {
      must(launch_add(on, inside, 1));
      load(taken, on);
      must(launch_sleep(on, 20));  // long enough for another to begin
      must(launch_check(on, inside, 1, 1, mismatches.data()));
      must(launch_add(on, inside, -1));
      must(launch_add(on, cells.data() + room, 1));
    });
  }
  // Each exec from a thread of its own, on a stream of its own.
  static void launch_from_threads(execs& launched, int launches) {
    std::vector<owned_stream> streams;
    for (std::size_t i = 0; i < launched.size(); ++i) streams.push_back(make_stream());
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < launched.size(); ++i) {
        threads.emplace_back([&exec = launched[i], &stream = streams[i], launches] {
          for (int n = 0; n < launches; ++n) exec.launch(stream);
        });
      }
    }
    for (owned_stream const& each : streams) sync(each);
  }

 private:
  device_ints rooms_{2};
};

class ExecThreads : public SharingExecs, public testing::WithParamInterface<sharing> {};

INSTANTIATE_TEST_SUITE_P(
    Sharing, ExecThreads,
    testing::Values(sharing{"AGraph", [](graph const& x, graph const&) { return execs_of(x, x); },
                            500, 1000},
                    sharing{"AGraphItsCloneItsParentAndItsParentsClone",
                            [](graph const& x, graph const&) {
                              graph parent;
                              parent.add_child(x);
                              return execs_of(x, x.clone(), parent, parent.clone());
                            },
                            250, 1000},
                    sharing{"Crosswise",
                            [](graph const& x, graph const& y) {
                              return execs_of(sequence(x, y), sequence(y, x), x, y);
                            },
                            300, 900, 900}),
    [](auto const& each) { return std::string(each.param.name); });

TEST_P(ExecThreads, LaunchExecsWhichDoNotOverlapAndAllEnd) {
  cargo of_x = make_cargo();
  cargo of_y = make_cargo();
  execs launched = GetParam().make(captured_alone(of_x, 0), captured_alone(of_y, 1));
  launch_from_threads(launched, GetParam().launches);
  EXPECT_EQ(cells.load(0), GetParam().runs_x);
  EXPECT_EQ(cells.load(1), GetParam().runs_y);
}

TEST_F(SharingExecs, MayBeMadeAndDestroyedWhileAnotherThreadLaunchesOne) {
  cargo taken = make_cargo();
  graph const source = captured_alone(taken, 0);
  graph const copy = source.clone();
  graph_exec steady(source);
  {
    std::jthread const launching([&] {
      for (int i = 0; i < 500; ++i) steady.launch(two);
    });
    for (int i = 0; i < 200; ++i) {
      graph_exec passing(copy);
      passing.launch(three);
    }
  }
  sync_all();
  EXPECT_EQ(cells.load(0), 700);
}

}  // namespace
}  // namespace escrow::test
