// What claims in a capture ask of CUDA, and how many slots the graph holds in the end.
#include <escrow/sim.hpp>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

/// The calls of CUDA while `run` runs, by name.
template <class Run>
std::map<std::string, std::size_t> calls_of(Run run) {
  sim::start_recording();
  run();
  std::map<std::string, std::size_t> result;
  for (auto const& call : sim::stop_recording()) ++result[call.api];
  return result;
}

std::size_t sum(std::map<std::string, std::size_t> const& calls) {
  return std::accumulate(calls.begin(), calls.end(), std::size_t{0},
                         [](std::size_t total, auto const& each) { return total + each.second; });
}

class CapturedCalls : public captured_pool_test {
 protected:
  // The common case: what was released at the nodes that the stream stands on.
  void expect_few_calls(block_pool& pool, cudaStream_t at) {
    std::optional<block_lease> held;
    auto const claim = calls_of([&] { held.emplace(pool.claim(at)); });
    must(launch_tiny(at));
    auto const release = calls_of([&] { held.reset(); });
    EXPECT_LE(sum(claim), 2u);
    EXPECT_LE(claim.at("cudaStreamGetCaptureInfo"), 1u);
    EXPECT_LE(claim.at("cudaGraphNodeGetDependencies"), 1u);
    EXPECT_LE(sum(release), 2u);
    EXPECT_LE(release.at("cudaStreamGetCaptureInfo"), 1u);
    EXPECT_LE(release.at("cudaGraphNodeGetDependencies"), 1u);
  }

  owned_stream stream = make_stream();
};

TEST_F(CapturedCalls, AreFewWhereTheStreamStandsWhereTheSlotWasReleased) {
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  library_work(pool, stream, 1, mismatches);
  for (int i = 0; i < 50; ++i) expect_few_calls(pool, stream);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
}

TEST_F(CapturedCalls, AreFewOnManyBranchesInTurn) {
  constexpr std::size_t width = 16;
  std::vector<owned_stream> branches(width);
  block_pool pool = make_pool(64);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  for (owned_stream& branch : branches) {
    branch = make_stream();
    order(stream, branch);
  }
  for (owned_stream const& branch : branches) library_work(pool, branch, 1, mismatches);
  for (int i = 0; i < 20; ++i) {
    for (owned_stream const& branch : branches) expect_few_calls(pool, branch);
  }
  EXPECT_EQ(pool.stats().in_graphs, width);
  for (owned_stream const& branch : branches) order(branch, stream);
}

TEST_F(CapturedCalls, AreFewWhileManyExecsAwaitTheirLaunches) {
  pinned_flag flag;
  deleter polled{deleter_options{.own_worker = false}};
  pool_options chosen = options(64);
  chosen.deleter = &polled;
  std::optional<block_pool> pool = make_pool(chosen);
  std::vector<owned_stream> streams(8);
  for (owned_stream& each : streams) {
    each = make_stream();
    capture captured{each, cudaStreamCaptureModeGlobal};
    library_work(*pool, each, 1, mismatches);
    must(launch_wait_flag(each, flag.get()));
    must(captured.end());
    owned_exec const exec = instantiate(captured.graph());
    must(cudaGraphLaunch(exec, each));
  }
  {
    capture captured{stream, cudaStreamCaptureModeGlobal};
    library_work(*pool, stream, 1, mismatches);
    for (int i = 0; i < 5; ++i) expect_few_calls(*pool, stream);
  }
  flag.raise();
  for (owned_stream const& each : streams) sync(each);
  pool.reset();
  EXPECT_TRUE(polled.drain_for(generous));
}

TEST_F(CapturedCalls, AGraphOfManyNodesHoldsAsManySlotsAsItsWidestMoment) {
  device_ints const memory{1};
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  library_work(pool, stream, 1, mismatches);
  for (int i = 0; i < 5'000; ++i) must(cudaMemsetAsync(memory.data(), 0, sizeof(int), stream));
  library_work(pool, stream, 2, mismatches);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
}

TEST_F(CapturedCalls, BesideASlotOfAnotherBranchTheGraphIsWalkedOnce) {
  constexpr std::size_t length = 3'000;
  device_ints const memory{1};
  owned_stream const branch = make_stream();
  block_pool pool = make_pool(64);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream));
  order(stream, branch);
  library_work(pool, branch, 1, mismatches);
  for (std::size_t i = 0; i < length; ++i)
    must(cudaMemsetAsync(memory.data(), 0, sizeof(int), stream));
  std::vector<block_lease> held;
  auto const calls = calls_of([&] {
    for (int i = 0; i < 20; ++i) {
      held.push_back(pool.claim(stream));
      must(cudaMemsetAsync(memory.data(), 0, sizeof(int), stream));
    }
  });
  EXPECT_LE(calls.at("cudaGraphNodeGetDependencies"), length + 100);
  held.clear();
  order(branch, stream);
}

TEST_F(CapturedCalls, AreNoMoreAfterManyClaims) {
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  for (int i = 0; i < 16'384; ++i) {
    block_lease const held = pool.claim(stream);
    must(launch_tiny(stream));
  }
  expect_few_calls(pool, stream);
  EXPECT_EQ(pool.stats().in_graphs, 1u);
}

TEST_F(CapturedCalls, AskForTheDeviceOnceAStreamAndCapture) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  block_pool pool = make_pool(8);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  auto const calls = calls_of([&] {
    for (int i = 0; i < 10; ++i) library_work(pool, stream, i, mismatches);
  });
  EXPECT_EQ(calls.at("cudaEventRecord"), 1u);
}

}  // namespace
}  // namespace escrow::test
