// cudaStreamBeginRecaptureToGraph (CUDA 13.3) releases a graph's user objects as it begins. What
// the graph held is then released once, after its last use, and what is captured anew is the
// graph's, whether or not CUDA gives the graph a new id, which its manual does not say.
#include <escrow/nodes.hpp>
#include <escrow/sim/recapture.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "world.hpp"

namespace escrow::test {
namespace {

class Recapture : public world, public testing::WithParamInterface<bool> {
 protected:
  Recapture() { sim::set_recapture_gives_new_id(GetParam()); }
  ~Recapture() override { sim::set_recapture_gives_new_id(false); }

  /// Captures into the graph again: `enqueue(stream)`. Its nodes must be the same.
  template <class Enqueue>
  void recapture(cudaGraph_t graph, Enqueue&& enqueue) {
    must(cudaStreamBeginRecaptureToGraph(one, cudaStreamCaptureModeRelaxed, graph, nullptr));
    std::forward<Enqueue>(enqueue)(one.get());
    cudaGraph_t ended = nullptr;
    must(cudaStreamEndCapture(one, &ended));
    must(ended == graph, "the recapture ends with its graph");
  }
  /// What captured(taken) and captured_plainly(taken) capture.
  void recapture(cudaGraph_t graph, cargo& taken) {
    recapture(graph, [&](cudaStream_t on) {
      load(taken, on);
      must(launch_add(on, cells.data(), 1));
    });
  }
  void recapture_without_cargo(cudaGraph_t graph) {
    recapture(graph, [&](cudaStream_t on) {
      must(launch_fill(on, cells.data() + 4, 4, 1));
      must(launch_check(on, cells.data() + 4, 4, 1, mismatches.data()));
      must(launch_add(on, cells.data(), 1));
    });
  }
  void run_plainly(owned_exec const& exec) {
    must(cudaGraphLaunch(exec, two));
    sync(two);
  }
};

INSTANTIATE_TEST_SUITE_P(Id, Recapture, testing::Bool(),
                         [](auto const& each) { return each.param ? "Changes" : "Stays"; });

TEST_P(Recapture, OfAGraphThatNothingElseUsesReleasesWhatItHeldAndHoldsWhatIsCapturedAnew) {
  cargo before = make_cargo();
  cargo now = make_cargo();
  owned_graph source = captured_plainly(before);
  EXPECT_TRUE(is_kept(before));
  recapture(source, now);
  EXPECT_TRUE(is_released(before));
  EXPECT_TRUE(stays_kept(now));
  graph_exec exec{source.get()};
  EXPECT_TRUE(exec.is_bare());
  EXPECT_TRUE(has_no_user_object() || source) << "the graph has its own back";
  run(exec);
  source.reset();
  EXPECT_TRUE(is_kept(now));
}

// The worker is blocked: the set of before is closed, and still registered.
TEST_P(Recapture, MayClaimTheSamePoolsSlotsAnew) {
  block_pool pool = make_pool(2);
  auto const enqueue = [&](cudaStream_t on) {
    use(pool, on);
    use(pool, on);
  };
  owned_graph source = captured_plainly(enqueue);
  EXPECT_EQ(made(), 1) << "the second use came after the first";
  block_worker();
  for (int i = 0; i < 3; ++i) recapture(source, enqueue);
  owned_exec exec = instantiate(source);
  may_end.store(true);
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 1; }));
  source.reset();
  std::optional<block_lease> other = pool.try_claim(asking);
  EXPECT_TRUE(other) << "of two slots one is not in use";
  EXPECT_TRUE(is_kept(pool) || !other);
  run_plainly(exec);
  exec.reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
}

}  // namespace
}  // namespace escrow::test
