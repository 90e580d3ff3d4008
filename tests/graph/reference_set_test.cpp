// What a graph holds for a deleter stays as long as the graph, a clone, an exec or a launch may use
// it, however captures, copies and instantiations alternate, and is released afterwards.
#include <memory>
#include <optional>

#include "reference_set_fixture.hpp"

namespace escrow::test {
namespace {

class ReferenceSet : public reference_set_test {};

// The exec was made with a plain call between two captures into its graph, so it may hold what the
// second one retires (it only grows until it is sealed, and Escrow cannot know of the plain call).
// If that owns the exec, neither is ever released: the exec keeps its owner, and the owner the
// exec. CUDA's own user objects do the same if the exec is made after both captures. The way out is
// an instantiation through Escrow (SealedBetweenCaptures), or destroying the exec first, as here.
TEST_F(ReferenceSet, AnOwnerOfAPlainExecOfItsGraphIsNotReleasedEarly) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool pool = make_pool(1);
  std::weak_ptr<owned_exec> watched;
  {
    graph const source = captured_behind_flag([&](cudaStream_t on) { use(pool, first, on); });
    owned_exec exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    exec_owner owner(std::move(exec), second);
    watched = owner.watch();
    capture_into(source.get(), [&](cudaStream_t on) { worker->retire(on, std::move(owner)); });
    EXPECT_TRUE(are_kept(pool, first));
    EXPECT_TRUE(is_kept(second)) << "the graph is there";
  }
  EXPECT_TRUE(are_kept(pool, first)) << "the launch uses it";
  flag.raise();
  sync(two);
  static_cast<void>(wait_until([&] { return second->was_destroyed(); }, generous / 10));
  if (auto const exec = watched.lock()) {
    graph_lifetime_lock const lock;
    exec->reset();
  }
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(are_released(pool, first));
}

TEST_F(ReferenceSet, AnOwnerOfAPlainExecThatIsRetiredToTheGraphItselfIsReleased) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool pool = make_pool(1);
  {
    graph const source = captured([&](cudaStream_t on) { use(pool, first, on); });
    worker->retire(source.get(), exec_owner(instantiate(source.get()), second));
    EXPECT_TRUE(is_kept(second));
    EXPECT_TRUE(are_kept(pool, first));
  }
  EXPECT_TRUE(is_released(second)) << "the exec holds its own owner";
  EXPECT_TRUE(are_released(pool, first));
}

TEST_F(ReferenceSet, OwnersOfPlainExecsThatAreRetiredToTheGraphOneAfterAnotherAreReleased) {
  auto const first = make_fate();
  auto const second = make_fate();
  owned_graph source = tiny_graph();
  worker->retire(source.get(), exec_owner(instantiate(source), first));
  // This one holds the owner of the one before, which does not hold this one.
  worker->retire(source.get(), exec_owner(instantiate(source), second));
  EXPECT_TRUE(is_kept(first));
  EXPECT_TRUE(is_kept(second));
  source.reset();
  EXPECT_TRUE(is_released(second));
  EXPECT_TRUE(is_released(first));
}

TEST_F(ReferenceSet, AnExecDoesNotKeepWhatACaptureAfterItsInstantiationClaimed) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool early = make_pool(1);
  block_pool late = make_pool(1);
  std::optional<graph> source(captured([&](cudaStream_t on) { use(early, first, on); }));
  std::optional<graph_exec> exec(*source);
  capture_into(source->get(), [&](cudaStream_t on) { use(late, second, on); });
  std::optional<graph_exec> of_both(*source);
  source.reset();
  EXPECT_TRUE(are_kept(late, second));
  of_both.reset();
  EXPECT_TRUE(are_released(late, second)) << "the first exec keeps what it does not use";
  EXPECT_TRUE(are_kept(early, first));
  exec->launch(two);
  sync(two);
  exec.reset();
  EXPECT_TRUE(are_released(early, first));
}

TEST_F(ReferenceSet, TheFirstExecIsReleasedWhileTheGraphKeepsWhatALaterCaptureClaimed) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool early = make_pool(1);
  block_pool late = make_pool(1);
  graph source = captured([&](cudaStream_t on) { use(early, first, on); });
  {
    graph_exec exec(source);
    capture_into(source.get(), [&](cudaStream_t on) { use(late, second, on); });
    exec.launch(two);
    sync(two);
  }
  EXPECT_TRUE(are_kept(early, first)) << "the graph may be instantiated again";
  EXPECT_TRUE(are_kept(late, second));
  source = graph();
  EXPECT_TRUE(are_released(early, first));
  EXPECT_TRUE(are_released(late, second));
}

TEST_F(ReferenceSet, AnExecDestroyedInFlightReleasesAfterItsLastLaunch) {
  auto const fate = make_fate();
  block_pool pool = make_pool(1);
  {
    graph_exec exec(captured_behind_flag([&](cudaStream_t on) { use(pool, fate, on); }));
    exec.launch(two);
    exec.launch(three);
  }
  ASSERT_TRUE(have_started(1));
  EXPECT_TRUE(are_kept(pool, fate));
  flag.raise();
  EXPECT_TRUE(are_released(pool, fate));
  EXPECT_EQ(cells.load(1), 2) << "released before the last launch was done";
}

TEST_F(ReferenceSet, APlainExecDestroyedInFlightReleasesAfterItsLastLaunch) {
  auto const fate = make_fate();
  block_pool pool = make_pool(1);
  {
    graph const source = captured_behind_flag([&](cudaStream_t on) { use(pool, fate, on); });
    owned_exec const exec = instantiate(source.get());
    must(cudaGraphLaunch(exec, two));
    must(cudaGraphLaunch(exec, two));
  }
  ASSERT_TRUE(have_started(1));
  EXPECT_TRUE(are_kept(pool, fate));
  flag.raise();
  EXPECT_TRUE(are_released(pool, fate));
  EXPECT_EQ(cells.load(1), 2);
}

