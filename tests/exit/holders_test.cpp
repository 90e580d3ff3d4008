// close_for() names each kind of holder: a lease, an open capture, a graph, an exec, a node's
// share; with capture id, label, count, since when, and where.
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>

#include "../pool/capture_fixture.hpp"

template <>
struct escrow::kernel_argument_traits<escrow::test::block> {
  static int* device_value(test::block const& object) { return object.data(); }
};

namespace escrow::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

class Holders : public captured_pool_test {
 protected:
  [[nodiscard]] holder only_holder() {
    auto const all = pool.close_for(0ns);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? holder{} : all.front();
  }

  void expect_captured(holder const& found, std::uint64_t id) const {
    EXPECT_EQ(found.capture_id, id);
    EXPECT_NE(found.capture_id, 0u);
    EXPECT_EQ(found.label, "blocks");
    EXPECT_EQ(found.slots, 1u);
    expect_since(found);
    EXPECT_EQ(found.where.line(), line);
    EXPECT_NE(std::string{found.where.file_name()}.find("holders_test.cpp"), std::string::npos);
  }
  void expect_since(holder const& found) const {
    EXPECT_GE(found.since, before);
    EXPECT_LE(found.since, after);
  }
  void claim_and_release(stream_ref on) {
    before = clock::now();
    line = __LINE__ + 1;
    block_lease held = pool.claim(on);
    after = clock::now();
    fill(held, on.get(), 1);
  }
  [[nodiscard]] graph captured_graph() {
    return escrow::capture(stream.get(), [&](stream_ref on) { claim_and_release(on); });
  }
  static void share(graph& built, block_lease& held) {
    build(built).add(
        kernel_node(kernel(kernel_address(kernel_id::fill)), {}, held, block::length, 1));
  }
  void expect_nothing_out() { EXPECT_TRUE(pool.close_for(generous).empty()); }

  owned_stream stream = make_stream();
  block_pool pool = make_pool(4);
  clock::time_point before{};  // and after: of the claim
  clock::time_point after{};
  unsigned line = 0;

 private:
  void TearDown() override {
    pool = make_pool(0);
    captured_pool_test::TearDown();
  }
};

TEST_F(Holders, ALeaseHasNoCaptureAndItsPoolsLabel) {
  std::optional<block_lease> held = pool.claim(stream.get());
  holder const found = only_holder();
  EXPECT_EQ(found.capture_id, 0u);
  EXPECT_EQ(found.label, "blocks");
  EXPECT_EQ(found.slots, 1u);
  EXPECT_EQ(found.since, clock::time_point{});
  EXPECT_EQ(found.where.line(), 0u);
  held.reset();
  expect_nothing_out();
}

TEST_F(Holders, AnOpenCaptureIsNamedWhetherItsLeaseIsOutOrNot) {
  capture captured{stream, cudaStreamCaptureModeGlobal};
  before = clock::now();
  line = __LINE__ + 1;
  block_lease held = pool.claim(stream.get());
  after = clock::now();
  expect_captured(only_holder(), captured.info().id);
  held.release();
  expect_captured(only_holder(), captured.info().id);
  must(captured.end());
  captured.graph().reset();
  expect_nothing_out();
}

TEST_F(Holders, AGraphIsNamedByItsCapture) {
  std::optional<graph> source = captured_graph();
  expect_captured(only_holder(), source->id());
  source.reset();
  expect_nothing_out();
}

TEST_F(Holders, ACloneIsNamedByTheCaptureOfItsOriginal) {
  std::optional<graph> source = captured_graph();
  std::uint64_t const id = source->id();
  std::optional<graph> copy = source->clone();
  source.reset();
  expect_captured(only_holder(), id);
  copy.reset();
  expect_nothing_out();
}

TEST_F(Holders, AnExecIsNamedByTheCaptureOfItsGraph) {
  std::optional<graph> source = captured_graph();
  std::uint64_t const id = source->id();
  std::optional<graph_exec> exec(*source);
  source.reset();
  expect_captured(only_holder(), id);
  exec->launch(stream.get());
  sync(stream);
  expect_captured(only_holder(), id);
  exec.reset();
  expect_nothing_out();
}

TEST_F(Holders, APlainExecIsNamedByTheCaptureOfItsGraph) {
  owned_graph source{captured_graph().detach()};
  owned_exec exec = instantiate(source);
  std::uint64_t const id = only_holder().capture_id;
  source.reset();
  expect_captured(only_holder(), id);
  exec.reset();
  expect_nothing_out();
}

TEST_F(Holders, AnExecThatEndedInFlightIsNamedUntilItsLaunchIsDone) {
  pinned_flag flag;
  std::optional<graph> source = escrow::capture(stream.get(), [&](stream_ref on) {
    must(launch_wait_flag(on.get(), flag.get()));
    claim_and_release(on);
  });
  std::uint64_t const id = source->id();
  graph_exec(*source).launch(stream.get());
  source.reset();
  expect_captured(only_holder(), id);
  flag.raise();
  expect_nothing_out();
}

TEST_F(Holders, ANodesShareHasNoCaptureButALabelAndATime) {
  std::optional<graph> built(std::in_place, *worker);
  {
    block_lease held = pool.claim(stream.get());
    before = clock::now();
    share(*built, held);
    after = clock::now();
  }
  holder const found = only_holder();
  EXPECT_EQ(found.capture_id, 0u);
  EXPECT_EQ(found.label, "blocks");
  EXPECT_EQ(found.slots, 1u);
  expect_since(found);
  EXPECT_EQ(found.where.line(), 0u);
  built.reset();
  expect_nothing_out();
}

TEST_F(Holders, AllKindsAtOnceAreNamedApart) {
  std::optional<block_lease> leased = pool.claim(stream.get());
  std::optional<block_lease> shared = pool.claim(stream.get());
  std::optional<graph> built(std::in_place, *worker);
  share(*built, *shared);
  shared.reset();
  std::optional<graph> source = captured_graph();
  capture open{stream, cudaStreamCaptureModeGlobal};
  claim_and_release(stream.get());
  auto const all = pool.close_for(0ns);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].capture_id, source->id());
  EXPECT_EQ(all[1].capture_id, open.info().id);
  EXPECT_EQ(all[2].capture_id, 0u);  // the node's share
  EXPECT_NE(all[2].since, clock::time_point{});
  EXPECT_EQ(all[3].capture_id, 0u);  // the lease
  EXPECT_EQ(all[3].since, clock::time_point{});
  for (holder const& each : all) EXPECT_EQ(each.slots, 1u);
  must(open.end());
  open.graph().reset();
  source.reset();
  built.reset();
  leased.reset();
  expect_nothing_out();
}

}  // namespace
}  // namespace escrow::test
