// Hoisted references that are released wrongly, or never, and captures that hoisting meets.
#include <string>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

class HoistMisuse : public hoist_test {
 protected:
  // `held` ends without having been released: what it holds stays for ever.
  void expect_kept_for_ever(std::size_t reports) {
    errors_expected = true;
    lost += static_cast<int>(reports);
    EXPECT_EQ(errors->size(), reports) << errors->all();
    EXPECT_NE(errors->all().find("hoisted"), std::string::npos) << errors->all();
    EXPECT_NE(errors->all().find("release"), std::string::npos) << errors->all();
    EXPECT_EQ(worker->stats().leaked, reports);
  }
};

TEST_F(HoistMisuse, ReleasingTwiceIsAnErrorThatNamesTheCall) {
  cargo taken = make_cargo();
  owned_event const event = make_event();
  must(cudaEventRecord(event, two));
  hoisted held = hoist(captured(taken));
  held.release();
  for (std::string const& text : {
           message_of<usage_error>([&] { held.release(); }),
           message_of<usage_error>([&] { held.release_after(two); }),
           message_of<usage_error>([&] { held.release_after(event_ref(event)); }),
       }) {
    EXPECT_EQ(text.find("hoisted::release"), 0U) << text;
    EXPECT_NE(text.find("released"), std::string::npos) << text;
  }
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(HoistMisuse, ReleasingWhatWasMovedFromIsAnErrorAndTheTargetHolds) {
  cargo taken = make_cargo();
  hoisted source = hoist(captured(taken));
  hoisted target = std::move(source);
  // NOLINTNEXTLINE(bugprone-use-after-move): that is the question
  std::string const text = message_of<usage_error>([&] { source.release_after(two); });
  EXPECT_NE(text.find("moved"), std::string::npos) << text;
  EXPECT_TRUE(is_kept(taken));
  target.release();
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(HoistMisuse, EndingWithoutReleaseKeepsForEverReportsAndCounts) {
  cargo taken = make_cargo();
  {
    graph const source = captured(taken);
    hoisted const held = hoist(source);
  }
  expect_kept_for_ever(1);
  EXPECT_TRUE(stays_kept(taken));
}

TEST_F(HoistMisuse, AssignmentOverOneThatWasNotReleasedKeepsThatForEver) {
  cargo forgotten = make_cargo();
  cargo taken = make_cargo();
  hoisted held = hoist(captured(forgotten));
  held = hoist(captured(taken));
  expect_kept_for_ever(1);
  EXPECT_TRUE(is_kept(taken));
  held.release();
  EXPECT_TRUE(comes_back(taken));
  EXPECT_TRUE(stays_kept(forgotten));
}

TEST_F(HoistMisuse, EndingWithoutReleaseIsNothingToReportIfNothingWasHeld) {
  { hoisted const held = hoist(captured_empty_handed()); }
  EXPECT_EQ(errors->size(), 0U);
  EXPECT_EQ(worker->stats().leaked, 0U);
}

TEST_F(HoistMisuse, ReleaseAfterACapturingStreamIsAnErrorAndTheCaptureSurvives) {
  cargo taken = make_cargo();
  hoisted held = hoist(captured(taken));
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    test::capture open{two, mode};
    must(launch_tiny(two));
    std::string const text = message_of<usage_error>([&] { held.release_after(two); });
    EXPECT_EQ(text.find("hoisted::release_after"), 0U) << text;
    EXPECT_NE(text.find("stream"), std::string::npos) << text;
    EXPECT_EQ(open.end(), cudaSuccess);
  }
  EXPECT_TRUE(is_kept(taken));
  held.release_after(two);
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(HoistMisuse, HoistAndReleaseHarmNoCaptureOfTheirOwnThread) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  test::capture open{one, cudaStreamCaptureModeGlobal};
  hoisted held = hoist(source);
  held.release_after(two);
  EXPECT_EQ(open.end(), cudaSuccess);
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(HoistMisuse, OfAGraphThatIsBeingCapturedIntoHarmsNoCapture) {
  cargo taken = make_cargo();
  test::capture open{one, cudaStreamCaptureModeGlobal};
  load(taken, one);
  cudaGraph_t const unfinished = open.info().graph;
  hoisted held = hoist(unfinished);
  ASSERT_EQ(open.end(), cudaSuccess);
  open.graph().reset();
  EXPECT_TRUE(is_kept(taken));
  held.release_after(two);
  EXPECT_TRUE(comes_back(taken));
}

}  // namespace
}  // namespace escrow::test
