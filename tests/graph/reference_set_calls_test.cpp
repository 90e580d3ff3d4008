// How often CUDA is called for what a graph holds.
#include <cstdint>
#include <escrow/sim.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "reference_set_fixture.hpp"

namespace escrow::test {
namespace {

class CallsOfACapture : public reference_set_test {
 protected:
  [[nodiscard]] static std::uint64_t user_objects_made() {
    return sim::calls("cudaUserObjectCreate");
  }
  [[nodiscard]] graph retiring(int owners) {
    return captured([&](cudaStream_t on) {
      must(launch_tiny(on));
      for (int i = 0; i < owners; ++i) worker->retire(on, std::make_unique<int>(i));
    });
  }
  [[nodiscard]] static std::uint64_t calls_of_instantiating(graph const& source) {
    auto const before = sim::calls();
    graph_exec const exec(source);
    return sim::calls() - before;
  }
};

TEST_F(CallsOfACapture, ClaimsAndRetirementsOfOneDeleterMakeOneUserObject) {
  constexpr int each = 64;
  block_pool pool = make_pool(each);
  deleter other;
  auto const before = user_objects_made();
  std::vector<std::uint64_t> after;
  graph const source = captured([&](cudaStream_t on) {
    std::vector<block_lease> claimed;
    for (int i = 0; i < each; ++i) {
      claimed.push_back(pool.claim(on));
      worker->retire(on, std::make_unique<int>(i));
      after.push_back(user_objects_made());
    }
    for (int i = 0; i < each; ++i) other.retire(on, std::make_unique<int>(i));
    must(launch_tiny(on));
  });
  EXPECT_EQ(after.front() - before, 1u);
  EXPECT_EQ(after.back() - after.front(), 0u) << "of the later ones";
  EXPECT_EQ(user_objects_made() - after.back(), 1u) << "of another deleter";
  EXPECT_LE(pool.stats().in_graphs, static_cast<std::size_t>(each));
}

TEST_F(CallsOfACapture, ALaterRetirementMakesTwoCallsAtMost) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  graph const source = captured([&](cudaStream_t on) {
    worker->retire(on, std::make_unique<int>(0));
    before = sim::calls();
    for (int i = 0; i < 64; ++i) worker->retire(on, std::make_unique<int>(i));
    after = sim::calls();
  });
  EXPECT_LE(after - before, 128u) << "what the capture is, and the stream's device or id";
}

TEST_F(CallsOfACapture, InstantiatingCallsCudaAsOftenWithManyOwnersAsWithOne) {
  graph const few = retiring(1);
  graph const many = retiring(512);
  auto const first_of_few = calls_of_instantiating(few);
  EXPECT_EQ(calls_of_instantiating(many), first_of_few);
  EXPECT_EQ(calls_of_instantiating(many), calls_of_instantiating(few));
}

TEST_F(CallsOfACapture, DestroyingAnExecCallsCudaAsOftenWithManyOwnersAsWithOne) {
  auto const calls_of_destroying = [&](int owners) {
    std::optional<graph_exec> exec(retiring(owners));
    exec->launch(two);
    sync(two);
    auto const before =
        sim::calls("cudaGraphReleaseUserObject") + sim::calls("cudaUserObjectRelease");
    exec.reset();
    worker->drain();
    return sim::calls("cudaGraphReleaseUserObject") + sim::calls("cudaUserObjectRelease") - before;
  };
  EXPECT_EQ(calls_of_destroying(512), calls_of_destroying(1));
}

// CUDA orders what is launched in one stream.
TEST_F(CallsOfACapture, ExecsOfOneGraphOnOneStreamWaitForNothing) {
  block_pool pool = make_pool(1);
  graph const source = captured([&](cudaStream_t on) { library_work(pool, on, 1, mismatches); });
  graph_exec first(source);
  graph_exec second(source);
  auto const before = sim::calls("cudaStreamWaitEvent");
  for (int i = 0; i < 4; ++i) {
    first.launch(two);
    second.launch(two);
  }
  EXPECT_EQ(sim::calls("cudaStreamWaitEvent") - before, 0u);
  first.launch(three);
  EXPECT_EQ(sim::calls("cudaStreamWaitEvent") - before, 1u) << "on another stream it has to wait";
  sync_all();
}

}  // namespace
}  // namespace escrow::test
