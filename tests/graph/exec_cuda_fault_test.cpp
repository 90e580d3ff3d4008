// Every CUDA call of every operation of graphs and execs fails once, with each of several errors.
#include "exec_scenarios.hpp"
#include "failing_call.hpp"

namespace escrow::test {
namespace {

// Calls of one operation; no operation has more.
constexpr std::uint64_t calls_max = 300;

// What must be as before, whatever failed. Events are kept for reuse, and counted by the test.
sim::counts balance() {
  sim::counts now = sim::alive();
  now.events = 0;
  return now;
}

// What a strong operation that failed has left as it was.
struct snapshot {
  std::vector<std::pair<std::size_t, std::size_t>> held;
  std::size_t graphs, execs, captures, streams;

  explicit snapshot(exec_world const& world) : held(holdings(world)) {
    sim::counts const now = sim::alive();
    graphs = now.graphs;
    execs = now.execs + now.execs_in_flight;
    captures = now.captures;
    streams = now.streams;
  }
  bool operator==(snapshot const&) const = default;
};

void expect_thread_as_before() {
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  int device = -1;
  must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

// Whether the operation threw; it may throw the injected error only.
bool throws(exec_scenario const& scenario, exec_world& world, cudaError_t error) {
  try {
    scenario.act(world);
    return false;
  } catch (cuda_error const& thrown) {
    EXPECT_EQ(thrown.status(), error) << thrown.what();
    return true;
  }
}

class ExecCudaFault : public testing::TestWithParam<std::tuple<exec_scenario, cudaError_t>> {
 protected:
  void TearDown() override { sim::clear_faults(); }

  // Returns how many CUDA calls the operation made with its n-th call failing.
  std::uint64_t run_one(std::uint64_t n, bool ends_in_flight) {
    auto const& [scenario, error] = GetParam();
    exec_world world;
    scenario.prepare(world);
    snapshot const before(world);
    bool threw = false;
    std::uint64_t made = 0;
    {
      failing_call const failing(n, error);
      threw = throws(scenario, world, error);
      made = failing.made();
    }
    EXPECT_FALSE(threw && n > made) << "nothing failed";
    expect_thread_as_before();
    if (threw) {
      EXPECT_TRUE(scenario.is_strong);
      EXPECT_TRUE(snapshot(world) == before) << "something has changed";
      EXPECT_NO_THROW(scenario.act(world)) << "it cannot be tried again";
    }
    if (ends_in_flight) {
      expect_end_in_flight(world);
    } else {
      expect_end_with_the_graph(world);
    }
    return made;
  }
};

TEST_P(ExecCudaFault, ChangesNothingLeaksNothingAndFreesNothingEarly) {
  static_cast<void>(run_one(calls_max, true));  // fills the caches of events and streams
  sim::counts const before = balance();
  std::size_t const events = sim::alive().events;
  for (bool const ends_in_flight : {true, false}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      ASSERT_LT(n, calls_max) << "the operation has no end";
      bool const is_last = run_one(n, ends_in_flight) < n;
      sim::run_until_idle();
      EXPECT_EQ(balance(), before);
      if (HasFailure()) return;
      if (is_last) break;
    }
  }
  EXPECT_LE(sim::alive().events, events + 4);
  EXPECT_EQ(sim::calls_in_callbacks(), 0u);
}

std::string name_of(testing::TestParamInfo<std::tuple<exec_scenario, cudaError_t>> const& info) {
  return std::string{std::get<0>(info.param).name} + "_" +
         cudaGetErrorName(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Every, ExecCudaFault,
                         testing::Combine(testing::ValuesIn(exec_scenarios()),
                                          testing::Values(cudaErrorMemoryAllocation,
                                                          cudaErrorInvalidValue, cudaErrorUnknown)),
                         name_of);

}  // namespace
}  // namespace escrow::test
