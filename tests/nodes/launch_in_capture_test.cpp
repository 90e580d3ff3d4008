// Kernel arguments that own, of captured launches: kept in every kind of graph that has the kernel.
#include <optional>

#include "launch_fixture.hpp"

namespace escrow::test {
namespace {

class LaunchInCapture : public launch_test {};

TEST_F(LaunchInCapture, KeepsItsArgumentsAsLongAsAGraphHasTheKernel) {
  std::optional<graph> source = captured([&] { use(make_shared_int(fate_)); });
  std::optional<graph_exec> exec(*source);
  EXPECT_TRUE(exec->is_bare());
  source.reset();
  EXPECT_TRUE(lives());
  for (int i = 0; i < 10; ++i) run(*exec);
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, KeepsAUniquePointerAndWhatAWrapperHad) {
  auto const other = make_fate();
  their_buffer theirs(other);
  std::optional<graph> source = captured([&] {
    use(theirs);
    launch(stream_, fill, config(), make_unique_int(fate_), std::size_t{1}, 7);
  });
  theirs.reset();
  std::optional<graph_exec> exec(*source);
  source.reset();
  run(*exec);
  EXPECT_TRUE(lives());
  EXPECT_FALSE(other->was_destroyed());
  exec.reset();
  EXPECT_TRUE(goes());
  EXPECT_EQ(other->times(), 1);
}

TEST_F(LaunchInCapture, KeepsItsArgumentsForClonesAndTheirExecs) {
  std::optional<graph> source = captured([&] { use(make_shared_int(fate_)); });
  std::optional<graph> copy = source->clone();
  owned_graph plain = clone(source->get());
  source.reset();
  EXPECT_TRUE(lives());
  std::optional<graph_exec> exec(*copy);
  copy.reset();
  run(*exec);
  exec.reset();
  EXPECT_TRUE(lives()) << "the plain clone has it";
  owned_exec of_plain = instantiate(plain);
  plain.reset();
  must(cudaGraphLaunch(of_plain, stream_));
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(lives());
  of_plain.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, KeepsItsArgumentsForAParentOfItsGraph) {
  std::optional<graph> parent(std::in_place);
  static_cast<void>(parent->add_child(captured([&] { use(make_shared_int(fate_)); })));
  EXPECT_TRUE(lives());
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  run(*exec);
  EXPECT_TRUE(lives());
  exec.reset();
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, LetsGoOfItsArgumentsWhenTheCaptureIsAborted) {
  {
    capture open(stream_, cudaStreamCaptureModeThreadLocal);
    use(make_shared_int(fate_));
    EXPECT_TRUE(lives());
    static_cast<void>(cudaStreamQuery(stream_));  // kills it
    EXPECT_THROW(launch(stream_, add, {}, cells_.data(), 1), usage_error);
  }
  EXPECT_TRUE(goes());
}

TEST_F(LaunchInCapture, AnUpdateSwapsWhatTheExecKeeps) {
  auto const second = make_fate();
  std::optional<graph> first = captured([&] { use(make_shared_int(fate_)); });
  graph_exec exec(*first);
  first.reset();
  exec.update(captured([&] { use(make_shared_int(second)); }));
  EXPECT_TRUE(goes());
  run(exec);
  EXPECT_FALSE(second->was_destroyed());
}

}  // namespace
}  // namespace escrow::test
