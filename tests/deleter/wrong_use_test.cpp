// Bad use gets a clear error, and the owner is not lost.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (usage_error const& error) {
    return error.what();
  }
  return "(not refused)";
}

void expect_words(std::string const& text, std::initializer_list<char const*> words) {
  for (char const* const word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

class WrongUse : public testing::Test {
 protected:
  // The refused owner stays the caller's, and the deleter goes on.
  void expect_refused(cudaStream_t stream, std::initializer_list<char const*> words) {
    auto const fate = make_fate();
    probe owner(fate);
    expect_words(refusal([&] { deleter_.retire(stream, std::move(owner)); }), words);
    EXPECT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
    auto const next = make_fate();
    deleter_.retire(probe(next));
    deleter_.drain();
    EXPECT_EQ(next->times(), 1);
    EXPECT_EQ(fate->times(), 0);
    EXPECT_EQ(deleter_.stats().in_graphs, 0U);
    EXPECT_EQ(deleter_.stats().leaked, 0U);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }

  test::owned_stream stream_ = test::make_stream();
  deleter deleter_;
};

TEST_F(WrongUse, RetiringInAnInvalidatedCaptureIsRefused) {
  test::capture const capturing(stream_, cudaStreamCaptureModeGlobal);
  ASSERT_NE(cudaDeviceSynchronize(), cudaSuccess);
  static_cast<void>(cudaGetLastError());
  expect_refused(stream_, {"deleter::retire", "`stream`", "invalidated", "cudaStreamEndCapture"});
}

TEST_F(WrongUse, RetiringOnTheLegacyStreamWhileABlockingStreamCapturesIsRefused) {
  test::owned_stream const blocking = test::make_stream(cudaStreamDefault);
  test::capture capturing(blocking, cudaStreamCaptureModeThreadLocal);
  expect_refused(cudaStreamLegacy, {"deleter::retire", "`stream`", "legacy", "blocking"});
  expect_refused(cudaStream_t{}, {"deleter::retire", "`stream`", "legacy", "blocking"});
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

TEST_F(WrongUse, RetiringAfterStopIsRefused) {
  deleter stopped;
  stopped.stop();
  probe owner(make_fate());
  expect_words(refusal([&] { stopped.retire(stream_, std::move(owner)); }),
               {"deleter::retire", "stopped", "before stop()"});
  EXPECT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
}

TEST_F(WrongUse, AStoppedDeleterIsRefusedByCapturesTooAndTheCaptureSurvives) {
  deleter stopped;
  stopped.stop();
  probe owner(make_fate());
  test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
  EXPECT_THROW(stopped.retire(stream_, std::move(owner)), usage_error);
  EXPECT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(capturing.end(), cudaSuccess);
}

TEST_F(WrongUse, DrainingInAnOwnersDestructorNamesTheWayOut) {
  std::string text;
  deleter_.retire(probe(make_fate([&] { text = refusal([&] { deleter_.drain(); }); })));
  deleter_.drain();
  expect_words(text, {"deleter::drain", "destructor", "another thread"});
}

}  // namespace
}  // namespace escrow
