// Nodes whose parameters are changed: in the graph, for what is made of it from then on, or in one
// exec, for its launches from then on.
#include <optional>
#include <utility>

#include "build_fixture.hpp"
#include "changeable_kinds.hpp"
#include "escrow/core/error.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

template <class Kind>
class BuildChanges : public build_test {
 protected:
  void expect(graph_exec& exec, int way) {
    Kind::expect(
        world_, [&] { run(exec); }, way);
  }
  changes_world world_;
};

using kinds = testing::Types<of_launch, of_function, of_memset, of_memcpy, of_callable,
                             of_c_function, of_record, of_borrowed_event>;
TYPED_TEST_SUITE(BuildChanges, kinds);

TYPED_TEST(BuildChanges, OfANodeConcernWhatIsMadeOfItsGraphFromThenOn) {
  node const made = TypeParam::add(this->world_, this->built_, 1);
  graph_exec before(this->built_);
  graph const twin = this->built_.clone();
  TypeParam::set(this->world_, made, 2);
  EXPECT_EQ(nodes_in(this->built_).size(), 1U);
  graph_exec after(this->built_);
  graph_exec of_twin(twin);
  EXPECT_TRUE(after.is_bare());
  this->expect(before, 1);
  this->expect(after, 2);
  this->expect(of_twin, 1);
  this->expect(before, 1);
}

TYPED_TEST(BuildChanges, OfAnExecConcernItAlone) {
  node const made = TypeParam::add(this->world_, this->built_, 1);
  graph_exec changed(this->built_);
  graph_exec other(this->built_);
  TypeParam::set(this->world_, changed, made, 2);
  graph_exec later(this->built_);
  EXPECT_TRUE(changed.is_bare());
  this->expect(changed, 2);
  this->expect(other, 1);
  this->expect(later, 1);
  this->expect(changed, 2);
  TypeParam::set(this->world_, changed, made, 1);
  this->expect(changed, 1);
}

TYPED_TEST(BuildChanges, AreUndoneByAnUpdateFromTheGraph) {
  node const made = TypeParam::add(this->world_, this->built_, 1);
  graph_exec exec(this->built_);
  TypeParam::set(this->world_, exec, made, 2);
  exec.update(this->built_);
  this->expect(exec, 1);
  TypeParam::set(this->world_, made, 2);
  this->expect(exec, 1);
  exec.update(this->built_);
  this->expect(exec, 2);
}

template <class Kind>
class BuildBodyChanges : public BuildChanges<Kind> {};

using kinds_of_bodies = testing::Types<of_launch, of_memset, of_memcpy>;
TYPED_TEST_SUITE(BuildBodyChanges, kinds_of_bodies);

TYPED_TEST(BuildBodyChanges, AreThoseOfOtherNodes) {
  condition const always = build(this->built_).make_condition(1);
  node const made =
      TypeParam::add(this->world_, build(this->built_).add(if_node(always)).body(), 1);
  std::optional<graph_exec> exec(this->built_);
  TypeParam::set(this->world_, *exec, made, 2);
  this->expect(*exec, 2);
  exec.reset();  // such a graph has one at a time
  exec.emplace(this->built_);
  this->expect(*exec, 1);
  TypeParam::set(this->world_, made, 2);
  this->expect(*exec, 1);
  exec.reset();
  exec.emplace(this->built_);
  this->expect(*exec, 2);
}

class BuildReadBack : public build_test {
 protected:
  changes_world world_;
};

