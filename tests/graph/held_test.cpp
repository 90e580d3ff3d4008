// What graphs, execs and hoisted references say that they hold.
#include <algorithm>
#include <optional>
#include <string>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t small_bytes = 1024;
constexpr std::size_t large_bytes = 1U << 20U;

class Held : public hoist_test {
 protected:
  [[nodiscard]] scratch_pool make_scratch(std::string label) {
    pool_options chosen = options(8);
    chosen.label = std::move(label);
    return scratch_pool(chosen);
  }
  // A graph that has two blocks of scratch memory at a time, a slot without a size, and an owner.
  [[nodiscard]] graph captured_mixture(scratch_pool& scratch, cargo& taken) {
    return escrow::capture(one, [&](stream_ref stream) {
      auto const small = scratch.claim(stream, small_bytes);
      auto const large = scratch.claim(stream, large_bytes - 100);
      load(taken, stream.get());
      must(launch_add(stream.get(), cells.data(), 1));
    });
  }
  [[nodiscard]] static resource_usage::labelled of(resource_usage const& held,
                                                   std::string const& label) {
    auto const found =
        std::ranges::find(held.labels, label, [](auto const& each) { return each.label; });
    return found == held.labels.end() ? resource_usage::labelled{} : *found;
  }
  // That `held` is what a graph of captured_mixture() holds.
  static void expect_mixture(resource_usage const& held) {
    EXPECT_EQ(held.slots, 3U);
    EXPECT_EQ(held.owners, 1U);
    EXPECT_EQ(held.bytes, small_bytes + large_bytes);
    // A scratch pool is a pool for each size.
    EXPECT_EQ(held.labels.size(), 4U);
    EXPECT_EQ(of(held, "scratch of 1024 bytes").count, 1U);
    EXPECT_EQ(of(held, "scratch of 1024 bytes").bytes, small_bytes);
    EXPECT_EQ(of(held, "scratch of 1048576 bytes").count, 1U);
    EXPECT_EQ(of(held, "scratch of 1048576 bytes").bytes, large_bytes);
    EXPECT_EQ(of(held, "blocks").count, 1U);
    EXPECT_EQ(of(held, "blocks").bytes, 0U) << "the pool does not know the size";
    EXPECT_EQ(of(held, "owners").count, 1U);
    EXPECT_EQ(of(held, "owners").bytes, 0U);
  }
  static void expect_nothing(resource_usage const& held) {
    EXPECT_EQ(held.slots, 0U);
    EXPECT_EQ(held.owners, 0U);
    EXPECT_EQ(held.bytes, 0U);
    EXPECT_TRUE(held.labels.empty());
  }
};

TEST_F(Held, ByAGraphIsWhatItsCaptureClaimedAndRetired) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  expect_mixture(captured_mixture(scratch, taken).held());
}

TEST_F(Held, ByAGraphIsTheSameAfterItWasInstantiated) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  graph const source = captured_mixture(scratch, taken);
  { graph_exec(source).launch(two); }
  sync(two);
  expect_mixture(source.held());
}

TEST_F(Held, ByAnExecIsWhatItsGraphHeldAlsoWhenThatIsGone) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  std::optional<graph> source(captured_mixture(scratch, taken));
  graph_exec const exec(*source);
  expect_mixture(exec.held());
  source.reset();
  expect_mixture(exec.held());
}

TEST_F(Held, ByHoistedReferencesIsWhatTheGraphHeldAndTheGraphHoldsNothing) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  graph const source = captured_mixture(scratch, taken);
  hoisted held = hoist(source);
  expect_mixture(held.held());
  expect_nothing(source.held());
  held.release();
}

TEST_F(Held, BySomethingOfAForeignCaptureIsKnownToo) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  owned_graph source(captured_mixture(scratch, taken).detach());
  expect_mixture(graph_exec(source.get()).held());
  graph const taken_over(source.release());
  expect_mixture(taken_over.held());
}

TEST_F(Held, ByACloneIsTheSame) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  std::optional<graph> source(captured_mixture(scratch, taken));
  graph const copy = source->clone();
  expect_mixture(copy.held());
  expect_mixture(source->held());
  source.reset();
  expect_mixture(copy.held());
  expect_mixture(graph_exec(copy).held());
}

