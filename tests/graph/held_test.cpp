// SPDX-License-Identifier: Apache-2.0
// What graphs, execs and hoisted references hold, and what they say that they hold. It stays as
// long as the graph, a clone, an exec or a launch may use it, however captures, copies and
// instantiations alternate, and is released afterwards.
#include <array>
#include <escrow/core/capture.hpp>

#include "graph_nodes.hpp"
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
  }
  static void expect_nothing(resource_usage const& held) {
    EXPECT_EQ(held.slots, 0U);
    EXPECT_EQ(held.owners, 0U);
    EXPECT_EQ(held.bytes, 0U);
  }

  scratch_pool scratch{options(8)};
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

using HeldByExec = world;

TEST_F(HeldByExec, IsWhatIsHeldAtEachLevelOfChildrenAsLongAsANodeOfEachIsLeft) {
  std::array<cargo, 3> taken{make_cargo(), make_cargo(), make_cargo()};
  cargo of_embedded = make_cargo();
  std::optional<graph> outer(captured(taken[0]));
  {
    graph between = captured(taken[1]);
    cudaGraphNode_t const node = between.add_child(captured(taken[2]));
    worker->retire(embedded_graph(node), probe(of_embedded.fate));
    cudaGraphNode_t const first = outer->add_child(between);
    outer->add_child(between);
    must(cudaGraphDestroyNode(first));
  }
  std::optional<graph_exec> exec(*outer);
  outer.reset();
  for (cargo* const each : {&of_embedded, &taken[1], &taken[2]}) EXPECT_TRUE(is_kept(*each));
  expect_bare_only_holder(exec, taken[0]);
  for (cargo* const each : {&of_embedded, &taken[1], &taken[2]}) EXPECT_TRUE(is_released(*each));
}

/// An owner of an exec that was made with plain calls.
class exec_owner {
 public:
  exec_owner(owned_exec exec, fate_ptr fate)
      : exec_(std::make_shared<owned_exec>(std::move(exec))), probe_(std::move(fate)) {}
  exec_owner(exec_owner&&) noexcept = default;
  exec_owner& operator=(exec_owner&&) = delete;
  ~exec_owner() {
    if (exec_ == nullptr) return;
    graph_lifetime_lock const lock;
    exec_->reset();
  }
  /// What the owner has, for as long as it exists.
  [[nodiscard]] std::weak_ptr<owned_exec> watch() const { return exec_; }

 private:
  std::shared_ptr<owned_exec> exec_;
  probe probe_;
};

class ReferenceSet : public world {
 protected:
  // Captures more into the graph: it holds `taken` then, too.
  void capture_more(cudaGraph_t graph, cargo& taken) {
    capture_into(graph, [&](cudaStream_t on) { load(taken, on); });
  }
};

// The exec was made with a plain call between two captures into its graph, so it may hold what the
// second one retires (it only grows until it is sealed, and Escrow cannot know of the plain call).
// If that owns the exec, neither is ever released: the exec keeps its owner, and the owner the
// exec. CUDA's own user objects do the same if the exec is made after both captures. The way out is
// an instantiation through Escrow (SealedBetweenCaptures), or destroying the exec first, as here.
TEST_F(ReferenceSet, AnOwnerOfAPlainExecOfItsGraphIsNotReleasedEarly) {
  cargo first = make_cargo();
  fate_ptr const second = make_fate();
  std::weak_ptr<owned_exec> watched;
  {
    graph const source = captured_behind_flag(first);
    owned_exec exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    exec_owner owner(std::move(exec), second);
    watched = owner.watch();
    capture_into(source.get(), [&](cudaStream_t on) { worker->retire(on, std::move(owner)); });
    EXPECT_TRUE(is_kept(first));
    EXPECT_TRUE(is_kept(second)) << "the graph is there";
  }
  EXPECT_TRUE(is_kept(first)) << "the launch uses it";
  flag.raise();
  sync(two);
  static_cast<void>(wait_until([&] { return second->was_destroyed(); }, generous / 10));
  if (auto const exec = watched.lock()) {
    graph_lifetime_lock const lock;
    exec->reset();
  }
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_released(first));
}

