// How long owners live that graphs hold, and deleters that are destroyed before what they owe.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

class RetireInCapture : public world, public testing::WithParamInterface<cudaStreamCaptureMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, RetireInCapture, testing::ValuesIn(all_capture_modes));

TEST_P(RetireInCapture, AddsNoNodeAndKeepsTheOwnerUntilTheGraphItsCopiesAndExecsAreDestroyed) {
  auto const fate = make_fate();
  test::capture open(one, GetParam());
  must(launch_tiny(one));
  retire(one, fate);
  must(launch_tiny(one));
  must(open.end());
  owned_graph& graph = open.graph();
  EXPECT_EQ(node_count(graph), 2U);
  EXPECT_EQ(edge_count(graph), 1U);
  EXPECT_EQ(worker->stats().in_graphs, 1U);
  owned_graph copy = clone(graph);
  owned_graph parent = make_graph();
  add_child(parent, graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  EXPECT_TRUE(is_kept(fate));
  exec.reset();
  EXPECT_TRUE(is_kept(fate)) << "the clone has it";
  exec = instantiate(copy);
  copy.reset();
  EXPECT_TRUE(is_kept(fate));
  exec.reset();
  EXPECT_TRUE(is_kept(fate)) << "the child node has it";
  exec = instantiate(parent);
  parent.reset();
  EXPECT_TRUE(is_kept(fate));
  exec.reset();
  EXPECT_TRUE(is_released(fate));
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
}

TEST_P(RetireInCapture, IsEagerOnStreamsThatDoNotCapture) {
  auto const after_stream = make_fate();
  auto const at_once = make_fate();
  test::capture open(one, GetParam());
  retire(two, after_stream);
  worker->retire(probe(at_once));
  EXPECT_TRUE(is_released(after_stream));
  EXPECT_TRUE(is_released(at_once));
  EXPECT_EQ(open.end(), cudaSuccess) << "the worker harmed the capture";
}

TEST_P(RetireInCapture, ReleasesTheOwnerWhenAnInvalidatedCaptureEnds) {
  auto const fate = make_fate();
  test::capture open(one, GetParam());
  retire(one, fate);
  ASSERT_NE(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(is_kept(fate));
  ASSERT_NE(open.end(), cudaSuccess);
  EXPECT_TRUE(is_released(fate));
}

// Deleters that are destroyed, with a worker and without one: a worker then goes on by itself.
class Lifetime : public world, public testing::WithParamInterface<bool> {
 protected:
  std::optional<deleter> its{std::in_place, deleter_options{.own_worker = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Worker, Lifetime, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(Lifetime, ADestroyedDeleterReclaimsWhatIsPending) {
  auto const after_work = make_fate();
  auto const at_once = make_fate();
  hold_up(one);
  its->retire(one, probe(after_work));
  EXPECT_FALSE(its->drain_for(std::chrono::milliseconds(1)));
  its->retire(probe(at_once));
  its.reset();  // returns although the kernel runs
  EXPECT_TRUE(is_released(at_once));
  EXPECT_TRUE(stays_kept(after_work));
  flag.raise();
  EXPECT_TRUE(is_released(after_work));
}

TEST_P(Lifetime, ADestroyedDeleterReclaimsWhatGraphsHold) {
  auto const of_exec = make_fate();
  auto const of_graph = make_fate();
  owned_graph graph = chain({wait_flag_call(flag.get())});
  its->retire(graph.get(), probe(of_exec));
  owned_exec exec = instantiate(graph);
  its->retire(graph.get(), probe(of_graph));
  must(cudaGraphLaunch(exec, one));
  its.reset();
  EXPECT_TRUE(stays_kept(of_graph));
  graph.reset();
  EXPECT_TRUE(is_released(of_graph));
  exec.reset();
  EXPECT_TRUE(stays_kept(of_exec)) << "its launch is in flight";
  flag.raise();
  EXPECT_TRUE(is_released(of_exec));
  EXPECT_EQ(of_exec->mode, cudaStreamCaptureModeRelaxed);
}

// How often threads of this name went to sleep, or -1 if there is none.
long switches_of(std::string const& name) {
  long result = -1;
  for (auto const& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    if (comm != name) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) {
        result = std::max(result, 0L) + count;
      }
    }
  }
  return result;
}

// A worker that looks every 400 us would wake 250 times in stays_false()'s time.
bool is_at_rest(std::string const& name) {
  constexpr long few = 10;
  return wait_until([&] {
    long const before = switches_of(name);
    static_cast<void>(stays_false([] { return false; }));
    return before >= 0 && switches_of(name) - before < few;
  });
}
bool has_ended(std::string const& name) {
  return wait_until([&] { return switches_of(name) < 0; });
}

TEST(Rest, AWorkerSleepsWhileNothingIsPendingOrGraphsHoldAllAndEndsAfterItsDeleterAndThoseGraphs) {
  auto const fate = make_fate();
  owned_graph graph = tiny_graph();
  {
    deleter its(deleter_options{.thread_name = "rests"});
    its.retire(probe(make_fate()));
    its.drain();
    EXPECT_TRUE(is_at_rest("rests"));
    its.retire(graph.get(), probe(fate));
    EXPECT_TRUE(is_at_rest("rests"));
  }
  EXPECT_TRUE(is_at_rest("rests"));
  EXPECT_FALSE(fate->was_destroyed());
  graph.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(has_ended("rests"));
}

}  // namespace
}  // namespace escrow::test
