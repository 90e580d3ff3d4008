// The end of the process with execs, hoisted references and launches that were not ended: nothing
// hangs, nothing crashes.
#include <escrow/graph.hpp>
#include <optional>

#include "../pool/capture_fixture.hpp"
#include "build_graph.hpp"
#include "child.hpp"
#include "owners.hpp"

namespace escrow::test {
namespace {

constexpr std::uint64_t a_while = 20'000;  // microseconds, longer than the process goes on

// A graph that runs for a while and holds a slot of a static pool and an owner, all of the global
// deleter, which nobody ends.
graph slow_graph(cudaStream_t stream) {
  static tally& counts = *new tally;  // slots may come back at the very end
  static block_pool pool(pool_options{.slots_max = 4}, [] { return block{counts}; });
  return escrow::capture(stream, [&](stream_ref on) {
    block_lease held = pool.claim(on);
    must(launch_sleep(on.get(), a_while));
    fill(held, on.get(), 1);
    deleter::global().retire(on, probe(make_fate()));
  });
}

int leave_static_execs_in_flight() {
  static owned_stream stream = make_stream();
  static graph source = slow_graph(stream);
  static graph_exec first(source);
  static graph_exec second(source.clone());
  first.launch(stream);
  second.launch(stream);
  return 0;
}
child_case const static_execs("static_execs_in_flight", &leave_static_execs_in_flight);

int leave_launches_of_execs_that_ended() {
  static owned_stream stream = make_stream();
  graph const source = slow_graph(stream);
  for (int i = 0; i < 3; ++i) {
    graph_exec exec(source);
    exec.launch(stream);
  }
  return 0;
}
child_case const ended_execs("ended_execs_in_flight", &leave_launches_of_execs_that_ended);

int leave_leaked_execs() {
  static auto& stream = *new owned_stream(make_stream());
  static auto& exec = *new graph_exec(slow_graph(stream));
  exec.launch(stream);
  return 0;
}
child_case const leaked_execs("leaked_execs", &leave_leaked_execs);

int leave_hoisted_references() {
  static owned_stream stream = make_stream();
  static graph source = slow_graph(stream);
  static hoisted kept = hoist(source);
  static owned_exec exec = instantiate(source.get());
  must(cudaGraphLaunch(exec, stream));
  static graph other = slow_graph(stream);
  hoist(other).release_after(stream_ref(stream));
  return 0;
}
child_case const hoisted_references("hoisted_references", &leave_hoisted_references);

int drain_behind_an_exec() {
  // A static that drains in its destructor, behind an exec whose launch may still run.
  struct drains {
    ~drains() { static_cast<void>(deleter::global().drain_for(std::chrono::seconds{1})); }
  };
  static drains const last;
  return leave_static_execs_in_flight();
}
child_case const drains("drains_behind_an_exec", &drain_behind_an_exec);

void expect_clean_end(char const* name) {
  child_result const result = run_child(name);
  EXPECT_TRUE(result.exited) << result.output;
  EXPECT_EQ(result.status, 0) << result.output;
}

TEST(ExecExit, IsCleanWithStaticExecsInFlight) {
  expect_clean_end("static_execs_in_flight");
}
TEST(ExecExit, IsCleanWithLaunchesOfExecsThatEnded) {
  expect_clean_end("ended_execs_in_flight");
}
TEST(ExecExit, IsCleanWithExecsThatNobodyEnds) {
  expect_clean_end("leaked_execs");
}
TEST(ExecExit, IsCleanWithHoistedReferences) {
  expect_clean_end("hoisted_references");
}
TEST(ExecExit, IsCleanIfAStaticDrainsBehindAnExec) {
  expect_clean_end("drains_behind_an_exec");
}

}  // namespace
}  // namespace escrow::test
