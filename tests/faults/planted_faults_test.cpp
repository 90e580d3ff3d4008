// SPDX-License-Identifier: Apache-2.0
// That the runner can fail: operations with planted mistakes, each of which it has to report.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "child.hpp"
#include "fault_runner.hpp"
#include "fault_world.hpp"
#include "status.hpp"

namespace escrow::test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryCall);  // the runner's own, for operations

namespace {

using planted = operations_in<deleter_stage>;

/// All that the runner says of an operation.
std::string said_of(operation const& it) {
  limits.one_run_in = 1;
  testing::TestPartResultArray said;
  {
    testing::ScopedFakeTestPartResultReporter const reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &said);
    fault_runner runner(it);
    runner.every_call();
    runner.every_function();
    runner.every_allocation();
  }
  std::string text;
  for (int i = 0; i < said.size(); ++i) text += said.GetTestPartResult(i).message();
  return text;
}

planted::step const with_busy_owner = [](auto& in) {
  in.keep_busy(in.one);
  in.have_owner();
};
std::string said_of(planted::step act, planted::step prepare = with_busy_owner) {
  planted all;
  return said_of(all("planted", "", {std::move(prepare)}, std::move(act)));
}

void expect_said(std::string const& said, std::string const& expected) {
  EXPECT_NE(said.find(expected), std::string::npos) << "it said: " << said.substr(0, 2000);
}

void record(deleter_stage& in) {
  escrow::check(cudaEventRecord(in.ready, in.one), "cudaEventRecord");
}
bool try_to_record(deleter_stage& in) {
  return succeeded(cudaEventRecord(in.ready, in.one));
}

TEST(PlantedMistake, NoneIsSeenWhereThereIsNone) {
  EXPECT_EQ(said_of([](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); }), "");
}

struct mistake {
  char const* name;
  char const* expected;  // what the runner says
  planted::step act;
  planted::step prepare = with_busy_owner;
};

void PrintTo(mistake const& it, std::ostream* out) {
  *out << it.name;
}

class PlantedMistakes : public testing::TestWithParam<mistake> {
 protected:
  // Some mistakes leak an event in each run.
  void SetUp() override { limits.events = std::chrono::milliseconds(100); }
  void TearDown() override { limits.events = generous; }
};

TEST_P(PlantedMistakes, AreReported) {
  expect_said(said_of(GetParam().act, GetParam().prepare), GetParam().expected);
}

mistake const mistakes[] = {
    {"ALeakBehindAFailedCall", "kept on purpose",
     [](auto& in) {
       cudaEvent_t made = nullptr;
       escrow::check(cudaEventCreate(&made), "cudaEventCreateWithFlags");
       record(in);  // throws, and no code destroys the event
       must(cudaEventDestroy(made));
     }},
    {"ALeakBehindAFailedAllocation", "device allocations 1",
     [](auto&) {
       void* memory = nullptr;
       escrow::check(cudaMalloc(&memory, 16), "cudaMalloc");
       auto const box = std::make_unique<std::string>(100, 'x');
       must(cudaFree(memory));
     },
     [](auto& in) { in.have_owner(); }},
    {"AChangeBeforeTheCallThatFails", "it threw and has changed something",
     [](auto& in) {
       in.has_drained = true;
       record(in);
     }},
    {"AnOwnerThatIsDestroyedInUse", "destroyed while in use",
     [](auto& in) {
       probe taken(std::move(*in.mine));
       record(in);  // throws, and the owner is destroyed here
       in.worker->retire(in.one, std::move(taken));
     }},
    {"AnOwnerThatIsDestroyedTwice", "destroyed twice",
     [](auto& in) {
       try {
         record(in);
       } catch (cuda_error const&) {
         probe const again(in.fates.front());
         throw;
       }
     }},
    {"AnOwnerThatIsDestroyedAfterThreeTries", "destroyed while in use",
     [](auto& in) {
       probe taken(std::move(*in.mine));
       for (int tries = 1; !try_to_record(in); ++tries)
         if (tries == 3) throw cuda_error(cudaErrorUnknown, "cudaEventRecord");
       in.worker->retire(in.one, std::move(taken));
     }},
    {"AnErrorThatIsSwallowed", "it did not throw, nor do its work",
     [](auto& in) { in.has_drained = try_to_record(in); }},
    {"AnErrorOfAnotherKind", "something went wrong",
     [](auto& in) {
       if (!try_to_record(in)) throw std::runtime_error("something went wrong");
     }},
    {"AnErrorThatIsLeftBehind", "an error was left behind",
     [](auto& in) { static_cast<void>(cudaEventRecord(in.ready, in.one)); }},
    {"ADeviceThatIsLeftCurrent", "another device is current",
     [](auto& in) {
       must(cudaSetDevice(1));
       record(in);
       must(cudaSetDevice(0));
     }},
    {"ACaptureThatIsHarmed", "a failed call harmed the capture",
     [](auto& in) {
       cudaStreamCaptureStatus status{};
       if (succeeded(cudaStreamIsCapturing(in.one, &status))) return;
       static_cast<void>(cudaStreamQuery(in.one));
       static_cast<void>(cudaGetLastError());
     },
     [](auto& in) { in.begin_capture(in.one); }},
};

INSTANTIATE_TEST_SUITE_P(Are, PlantedMistakes, testing::ValuesIn(mistakes),
                         [](auto const& each) { return std::string(each.param.name); });

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
  limits.seconds = 1;
  static_cast<void>(said_of([](auto& in) {
    while (!try_to_record(in)) {
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
