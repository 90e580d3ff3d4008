// How often CUDA is called for what graphs and execs hold.
#include <algorithm>
#include <cstdint>
#include <escrow/sim.hpp>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

class CallsOfACapture : public world {
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
  auto const releases = [] {
    return sim::calls("cudaGraphReleaseUserObject") + sim::calls("cudaUserObjectRelease");
  };
  auto const calls_of_destroying = [&](int owners) {
    std::optional<graph_exec> exec(retiring(owners));
    exec->launch(two);
    sync(two);
    auto const before = releases();
    exec.reset();
    worker->drain();
    return releases() - before;
  };
  EXPECT_EQ(calls_of_destroying(512), calls_of_destroying(1));
}

TEST_F(CallsOfACapture, ASetCallsCudaForALaunchAsAnExecDoesAndThreeTimesMoreForASwitch) {
  auto const calls_of = [](auto&& launch) {
    auto const before = sim::calls();
    launch();
    return sim::calls() - before;
  };
  graph_exec exec(retiring(1));
  exec_set set;
  auto const first = set.add(retiring(1));
  auto const second = set.add(retiring(1));
  auto const of_exec = calls_of([&] { exec.launch(two); });
  EXPECT_EQ(calls_of([&] { set.launch(second, two); }), of_exec);
  auto const updates = sim::calls("cudaGraphExecUpdate");
  EXPECT_EQ(calls_of([&] { set.launch(first, two); }), of_exec + 3) << "update, and capture mode";
  EXPECT_EQ(sim::calls("cudaGraphExecUpdate") - updates, 1u);
}

// CUDA orders what is launched in one stream.
TEST_F(CallsOfACapture, ExecsOfOneGraphOnOneStreamWaitForNothing) {
  block_pool pool = make_pool(1);
  graph const source = captured([&](cudaStream_t on) { use(pool, on); });
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

// Many execs that were destroyed in flight, while a destructor blocks the worker: claims ask about
// each of them if they need to, and not otherwise.
class ExecsInFlight : public world {
 protected:
  static constexpr int many = 40;

  // Each with a slot.
  void launch_and_destroy(block_pool& pool, int execs, pinned_flag const& until,
                          cudaStream_t stream) {
    for (int i = 0; i < execs; ++i) {
      graph_exec exec(captured([&](cudaStream_t on) {
        block_lease const held = pool.claim(on);
        must(launch_wait_flag(on, until.get()));
      }));
      exec.launch(stream);
    }
  }
};

TEST_F(ExecsInFlight, DoNotHideTheSlotOfALaterOneThatIsDone) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  pinned_flag last;
  launch_and_destroy(pool, many, flag, two);
  launch_and_destroy(pool, 1, last, three);
  EXPECT_FALSE(pool.try_claim(asking).has_value());
  last.raise();
  sync(three);
  EXPECT_TRUE(pool.try_claim(asking).has_value());
  may_end.store(true);
  flag.raise();  // freeing the other one waits for the device
}

TEST_F(ExecsInFlight, AreNotAskedAboutWhereTheCaptureHasASlot) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  launch_and_destroy(pool, many, flag, two);
  test::capture open{one, cudaStreamCaptureModeGlobal};
  use(pool, one);
  sim::start_recording();
  use(pool, one);
  auto const calls = sim::stop_recording();
  EXPECT_EQ(std::ranges::count(calls, std::string_view("cudaEventQuery"),
                               [](auto const& call) { return std::string_view(call.api); }),
            0);
  must(open.end());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
