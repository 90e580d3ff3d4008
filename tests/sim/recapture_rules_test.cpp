// How the simulated runtime recaptures a graph (CUDA 13.3), by CUDA's manual. No GPU was seen doing
// it.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "graph_nodes.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

/// What a callback was told, and what it answers.
struct mismatches_seen {
  std::vector<std::pair<int, cudaGraphRecaptureStatus>> values;  // of fills
  cudaError_t answer = cudaSuccess;

  static cudaError_t CUDART_CB add(void* data, cudaGraphNode_t /*node*/,
                                   cudaGraphNodeParams const* original,
                                   cudaGraphNodeParams const* recaptured,
                                   cudaGraphRecaptureStatus status) {
    auto& mine = *static_cast<mismatches_seen*>(data);
    EXPECT_EQ(original->type, cudaGraphNodeTypeMemset);
    EXPECT_EQ(original->memset.value, 1U);
    mine.values.emplace_back(recaptured->memset.value, status);
    return mine.answer;
  }
};

class SimulatedRecapture : public testing::Test {
 protected:
  void fill_with(cudaStream_t on, unsigned char value) {
    must(cudaMemsetAsync(cells.data(), value, 1, on));
    must(launch_add(on, cells.data() + 1, 1));
  }
  [[nodiscard]] cudaError_t end_with(unsigned char value) {
    cudaGraphRecaptureCallbackData callback{&mismatches_seen::add, &seen};
    return end_of_recapture(
        one, source, [&](cudaStream_t on) { fill_with(on, value); }, &callback);
  }

  [[nodiscard]] owned_graph captured() {
    capture open{one, cudaStreamCaptureModeGlobal};
    fill_with(one, 1);
    must(open.end());
    return std::move(open.graph());
  }

  pinned_ints cells{2};
  owned_stream one = make_stream();
  owned_stream two = make_stream();
  owned_graph source = captured();
  mismatches_seen seen;
};

TEST_F(SimulatedRecapture, TellsOfNodesWhoseParametersDifferAndReplacesThem) {
  EXPECT_EQ(end_with(1), cudaSuccess);
  EXPECT_TRUE(seen.values.empty());
  EXPECT_EQ(end_with(2), cudaSuccess);
  ASSERT_EQ(seen.values.size(), 1U);
  EXPECT_EQ(seen.values[0], std::pair(2, cudaGraphRecaptureEligibleForUpdate));
  owned_exec const exec = instantiate(source);
  must(cudaGraphLaunch(exec, two));
  must(cudaStreamSynchronize(two));
  EXPECT_EQ(cells.load(), 2);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(SimulatedRecapture, FailsIfTheCallbackFails) {
  seen.answer = cudaErrorUnknown;
  must(cudaStreamBeginRecaptureToGraph(
      one, cudaStreamCaptureModeRelaxed, source,
      std::make_unique<cudaGraphRecaptureCallbackData>(
          cudaGraphRecaptureCallbackData{&mismatches_seen::add, &seen})
          .get()));
  EXPECT_EQ(cudaMemsetAsync(cells.data(), 2, 1, one), cudaErrorGraphRecaptureFailure);
  EXPECT_EQ(launch_add(one, cells.data() + 1, 1), cudaErrorStreamCaptureInvalidated);
  cudaGraph_t ended = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(one, &ended), cudaErrorGraphRecaptureFailure);
  static_cast<void>(cudaGetLastError());
}

TEST_F(SimulatedRecapture, FailsIfNodesDiffer) {
  auto const add = [&](cudaStream_t on) { return launch_add(on, cells.data() + 1, 1); };
  auto const set = [&](cudaStream_t on) { return cudaMemsetAsync(cells.data(), 1, 1, on); };
  EXPECT_EQ(end_of_recapture(one, source, [&](cudaStream_t on) { must(set(on)); }),
            cudaErrorGraphRecaptureFailure)
      << "a node is missing";
  EXPECT_EQ(end_of_recapture(
                one, source,
                [&](cudaStream_t on) { EXPECT_EQ(add(on), cudaErrorGraphRecaptureFailure); }),
            cudaErrorGraphRecaptureFailure)
      << "it is of another type";
  EXPECT_EQ(end_of_recapture(one, source,
                             [&](cudaStream_t on) {
                               must(set(on));
                               must(cudaStreamUpdateCaptureDependencies(
                                   on, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies));
                               EXPECT_EQ(add(on), cudaErrorGraphRecaptureFailure);
                             }),
            cudaErrorGraphRecaptureFailure)
      << "it depends on another node";
}

TEST_F(SimulatedRecapture, ReleasesTheGraphsUserObjectsAsItBeginsAndNotThoseOfItsExecs) {
  witness of_graph;
  witness of_exec;
  of_exec.move_to(source);
  owned_exec exec = instantiate(source);
  of_graph.move_to(source);
  must(cudaStreamBeginRecaptureToGraph(one, cudaStreamCaptureModeRelaxed, source, nullptr));
  EXPECT_TRUE(of_graph.ran_here());
  EXPECT_FALSE(of_exec.ran());
  fill_with(one, 1);
  cudaGraph_t ended = nullptr;
  must(cudaStreamEndCapture(one, &ended));
  exec.reset();
  EXPECT_TRUE(of_exec.ran_here());
}

TEST_F(SimulatedRecapture, ReleasesFromAGraphWhatItDoesNotHoldAsCudaDoes) {
  witness seen_end;
  cudaUserObject_t const object = seen_end.make(2);
  must(cudaGraphReleaseUserObject(source, object, 1));
  EXPECT_FALSE(seen_end.ran());
  source.reset();  // gives it back
  must(cudaUserObjectRelease(object, 1));
  EXPECT_FALSE(seen_end.ran());
  must(cudaUserObjectRelease(object, 1));
  EXPECT_TRUE(seen_end.ran_here());
}

}  // namespace
}  // namespace escrow::test