// The second exec holds the owner of the first, which does not hold that of the second.
TEST_F(ReferenceSet, OwnersOfPlainExecsThatAreRetiredToTheGraphItselfAreReleased) {
  cargo taken = make_cargo();
  fate_ptr const first = make_fate();
  fate_ptr const second = make_fate();
  {
    graph const source = captured(taken);
    worker->retire(source.get(), exec_owner(instantiate(source.get()), first));
    worker->retire(source.get(), exec_owner(instantiate(source.get()), second));
    EXPECT_TRUE(is_kept(first));
    EXPECT_TRUE(is_kept(second));
    EXPECT_TRUE(is_kept(taken));
  }
  EXPECT_TRUE(is_released(second)) << "the exec holds its own owner";
  EXPECT_TRUE(is_released(first));
  EXPECT_TRUE(is_released(taken));
}

/// What Escrow makes of a graph between two captures into it.
class SealedBetweenCaptures : public ReferenceSet, public testing::WithParamInterface<char const*> {
 protected:
  [[nodiscard]] std::shared_ptr<void> make_of(graph const& source) {
    std::string const what = GetParam();
    if (what == "Exec") return std::make_shared<graph_exec>(source);
    if (what == "Clone") return std::make_shared<graph>(source.clone());
    if (what == "UpdatedExec") {
      auto const exec = std::make_shared<graph_exec>(captured_without_cargo());
      exec->update(source);
      return exec;
    }
    if (what == "Parent") {
      auto const parent = std::make_shared<graph>();
      parent->add_child(source);
      return parent;
    }
    must(what == "HoistedReferences", "that can be made");
    return {new hoisted(hoist(source)), [](hoisted* taken) {
              taken->release();
              delete taken;
            }};
  }
};

INSTANTIATE_TEST_SUITE_P(Made, SealedBetweenCaptures,
                         testing::Values("Exec", "UpdatedExec", "Clone", "Parent",
                                         "HoistedReferences"),
                         [](auto const& each) { return std::string(each.param); });

TEST_P(SealedBetweenCaptures, KeepsWhatTheFirstUsedAndNothingOfTheSecond) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  std::optional<graph> source(captured(early));
  std::shared_ptr<void> between = make_of(*source);
  capture_more(source->get(), late);
  EXPECT_TRUE(is_kept(late)) << "the graph is there";
  EXPECT_TRUE(is_kept(early));
  source.reset();
  EXPECT_TRUE(is_released(late)) << "it keeps what it does not use";
  EXPECT_TRUE(stays_kept(early));
  between.reset();
  EXPECT_TRUE(is_released(early));
}

TEST_P(SealedBetweenCaptures, IsReleasedThoughTheSecondRetiresItself) {
  cargo early = make_cargo();
  {
    graph const source = captured(early);
    std::shared_ptr<void> between = make_of(source);
    capture_into(source.get(), [&](cudaStream_t on) { worker->retire(on, std::move(between)); });
    EXPECT_TRUE(is_kept(early));
  }
  EXPECT_TRUE(is_released(early)) << "it holds itself";
}

/// Plain calls make clones and execs of a graph before and after a second capture into it. The
/// parameter is which of them is left.
class PlainCopies : public ReferenceSet, public testing::WithParamInterface<char const*> {
 protected:
  void keep_only(char const* name, auto& each) {
    if (std::string(GetParam()) != name) each.reset();
  }
};

INSTANTIATE_TEST_SUITE_P(Left, PlainCopies,
                         testing::Values("Source", "EarlyClone", "EarlyExec", "LateClone",
                                         "LateExec"),
                         [](auto const& each) { return std::string(each.param); });

TEST_P(PlainCopies, KeepWhatTheyMayUse) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  owned_graph source = make_graph();
  capture_more(source, early);
  owned_graph early_clone = test::clone(source);
  owned_exec early_exec = instantiate(early_clone);
  capture_more(source, late);
  owned_graph late_clone = test::clone(source);
  owned_exec late_exec = instantiate(source);
  keep_only("Source", source);
  keep_only("LateClone", late_clone);
  keep_only("LateExec", late_exec);
  keep_only("EarlyClone", early_clone);
  keep_only("EarlyExec", early_exec);
  EXPECT_TRUE(stays_kept(early));
  EXPECT_TRUE(std::string(GetParam()).starts_with("Early") || is_kept(late));
  for (owned_graph* const each : {&source, &early_clone, &late_clone}) {
    if (each->get() != nullptr) early_exec = instantiate(*each);
    each->reset();
  }
  owned_exec& last = early_exec.get() != nullptr ? early_exec : late_exec;
  test::run(last, two);
  EXPECT_TRUE(is_kept(early));
  last.reset();
  EXPECT_TRUE(is_released(early));
  EXPECT_TRUE(is_released(late));
}

}  // namespace
}  // namespace escrow::test