// What Escrow makes of a graph between two captures keeps what the first one used, and nothing of
// the second.
enum class made_between { exec, updated_exec, clone, parent, hoisted_references };

class SealedBetweenCaptures : public reference_set_test,
                              public testing::WithParamInterface<made_between> {
 protected:
  [[nodiscard]] std::shared_ptr<void> make(graph const& source, graph const& alike) {
    switch (GetParam()) {
      case made_between::exec:
        return std::make_shared<graph_exec>(source);
      case made_between::updated_exec: {
        auto const exec = std::make_shared<graph_exec>(alike);
        exec->update(source);
        return exec;
      }
      case made_between::clone:
        return std::make_shared<graph>(source.clone());
      case made_between::parent: {
        auto const parent = std::make_shared<graph>();
        parent->add_child(source);
        return parent;
      }
      case made_between::hoisted_references:
        return {new hoisted(hoist(source)), [](hoisted* taken) {
                  taken->release();
                  delete taken;
                }};
    }
    return nullptr;
  }
};

INSTANTIATE_TEST_SUITE_P(Made, SealedBetweenCaptures,
                         testing::Values(made_between::exec, made_between::updated_exec,
                                         made_between::clone, made_between::parent,
                                         made_between::hoisted_references));

TEST_P(SealedBetweenCaptures, KeepsWhatTheFirstUsedAndNothingOfTheSecond) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool early = make_pool(1);
  block_pool late = make_pool(1);
  block_pool other = make_pool(1);
  std::optional<graph> source(captured([&](cudaStream_t on) { use(early, first, on); }));
  std::shared_ptr<void> between;
  {
    graph const alike = captured([&](cudaStream_t on) { use(other, make_fate(), on); });
    between = make(*source, alike);
  }
  capture_into(source->get(), [&](cudaStream_t on) { use(late, second, on); });
  EXPECT_TRUE(are_kept(late, second));
  source.reset();
  EXPECT_TRUE(are_released(late, second)) << "it keeps what it does not use";
  EXPECT_TRUE(are_kept(early, first));
  between.reset();
  EXPECT_TRUE(are_released(early, first));
}

TEST_P(SealedBetweenCaptures, IsReleasedThoughTheSecondRetiresItself) {
  auto const first = make_fate();
  block_pool early = make_pool(1);
  block_pool other = make_pool(1);
  {
    graph const source = captured([&](cudaStream_t on) { use(early, first, on); });
    graph const alike = captured([&](cudaStream_t on) { use(other, make_fate(), on); });
    std::shared_ptr<void> between = make(source, alike);
    capture_into(source.get(), [&](cudaStream_t on) { worker->retire(on, std::move(between)); });
    EXPECT_TRUE(are_kept(early, first));
  }
  EXPECT_TRUE(are_released(early, first)) << "it holds itself";
}

// Clones and execs that plain calls make of one graph before, between and after two captures.
enum class holder { source, early_clone, early_exec, late_clone, late_exec };

class PlainCopies : public reference_set_test, public testing::WithParamInterface<holder> {
 protected:
  [[nodiscard]] bool uses_late() const {
    return GetParam() != holder::early_clone && GetParam() != holder::early_exec;
  }
  void run(cudaGraph_t what) { run(instantiate(what)); }
  void run(owned_exec const& what) {
    must(cudaGraphLaunch(what, two));
    sync(two);
  }
};

INSTANTIATE_TEST_SUITE_P(LastHolder, PlainCopies,
                         testing::Values(holder::source, holder::early_clone, holder::early_exec,
                                         holder::late_clone, holder::late_exec));

TEST_P(PlainCopies, KeepWhatTheyMayUse) {
  auto const first = make_fate();
  auto const second = make_fate();
  block_pool early = make_pool(1);
  block_pool late = make_pool(1);
  owned_graph source = make_graph();
  owned_graph const empty = clone(source);
  capture_into(source, [&](cudaStream_t on) { use(early, first, on); });
  owned_graph early_clone = clone(source);
  owned_exec early_exec = instantiate(early_clone);
  capture_into(source, [&](cudaStream_t on) { use(late, second, on); });
  owned_graph late_clone = clone(source);
  owned_exec late_exec = instantiate(source);

  holder const last = GetParam();
  if (last != holder::source) source.reset();
  if (last != holder::late_clone) late_clone.reset();
  if (last != holder::late_exec) late_exec.reset();
  if (last != holder::early_clone) early_clone.reset();
  if (last != holder::early_exec) early_exec.reset();
  EXPECT_TRUE(are_kept(early, first));
  if (uses_late()) {
    EXPECT_TRUE(are_kept(late, second));
  }
  if (source != nullptr) run(source.get());
  if (early_clone != nullptr) run(early_clone.get());
  if (early_exec != nullptr) run(early_exec);
  if (late_clone != nullptr) run(late_clone.get());
  if (late_exec != nullptr) run(late_exec);
  EXPECT_TRUE(are_kept(early, first));

  for (owned_graph* const each : {&source, &early_clone, &late_clone}) each->reset();
  for (owned_exec* const each : {&early_exec, &late_exec}) each->reset();
  EXPECT_TRUE(are_released(early, first));
  EXPECT_TRUE(are_released(late, second));
}

}  // namespace
}  // namespace escrow::test