TEST_F(Held, ByAParentIsWhatItsChildrenHoldAtAnyDepth) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  cargo own = make_cargo();
  graph middle;
  middle.add_child(captured_mixture(scratch, taken));
  expect_mixture(middle.held());
  graph const parent = captured(own);
  {
    graph changed(parent.get());
    changed.add_child(middle);
    static_cast<void>(changed.detach());
  }
  resource_usage const held = parent.held();
  EXPECT_EQ(held.slots, 4U);
  EXPECT_EQ(held.owners, 2U);
  EXPECT_EQ(held.bytes, small_bytes + large_bytes);
  EXPECT_EQ(of(held, "blocks").count, 2U);
  EXPECT_EQ(of(held, "owners").count, 2U);
  resource_usage const by_exec = graph_exec(parent).held();
  EXPECT_EQ(by_exec.slots, 4U);
  EXPECT_EQ(by_exec.owners, 2U);
}

TEST_F(Held, ByAParentThatHasTheSameChildTwiceIsCountedOnce) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  graph const child = captured_mixture(scratch, taken);
  graph parent;
  parent.add_child(child);
  parent.add_child(child);
  expect_mixture(graph_exec(parent).held());
  expect_mixture(parent.held());
}

TEST_F(Held, ByAnExecOfNamedBodiesIsWhatTheyHoldToo) {
  scratch_pool scratch = make_scratch("scratch");
  cargo taken = make_cargo();
  graph const source;
  cudaGraph_t const body = add_conditional(source.get());
  capture_into(body, [&](cudaStream_t stream) {
    auto const small = scratch.claim(stream_ref(stream), small_bytes);
    auto const large = scratch.claim(stream_ref(stream), large_bytes);
    load(taken, stream);
  });
  instantiate_options naming;
  naming.bodies = {body};
  expect_mixture(graph_exec(source, naming).held());
}

TEST_F(Held, ByAnExecChangesWithAnUpdateAndNotWithOneThatFails) {
  cargo taken = make_cargo();
  cargo longer = make_cargo();
  graph_exec exec(captured_empty_handed());
  expect_nothing(exec.held());
  exec.update(captured(taken));
  EXPECT_EQ(exec.held().slots, 1U);
  EXPECT_EQ(exec.held().owners, 1U);
  EXPECT_THROW(exec.update(captured_behind_flag(longer)), cuda_error);
  EXPECT_EQ(exec.held().slots, 1U);
  exec.update(captured_empty_handed());
  expect_nothing(exec.held());
}

TEST_F(Held, ByAGraphThatTookUpMoreIsMoreAndByAnEarlierExecIsNot) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  graph const source = captured(early);
  graph_exec const exec(source);
  capture_into(source.get(), [&](cudaStream_t stream) { load(late, stream); });
  EXPECT_EQ(source.held().slots, 2U);
  EXPECT_EQ(source.held().owners, 2U);
  EXPECT_EQ(exec.held().slots, 1U);
  EXPECT_EQ(exec.held().owners, 1U);
}

TEST_F(Held, ByGraphsWhoseWorkUsesOneSlotInTurnIsOneSlot) {
  cargo taken = make_cargo();
  graph const source = escrow::capture(one, [&](stream_ref stream) {
    for (int i = 0; i < 5; ++i) library_work(taken.pool, stream.get(), i, mismatches);
  });
  EXPECT_EQ(source.held().slots, 1U);
  EXPECT_EQ(source.held().owners, 0U);
}

TEST_F(Held, ByNothingIsNothing) {
  cargo unrelated = make_cargo();
  graph const other = captured(unrelated);
  graph const source = captured_empty_handed();
  expect_nothing(source.held());
  expect_nothing(graph_exec(source).held());
  expect_nothing(graph().held());
  hoisted held = hoist(source);
  expect_nothing(held.held());
  held.release();
}

TEST_F(Held, ByAPlainCloneIsNothingThatEscrowKnows) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  graph const copy(test::clone(source.get()).release());
  expect_nothing(copy.held());
  expect_nothing(graph_exec(copy).held());
}

TEST_F(Held, DoesNotHarmACaptureOfItsOwnThread) {
  cargo taken = make_cargo();
  owned_graph source = captured_plainly(taken);
  graph const taken_over(source.release());
  graph_exec const exec(taken_over);
  test::capture open{two, cudaStreamCaptureModeGlobal};
  EXPECT_EQ(taken_over.held().slots, 1U);
  EXPECT_EQ(exec.held().slots, 1U);
  EXPECT_EQ(open.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
