// That the runner can fail: operations with planted mistakes, each of which it has to report.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "child.hpp"
#include "fault_runner.hpp"
#include "fault_world.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

using planted = operations_in<deleter_stage>;

/// All that the runner says of an operation.
std::string said_of(operation const& it) {
  testing::TestPartResultArray said;
  {
    testing::ScopedFakeTestPartResultReporter const reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &said);
    fault_runner runner(it);
    runner.every_call();
    runner.every_allocation();
  }
  std::string text;
  for (int i = 0; i < said.size(); ++i) text += said.GetTestPartResult(i).message();
  return text;
}

/// What it says of one whose world has an owner, and its first stream work that uses it.
std::string said_of(
    planted::step act, planted::step prepare = [](deleter_stage& in) {
      in.keep_busy(in.one);
      in.have_owner();
    }) {
  planted all;
  return said_of(all.add("planted", {}, {std::move(prepare)}, std::move(act)));
}

void expect_said(std::string const& said, std::string const& expected) {
  EXPECT_NE(said.find(expected), std::string::npos) << "it said: " << said.substr(0, 2000);
}

void record(deleter_stage& in) {
  escrow::check(cudaEventRecord(in.ready, in.one), "cudaEventRecord");
}

TEST(PlantedMistake, NoneIsSeenWhereThereIsNone) {
  EXPECT_EQ(said_of([](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); }), "");
}

TEST(PlantedMistake, ALeakBehindAFailedCallIsReported) {
  await_events_for(std::chrono::milliseconds(100));  // each of its runs loses one
  expect_said(said_of([](auto& in) {
                cudaEvent_t made = nullptr;
                escrow::check(cudaEventCreate(&made), "cudaEventCreateWithFlags");
                record(in);  // throws, and nobody destroys the event
                must(cudaEventDestroy(made));
              }),
              "kept on purpose");
  await_events_for(generous);
}

TEST(PlantedMistake, ALeakBehindAFailedAllocationIsReported) {
  expect_said(said_of(
                  [](auto&) {
                    void* memory = nullptr;
                    escrow::check(cudaMalloc(&memory, 16), "cudaMalloc");
                    auto const box = std::make_unique<std::string>(100, 'x');
                    must(cudaFree(memory));
                  },
                  [](auto& in) { in.have_owner(); }),
              "device allocations");
}

TEST(PlantedMistake, AChangeBeforeTheCallThatFailsIsReported) {
  expect_said(said_of([](auto& in) {
                in.has_drained = true;
                record(in);
              }),
              "it threw and has changed something");
}

TEST(PlantedMistake, AnOwnerThatIsDestroyedWhileItIsInUseIsReported) {
  expect_said(said_of([](auto& in) {
                probe taken(std::move(*in.mine));
                record(in);  // throws, and the owner goes here
                in.worker->retire(in.one, std::move(taken));
              }),
              "destroyed while in use");
}

TEST(PlantedMistake, AnOwnerThatIsDestroyedTwiceIsReported) {
  expect_said(said_of([](auto& in) {
                try {
                  record(in);
                } catch (cuda_error const&) {
                  probe const again(in.fates.front());
                  throw;
                }
              }),
              "destroyed twice");
}

TEST(PlantedMistake, AnErrorThatIsSwallowedIsReported) {
  expect_said(said_of([](auto& in) {
                if (!succeeded(cudaEventRecord(in.ready, in.one))) return;
                in.has_drained = true;
              }),
              "it did not throw, nor do its work");
}

TEST(PlantedMistake, AnErrorOfAnotherKindIsReported) {
  expect_said(said_of([](auto& in) {
                if (!succeeded(cudaEventRecord(in.ready, in.one))) {
                  throw std::runtime_error("something went wrong");
                }
              }),
              "something went wrong");
}

TEST(PlantedMistake, AnErrorThatIsLeftBehindIsReported) {
  expect_said(said_of([](auto& in) { static_cast<void>(cudaEventRecord(in.ready, in.one)); }),
              "an error was left behind");
}

TEST(PlantedMistake, ADeviceThatIsLeftCurrentIsReported) {
  expect_said(said_of([](auto& in) {
                must(cudaSetDevice(1));
                record(in);
                must(cudaSetDevice(0));
              }),
              "another device is current");
}

TEST(PlantedMistake, ACaptureThatIsHarmedIsReported) {
  expect_said(said_of(
                  [](auto& in) {
                    cudaStreamCaptureStatus status{};
                    if (succeeded(cudaStreamIsCapturing(in.one, &status))) return;
                    static_cast<void>(cudaStreamQuery(in.one));
                    static_cast<void>(cudaGetLastError());
                  },
                  [](auto& in) { in.begin_capture(in.one); }),
              "a failed call harmed the capture");
}

TEST(PlantedMistake, ACallWithoutARowInTheTableIsReported) {
  expect_said(said_of([](auto&) {
                int version = 0;
                escrow::check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
              }),
              "cudaRuntimeGetVersion has no row");
}

TEST(PlantedMistake, CallsThatAreNotTheSameEachTimeAreReported) {
  int runs = 0;
  expect_said(said_of([&runs](auto& in) {
                for (int i = 0; i <= runs % 3; ++i) record(in);
                ++runs;
              }),
              "does not make the same calls each time");
}

// Waits for a lost device for ever.
int hang() {
  limit_runs_to(1);
  static_cast<void>(said_of([](auto& in) {
    while (!succeeded(cudaEventRecord(in.ready, in.one))) {
    }
  }));
  return 0;
}
child_case const hangs("hangs", &hang);

TEST(PlantedMistake, ARunThatHangsEndsTheProgramWithItsName) {
  child_result const result = run_child("hangs");
  EXPECT_TRUE(result.exited) << result.output;
  EXPECT_EQ(result.status, 1) << result.output;
  expect_said(result.output, "planted, call 1, cudaEventRecord: cudaErrorLaunchFailure: hangs");
}

}  // namespace
}  // namespace escrow::test