TEST_F(BuildReadBack, TellsWhatWasSetInTheGraphAndNotWhatInAnExec) {
  node const filled = of_memset::add(world_, built_, 1);
  node const copied = of_memcpy::add(world_, built_, 1);
  node const recorded = of_record::add(world_, built_, 1);
  node const launched = of_launch::add(world_, built_, 1);
  graph_exec exec(built_);
  of_memset::set(world_, exec, filled, 2);
  of_memcpy::set(world_, exec, copied, 2);
  of_record::set(world_, exec, recorded, 2);
  escrow::set(exec, launched, kernel_node(add, {}, world_.target.data(), 1));
  EXPECT_EQ(memset_params_of(filled).value, 1U);
  EXPECT_EQ(memcpy_params_of(copied).srcPtr.ptr, world_.source(1));
  EXPECT_EQ(event_of(recorded), world_.events[1].get());
  EXPECT_EQ(kernel_params_of(launched).func, world_.copy.get());
  of_memset::set(world_, filled, 2);
  of_memcpy::set(world_, copied, 2);
  of_record::set(world_, recorded, 2);
  launched.set(kernel_node(add, {.grid = {2}}, world_.target.data(), 1));
  EXPECT_EQ(memset_params_of(filled).value, 2U);
  EXPECT_EQ(memcpy_params_of(copied).srcPtr.ptr, world_.source(2));
  EXPECT_EQ(event_of(recorded), world_.events[2].get());
  EXPECT_EQ(kernel_params_of(launched).func, kernel(add).get());
  EXPECT_EQ(kernel_params_of(launched).gridDim.x, 2U);
}

TEST_F(BuildReadBack, RunsTheKernelsOfLibrariesThatAreSetAndTakenAway) {
  library const loaded = library::load(library_code());
  node const made = build(built_).add(kernel_node(loaded.find("library_tiny"), {}));
  made.set(kernel_node(add, {}, cells_.data(), 1));
  EXPECT_EQ(kernel_params_of(made).func, kernel(add).get());
  made.set(kernel_node(loaded.find("library_add"), {.block = {1}}, cells_.data(), 4));
  run(built_);
  EXPECT_EQ(cells_.load(), 4);
}

// Expects that launches of the exec wait for this event.
void expect_waits_for(graph_exec& exec, shared_event const& event) {
  pinned_flag flag;
  owned_stream const held_up = make_stream();
  owned_stream const stream = make_stream();
  must(launch_wait_flag(held_up, flag.get()));
  must(cudaEventRecord(event.get(), held_up));
  exec.launch(stream);
  EXPECT_TRUE(stays_false([&] { return has_finished(stream); }));
  flag.raise();
  must(cudaStreamSynchronize(stream));
}

TEST_F(BuildReadBack, OfWaitsThatAreChangedTellsTheirEvents) {
  node const made = build(built_).add(wait_node(world_.events[1]));
  graph_exec before(built_);
  graph_exec changed(built_);
  made.set(wait_node(world_.events[2]));
  escrow::set(changed, made, wait_node(world_.events[0].ref()));
  graph_exec after(built_);
  EXPECT_EQ(type_of(made), cudaGraphNodeTypeWaitEvent);
  EXPECT_EQ(event_of(made), world_.events[2].get());
  expect_waits_for(before, world_.events[1]);
  expect_waits_for(changed, world_.events[0]);
  expect_waits_for(after, world_.events[2]);
}

TEST_F(BuildReadBack, ParametersOfAnotherKindAreRefusedAndChangeNothing) {
  node const filled = of_memset::add(world_, built_, 1);
  graph_exec exec(built_);
  auto const expect_refused = [](auto call) {
    try {
      call();
      ADD_FAILURE() << "changed it";
    } catch (cuda_error const& error) {
      EXPECT_EQ(error.status(), cudaErrorInvalidValue);
    }
  };
  expect_refused([&] { of_memcpy::set(world_, filled, 2); });
  expect_refused([&] { of_launch::set(world_, filled, 2); });
  expect_refused([&] { of_callable::set(world_, filled, 2); });
  expect_refused([&] { of_record::set(world_, filled, 2); });
  expect_refused([&] { of_memcpy::set(world_, exec, filled, 2); });
  expect_refused([&] { of_callable::set(world_, exec, filled, 2); });
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  run(exec);
  EXPECT_EQ(world_.device.read()[0], 1);
}

}  // namespace
}  // namespace escrow::test
