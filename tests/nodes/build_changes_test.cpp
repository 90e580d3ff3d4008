// Nodes that are changed: in the graph, for what is made of it from then on, or in one exec, for
// its launches from then on. Owners are in node_owner_changes_test.cpp.
#include <optional>

#include "changeable_kinds.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

template <class Kind>
class BuildChanges : public nodes_world {
 protected:
  node add_kind(graph_builder_ref const& at) { return Kind::add(things, at, 1); }
  void expect(graph_exec& exec, int way) {
    Kind::expect(
        things, [&] { run(exec); }, way);
  }
  changes_world things;
};

using kinds = testing::Types<of_launch, of_function, of_memset, of_memcpy, of_callable,
                             of_c_function, of_record, of_borrowed_event, of_wait>;
TYPED_TEST_SUITE(BuildChanges, kinds);

TYPED_TEST(BuildChanges, OfANodeConcernWhatIsMadeOfItsGraphFromThenOn) {
  node const made = this->add_kind(*this->built);
  graph_exec before(*this->built);
  graph const twin = this->built->clone();
  TypeParam::set(this->things, made, 2);
  EXPECT_EQ(nodes_in(*this->built).size(), 1U);
  graph_exec after(*this->built);
  graph_exec of_twin(twin);
  EXPECT_TRUE(after.is_bare());
  this->expect(before, 1);
  this->expect(after, 2);
  this->expect(of_twin, 1);
  before.update(*this->built);
  this->expect(before, 2);
}

TYPED_TEST(BuildChanges, OfAnExecConcernItAloneUntilAnUpdate) {
  node const made = this->add_kind(*this->built);
  graph_exec changed(*this->built);
  graph_exec other(*this->built);
  TypeParam::set(this->things, changed, made, 2);
  graph_exec later(*this->built);
  EXPECT_TRUE(changed.is_bare());
  this->expect(changed, 2);
  this->expect(other, 1);
  this->expect(later, 1);
  changed.update(*this->built);
  this->expect(changed, 1);
}

template <class Kind>
class BuildBodyChanges : public BuildChanges<Kind> {};

using kinds_of_bodies = testing::Types<of_launch, of_memset, of_memcpy>;
TYPED_TEST_SUITE(BuildBodyChanges, kinds_of_bodies);

TYPED_TEST(BuildBodyChanges, AreThoseOfOtherNodes) {
  condition const always = build(*this->built).make_condition(1);
  node const made = this->add_kind(build(*this->built).add(if_node(always)).body());
  std::optional<graph_exec> exec(*this->built);
  TypeParam::set(this->things, *exec, made, 2);
  this->expect(*exec, 2);
  exec.reset();  // such a graph has one at a time
  exec.emplace(*this->built);
  this->expect(*exec, 1);
  TypeParam::set(this->things, made, 2);
  this->expect(*exec, 1);
  exec.reset();
  exec.emplace(*this->built);
  this->expect(*exec, 2);
}

class BuildReadBack : public nodes_world {};

TEST_F(BuildReadBack, TellsWhatWasSetInTheGraphAndNotWhatInAnExec) {
  changes_world things;
  node const filled = of_memset::add(things, *built, 1);
  node const copied = of_memcpy::add(things, *built, 1);
  node const recorded = of_record::add(things, *built, 1);
  node const waited = of_wait::add(things, *built, 1);
  node const launched = of_launch::add(things, *built, 1);
  graph_exec exec(*built);
  of_memset::set(things, exec, filled, 2);
  of_memcpy::set(things, exec, copied, 2);
  of_record::set(things, exec, recorded, 2);
  of_wait::set(things, exec, waited, 2);
  escrow::set(exec, launched, kernel_node(add, {}, things.target.data(), 1));
  EXPECT_EQ(memset_params_of(filled).value, 1U);
  EXPECT_EQ(memcpy_params_of(copied).srcPtr.ptr, things.source(1));
  EXPECT_EQ(event_of(recorded), things.event_of(1).get());
  EXPECT_EQ(event_of(waited), things.event_of(1).get());
  EXPECT_EQ(kernel_params_of(launched).func, things.copy.get());
  of_memset::set(things, filled, 2);
  of_memcpy::set(things, copied, 2);
  of_record::set(things, recorded, 2);
  of_wait::set(things, waited, 2);
  launched.set(kernel_node(add, {.grid = {2}}, things.target.data(), 1));
  EXPECT_EQ(memset_params_of(filled).value, 2U);
  EXPECT_EQ(memcpy_params_of(copied).srcPtr.ptr, things.source(2));
  EXPECT_EQ(event_of(recorded), things.event_of(2).get());
  EXPECT_EQ(event_of(waited), things.event_of(2).get());
  EXPECT_EQ(kernel_params_of(launched).func, kernel(add).get());
  EXPECT_EQ(kernel_params_of(launched).gridDim.x, 2U);
}

}  // namespace
}  // namespace escrow::test
