// What a graph holds for a deleter stays as long as the graph, a clone, an exec or a launch may use
// it, however captures, copies and instantiations alternate, and is released afterwards.
#include <escrow/core/graph_lifetime_lock.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "world.hpp"

namespace escrow::test {
namespace {

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
enum class holder { source, early_clone, early_exec, late_clone, late_exec };

class PlainCopies : public ReferenceSet, public testing::WithParamInterface<holder> {
 protected:
  [[nodiscard]] bool uses_late() const {
    return GetParam() != holder::early_clone && GetParam() != holder::early_exec;
  }
};

INSTANTIATE_TEST_SUITE_P(LastHolder, PlainCopies,
                         testing::Values(holder::source, holder::early_clone, holder::early_exec,
                                         holder::late_clone, holder::late_exec));

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

  holder const last = GetParam();
  if (last != holder::source) source.reset();
  if (last != holder::late_clone) late_clone.reset();
  if (last != holder::late_exec) late_exec.reset();
  if (last != holder::early_clone) early_clone.reset();
  if (last != holder::early_exec) early_exec.reset();
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
