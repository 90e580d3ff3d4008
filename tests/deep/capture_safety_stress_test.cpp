// No capture of anyone's is ever harmed: four threads capture in each mode, a hundred thousand
// captures with ESCROW_DEEP=1, while four others, in the default mode, claim, retire, capture and
// build graphs by hand, make and destroy pools and execs, and the worker recycles and frees.
#include "capture_safety_fixture.hpp"
#include "deep.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

[[nodiscard]] int captures_wanted() {
  return is_sanitized ? 1'000 : deep_size(10'000, 100'000);
}

class CaptureSafety : public capture_safety_test {};

TEST_P(CaptureSafety, NotOneOfAllCapturesIsHarmed) {
  int const wanted = captures_wanted();
  run(wanted);
  EXPECT_EQ(harmed, 0) << what_happened();
  EXPECT_GE(captured, wanted);
  EXPECT_GE(claimed, wanted / 10) << "the captures hardly ever claimed";
  EXPECT_FALSE(lacks_company()) << "hardly anything went on beside the captures";
  figures found("capture_safety_" + testing::PrintToString(GetParam()));
  found.add("captures", captured.load());
  found.add("harmed", harmed.load());
  found.add("claims in captures", claimed.load());
  found.add("rounds of claims beside them", rounds[0].load());
  found.add("rounds of retiring and sharing", rounds[1].load());
  found.add("rounds of capturing, updating, destroying", rounds[2].load());
  found.add("rounds of graphs built by hand", rounds[3].load());
  found.add("reclaimed by the worker", worker->stats().reclaimed);
  found.write();
}

// The test's own test: it sees what it is there to see.
TEST_P(CaptureSafety, AThreadThatAsksAboutAnEventInTheDefaultModeHarmsThoseInGlobalModeOnly) {
  is_planted = true;
  owned_stream const stream = make_stream();
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(capture_one(stream, i), GetParam() != cudaStreamCaptureModeGlobal) << what_happened();
  }
}

std::string name_of(testing::TestParamInfo<cudaStreamCaptureMode> const& info) {
  return testing::PrintToString(info.param);
}

INSTANTIATE_TEST_SUITE_P(EveryMode, CaptureSafety,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed),
                         name_of);

}  // namespace
}  // namespace escrow::test
