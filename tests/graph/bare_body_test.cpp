// Graphs with conditional nodes: what their bodies hold is held by the exec, and the exec is bare
// where the bodies were named.
#include <optional>
#include <string>

#include "bodies_fixture.hpp"

namespace escrow::test {
namespace {

class BareBody : public bodies_test, public testing::WithParamInterface<node_kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, BareBody,
                         testing::Values(if_taken, if_not_taken, if_of_if_else, else_of_if_else,
                                         while_never, switch_of_three, switch_to_none),
                         [](auto const& kind) { return std::string(kind.param.name); });

TEST_P(BareBody, ThatIsNamedLeavesTheExecBareAndHolding) {
  conditional_graph source = make(GetParam());
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  source.whole.reset();
  expect_all_kept(source);
  expect_bare_sole_holder(exec, source.taken.back());
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 2 * GetParam().runs);
}

TEST_P(BareBody, ThatIsNotNamedLeavesTheExecRightButNotBare) {
  conditional_graph source = make(GetParam());
  std::optional<graph_exec> exec(*source.whole);
  EXPECT_FALSE(exec->is_bare());
  source.whole.reset();
  expect_all_kept(source);
  expect_sole_holder(exec, source.taken.back());
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 2 * GetParam().runs);
}

TEST_P(BareBody, KeepsWhatItHoldsWhenTheExecGoesFirst) {
  conditional_graph source = make(GetParam());
  for (int i = 0; i < 3; ++i) {
    graph_exec exec(*source.whole, naming(source.bodies));
    exec.launch(two);
    sync(two);
  }
  for (cargo& each : source.taken) EXPECT_TRUE(stays_kept(each));
  source.whole.reset();
  expect_all_back(source);
  EXPECT_EQ(cells.load(), 3 * GetParam().runs);
}

TEST_P(BareBody, MayBeInstantiatedPlainlyAfterwards) {
  conditional_graph source = make(GetParam());
  { graph_exec const exec(*source.whole, naming(source.bodies)); }
  owned_exec plain = instantiate(source.whole->get());
  source.whole.reset();
  expect_all_kept(source);
  must(cudaGraphLaunch(plain, two));
  sync(two);
  plain.reset();
  expect_all_back(source);
}

}  // namespace
}  // namespace escrow::test
