// What graphs, execs and hoisted references hold, and what they say that they hold. It stays as
// long as the graph, a clone, an exec or a launch may use it, however captures, copies and
// instantiations alternate, and is released afterwards.
#include <algorithm>
#include <array>
#include <escrow/core/capture.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  static void run_plainly(owned_exec const& exec, cudaStream_t on) {
    must(cudaGraphLaunch(exec, on));
    sync(on);
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
    if (what == "UpdatedExec") return updated_exec_of(source);
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
  [[nodiscard]] std::shared_ptr<void> updated_exec_of(graph const& source) {
    cargo other = make_cargo();
    auto const exec = std::make_shared<graph_exec>(captured(other));
    exec->update(source);
    EXPECT_TRUE(is_released(other));
    return exec;
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

// Clones and execs that plain calls make of one graph before, between and after two captures.
enum class last_holder { source, early_clone, early_exec, late_clone, late_exec };

class PlainCopies : public ReferenceSet, public testing::WithParamInterface<last_holder> {
 protected:
  [[nodiscard]] bool uses_late() const {
    return GetParam() != last_holder::early_clone && GetParam() != last_holder::early_exec;
  }
};

INSTANTIATE_TEST_SUITE_P(LastHolder, PlainCopies,
                         testing::Values(last_holder::source, last_holder::early_clone,
                                         last_holder::early_exec, last_holder::late_clone,
                                         last_holder::late_exec));

TEST_P(PlainCopies, KeepWhatTheyMayUse) {
  cargo early = make_cargo();
  cargo late = make_cargo();
  owned_graph source = make_graph();
  owned_graph const empty = test::clone(source);
  capture_more(source, early);
  owned_graph early_clone = test::clone(source);
  owned_exec early_exec = instantiate(early_clone);
  capture_more(source, late);
  owned_graph late_clone = test::clone(source);
  owned_exec late_exec = instantiate(source);

  last_holder const last = GetParam();
  if (last != last_holder::source) source.reset();
  if (last != last_holder::late_clone) late_clone.reset();
  if (last != last_holder::late_exec) late_exec.reset();
  if (last != last_holder::early_clone) early_clone.reset();
  if (last != last_holder::early_exec) early_exec.reset();
  EXPECT_TRUE(stays_kept(early));
  EXPECT_TRUE(!uses_late() || is_kept(late));
  for (owned_graph const* const each : {&source, &early_clone, &late_clone}) {
    if (each->get() != nullptr) run_plainly(instantiate(*each), two);
  }
  for (owned_exec const* const each : {&early_exec, &late_exec}) {
    if (each->get() != nullptr) run_plainly(*each, two);
  }
  EXPECT_TRUE(is_kept(early));

  for (owned_graph* const each : {&source, &early_clone, &late_clone}) each->reset();
  for (owned_exec* const each : {&early_exec, &late_exec}) each->reset();
  EXPECT_TRUE(is_released(early));
  EXPECT_TRUE(is_released(late));
}

}  // namespace
}  // namespace escrow::test
