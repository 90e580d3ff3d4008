// What graphs, execs and hoisted references hold, and what they say that they hold.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t small_bytes = 1024;
constexpr std::size_t large_bytes = 1U << 20U;

/// Something that a graph becomes, and what that says it holds.
struct holder {
  char const* name;
  resource_usage (*held)(graph source);
};

class Held : public world {
 protected:
  // Two blocks of scratch memory at a time, a slot without a size, and an owner.
  void keep_mixture(cudaStream_t on, cargo& taken) {
    auto const small = scratch.claim(stream_ref(on), small_bytes);
    auto const large = scratch.claim(stream_ref(on), large_bytes - 100);
    load(taken, on);
  }
  static void expect_mixture(resource_usage const& held) {
    EXPECT_EQ(held.slots, 3U);
    EXPECT_EQ(held.owners, 1U);
    EXPECT_EQ(held.bytes, small_bytes + large_bytes);
    // A scratch pool is a pool for each size.
    EXPECT_EQ(held.labels.size(), 4U);
    expect_label(held, "scratch of 1024 bytes", 1, small_bytes);
    expect_label(held, "scratch of 1048576 bytes", 1, large_bytes);
    expect_label(held, "blocks", 1, 0);  // the pool does not know the size
    expect_label(held, "owners", 1, 0);
  }
  static void expect_label(resource_usage const& held, std::string const& label, std::size_t count,
                           std::size_t bytes) {
    auto const found =
        std::ranges::find(held.labels, label, [](auto const& each) { return each.label; });
    ASSERT_NE(found, held.labels.end()) << label;
    EXPECT_EQ(found->count, count) << label;
    EXPECT_EQ(found->bytes, bytes) << label;
  }
  static void expect_nothing(resource_usage const& held) {
    EXPECT_EQ(held.slots, 0U);
    EXPECT_EQ(held.owners, 0U);
    EXPECT_EQ(held.bytes, 0U);
    EXPECT_TRUE(held.labels.empty());
  }
  [[nodiscard]] pool_options scratch_options() {
    pool_options chosen = options(8);
    chosen.label = "scratch";
    return chosen;
  }

  scratch_pool scratch{scratch_options()};
};

class HeldBy : public Held, public testing::WithParamInterface<holder> {};

INSTANTIATE_TEST_SUITE_P(
    Holders, HeldBy,
    testing::Values(holder{"AGraph", [](graph source) { return source.held(); }},
                    holder{"AnExecOfAClone",
                           [](graph source) { return graph_exec(source.clone()).held(); }},
                    holder{"AParentOfTheSameChildTwice",
                           [](graph source) {
                             graph parent;
                             parent.add_child(source);
                             parent.add_child(source);
                             return parent.held();
                           }},
                    holder{"HoistedReferences",
                           [](graph source) {
                             hoisted held = hoist(source);
                             resource_usage const result = held.held();
                             held.release();
                             return result;
                           }}),
    [](auto const& each) { return std::string(each.param.name); });

TEST_P(HeldBy, IsWhatTheCaptureClaimedAndRetired) {
  cargo taken = make_cargo();
  expect_mixture(GetParam().held(captured([&](cudaStream_t on) { keep_mixture(on, taken); })));
}

TEST_F(Held, ByAParentIsWhatItAndItsChildrenHold) {
  cargo taken = make_cargo();
  cargo own = make_cargo();
  graph parent = captured(own);
  parent.add_child(captured([&](cudaStream_t on) { keep_mixture(on, taken); }));
  for (resource_usage const& held : {parent.held(), graph_exec(parent).held()}) {
    EXPECT_EQ(held.slots, 4U);
    EXPECT_EQ(held.owners, 2U);
    EXPECT_EQ(held.bytes, small_bytes + large_bytes);
    expect_label(held, "blocks", 2, 0);
    expect_label(held, "owners", 2, 0);
  }
}

TEST_F(Held, ByNothingIsNothingAndByAPlainCloneNothingThatEscrowKnows) {
  cargo taken = make_cargo();
  graph const holds = captured(taken);
  graph const without_cargo = captured_without_cargo();
  graph const plain_copy(test::clone(holds.get()).release());
  expect_nothing(graph().held());
  for (graph const* each : {&without_cargo, &plain_copy}) {
    expect_nothing(each->held());
    expect_nothing(graph_exec(*each).held());
    hoisted held = hoist(*each);
    expect_nothing(held.held());
    held.release();
  }
}

// What some graphs hold, and what of it their execs keep.
class HeldByExec : public world {
 protected:
  // Retires an owner to a graph that was built by hand.
  void retire_to(cudaGraph_t graph, cargo& taken) { worker->retire(graph, probe(taken.fate)); }
};

TEST_F(HeldByExec, IsWhatIsHeldAtEachLevelOfChildren) {
  std::array<cargo, 3> taken{make_cargo(), make_cargo(), make_cargo()};
  cargo of_embedded = make_cargo();
  std::optional<graph> outer(captured(taken[0]));
  {
    graph between = captured(taken[1]);
    cudaGraphNode_t const node = between.add_child(captured(taken[2]));
    retire_to(embedded_graph(node), of_embedded);
    outer->add_child(between);
  }
  std::optional<graph_exec> exec(*outer);
  outer.reset();
  EXPECT_TRUE(is_kept(of_embedded));
  EXPECT_TRUE(is_kept(taken[1]));
  EXPECT_TRUE(is_kept(taken[2]));
  expect_bare_only_holder(exec, taken[0]);
  EXPECT_TRUE(is_released(of_embedded));
  EXPECT_TRUE(is_released(taken[1]));
  EXPECT_TRUE(is_released(taken[2]));
}

TEST_F(HeldByExec, IsWhatAChildHeldThoughItsNodeIsDestroyedAfterwards) {
  cargo taken = make_cargo();
  graph parent = captured_without_cargo();
  cudaGraphNode_t const node = parent.add_child(captured(taken));
  std::optional<graph_exec> before(parent);
  must(cudaGraphDestroyNode(node));
  graph_exec after(parent);
  EXPECT_TRUE(after.is_bare());
  expect_bare_only_holder(before, taken);
  after.launch(two);
  sync(two);
  EXPECT_EQ(cells.load(), 5);
}

TEST_F(HeldByExec, IsWhatAChildHoldsAsLongAsOneOfItsNodesIsLeft) {
  cargo taken = make_cargo();
  std::optional<graph> parent(std::in_place);
  {
    graph const child = captured(taken);
    cudaGraphNode_t const first = parent->add_child(child);
    parent->add_child(child);
    must(cudaGraphDestroyNode(first));
  }
  EXPECT_TRUE(is_kept(taken));
  std::optional<graph_exec> exec(*parent);
  parent.reset();
  expect_bare_only_holder(exec, taken);
}

TEST_F(HeldByExec, IsAlsoWhatWasCapturedIntoAPlainCloneAfterwards) {
  cargo taken = make_cargo();
  cargo late = make_cargo();
  owned_graph copy = test::clone(captured(taken).get());
  capture_into(copy, [&](cudaStream_t on) { load(late, on); });
  std::optional<graph_exec> exec(copy.get());
  copy.reset();
  EXPECT_TRUE(is_kept(late));
  expect_only_holder(exec, taken);
  EXPECT_TRUE(is_released(late));
}

}  // namespace
}  // namespace escrow::test
