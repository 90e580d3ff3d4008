// SPDX-License-Identifier: Apache-2.0
// How often CUDA is called for what graphs and execs hold.
#include <algorithm>
#include <string_view>

#include "world.hpp"

namespace escrow::test {
namespace {

class CallsOfACapture : public world {
 protected:
  /// Calls of CUDA in `run`: all, or those of one function.
  [[nodiscard]] static std::uint64_t calls_of(auto&& run, char const* name = nullptr) {
    auto const count = [name] { return name == nullptr ? sim::calls() : sim::calls(name); };
    auto const before = count();
    run();
    return count() - before;
  }
  [[nodiscard]] graph retiring(int owners) {
    return captured([&](cudaStream_t on) {
      must(launch_tiny(on));
      for (int i = 0; i < owners; ++i) worker->retire(on, std::make_unique<int>(i));
    });
  }
};

TEST_F(CallsOfACapture, ClaimsAndRetirementsOfOneDeleterMakeOneUserObject) {
  constexpr int each = 64;
  block_pool pool = make_pool(each);
  deleter other;
  auto const made = [](auto&& run) { return calls_of(run, "cudaUserObjectCreate"); };
  graph const source = captured([&](cudaStream_t on) {
    std::vector<block_lease> claimed;
    auto const use_one = [&] {
      claimed.push_back(pool.claim(on));
      worker->retire(on, std::make_unique<int>(1));
    };
    auto const use_more = [&] {
      for (int i = 1; i < each; ++i) use_one();
    };
    auto const use_other = [&] {
      for (int i = 0; i < each; ++i) other.retire(on, std::make_unique<int>(i));
    };
    EXPECT_EQ(made(use_one), 1u);
    EXPECT_EQ(made(use_more), 0u);
    EXPECT_EQ(made(use_other), 1u);
    must(launch_tiny(on));
  });
  EXPECT_LE(pool.stats().in_graphs, static_cast<std::size_t>(each));
}

TEST_F(CallsOfACapture, ALaterRetirementMakesThreeCallsAtMost) {
  graph const source = captured([&](cudaStream_t on) {
    worker->retire(on, std::make_unique<int>(0));
    EXPECT_LE(calls_of([&] { worker->retire(on, std::make_unique<int>(1)); }), 3u)
        << "what the capture is, and the stream's context and its id";
  });
}

TEST_F(CallsOfACapture, InstantiatingCallsCudaAsOftenWithManyOwnersAsWithOne) {
  graph const few = retiring(1);
  graph const many = retiring(512);
  auto const of_instantiating = [](graph const& source) {
    return calls_of([&] { graph_exec const exec(source); });
  };
  static_cast<void>(of_instantiating(few));  // functions of the driver are looked up once
  auto const first_of_few = of_instantiating(few);
  EXPECT_EQ(of_instantiating(many), first_of_few);
  EXPECT_EQ(of_instantiating(many), of_instantiating(few));
}

TEST_F(CallsOfACapture, DestroyingAnExecCallsCudaAsOftenWithManyOwnersAsWithOne) {
  auto const of_destroying = [&](int owners, char const* name) {
    std::optional<graph_exec> exec(retiring(owners));
    run(*exec);
    auto const destroy = [&] {
      exec.reset();
      worker->drain();
    };
    return calls_of(destroy, name);
  };
  for (char const* const name : {"cudaGraphReleaseUserObject", "cudaUserObjectRelease"})
    EXPECT_EQ(of_destroying(512, name), of_destroying(1, name)) << name;
}

TEST_F(CallsOfACapture, ASetCallsCudaForALaunchAsAnExecDoesAndThreeTimesMoreForASwitch) {
  graph_exec exec(retiring(1));
  exec_set set;
  auto const first = set.add(retiring(1));
  auto const second = set.add(retiring(1));
  auto const of_exec = calls_of([&] { exec.launch(two); });
  EXPECT_EQ(calls_of([&] { set.launch(second, two); }), of_exec);
  EXPECT_EQ(calls_of([&] { set.launch(first, two); }), of_exec + 3) << "update, and capture mode";
  EXPECT_EQ(calls_of([&] { set.launch(second, two); }, "cudaGraphExecUpdate"), 1u);
}

// CUDA orders what is launched in one stream.
TEST_F(CallsOfACapture, ExecsOfOneGraphOnOneStreamWaitForNothing) {
  block_pool pool = make_pool(1);
  graph const source = captured([&](cudaStream_t on) { use(pool, on); });
  graph_exec first(source);
  graph_exec second(source);
  auto const launch_often = [&] {
    for (int i = 0; i < 4; ++i) first.launch(two), second.launch(two);
  };
  EXPECT_EQ(calls_of(launch_often, "cudaStreamWaitEvent"), 0u);
  EXPECT_EQ(calls_of([&] { first.launch(three); }, "cudaStreamWaitEvent"), 1u);
  sync_all();
}

// Many execs that were destroyed in flight, while a destructor blocks the worker: claims ask about
// each of them if they need to, and not otherwise.
class ExecsInFlight : public world {
 protected:
  static constexpr int many = 40;

  static auto queries_in(auto const& calls) {
    return std::ranges::count(calls, std::string_view("cudaEventQuery"),
                              [](auto const& call) { return std::string_view(call.api); });
  }

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

TEST_F(ExecsInFlight, AreEachAskedOnceByAClaimThatFindsNothing) {
  block_pool pool = make_pool(many);
  block_worker();
  launch_and_destroy(pool, many, flag, two);
  sim::start_recording();
  EXPECT_FALSE(pool.try_claim(asking).has_value());
  EXPECT_EQ(queries_in(sim::stop_recording()), many);
  may_end.store(true);
  flag.raise();
}

TEST_F(ExecsInFlight, AreNotAskedAboutBehindOneThatIsDoneAndHasASlot) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  pinned_flag first;
  launch_and_destroy(pool, 1, first, three);
  launch_and_destroy(pool, many, flag, two);
  first.raise();
  sync(three);
  sim::start_recording();
  EXPECT_TRUE(pool.try_claim(asking).has_value());
  EXPECT_EQ(queries_in(sim::stop_recording()), 1);
  may_end.store(true);
  flag.raise();
}

TEST_F(ExecsInFlight, AreNotAskedAboutWhereTheCaptureHasASlot) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  launch_and_destroy(pool, many, flag, two);
  test::capture open{one, cudaStreamCaptureModeGlobal};
  use(pool, one);
  sim::start_recording();
  use(pool, one);
  EXPECT_EQ(queries_in(sim::stop_recording()), 0);
  must(open.end());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
