// Every allocation of every operation of graphs and execs fails: one alone, and that one with all
// behind it.
#include "../pool/allocation_watch.hpp"
#include "exec_scenarios.hpp"

namespace escrow::test {
namespace {

enum class lack { of_one, from_then_on };

class ExecAllocationFault : public testing::TestWithParam<std::tuple<exec_scenario, lack>> {
 protected:
  // Returns how many allocations the operation made with its n-th failing.
  static std::uint64_t run_one(std::uint64_t n, bool ends_in_flight) {
    auto const& [scenario, lacking] = GetParam();
    exec_world world;
    scenario.prepare(world);
    auto const before = holdings(world);
    std::uint64_t made = 0;
    bool threw = false;
    {
      allocation_watch const watch{n, lacking == lack::of_one ? 1 : allocation_watch::for_ever};
      try {
        scenario.act(world);
      } catch (std::bad_alloc const&) {
        threw = true;
      } catch (cuda_error const& error) {
        threw = error.status() == cudaErrorMemoryAllocation;
        EXPECT_TRUE(threw) << error.what();
      }
      made = watch.count();
    }
    EXPECT_FALSE(threw && made < n) << "nothing failed";
    if (threw) {
      EXPECT_TRUE(scenario.is_strong);
      EXPECT_TRUE(holdings(world) == before) << "something has changed";
      EXPECT_NO_THROW(scenario.act(world)) << "it cannot be tried again";
    }
    if (ends_in_flight) {
      expect_end_in_flight(world);
    } else {
      expect_end_with_the_graph(world);
    }
    return made;
  }
};

TEST_P(ExecAllocationFault, ChangesNothingLeaksNothingAndFreesNothingEarly) {
  for (bool const ends_in_flight : {true, false}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      ASSERT_LT(n, 200u) << "the operation has no end";
      bool const is_last = run_one(n, ends_in_flight) < n;
      if (HasFailure()) return;
      if (is_last) break;
    }
  }
}

std::string name_of(testing::TestParamInfo<std::tuple<exec_scenario, lack>> const& info) {
  return std::string{std::get<0>(info.param).name} +
         (std::get<1>(info.param) == lack::of_one ? "_OneFails" : "_AllFailFromThenOn");
}

INSTANTIATE_TEST_SUITE_P(Every, ExecAllocationFault,
                         testing::Combine(testing::ValuesIn(exec_scenarios()),
                                          testing::Values(lack::of_one, lack::from_then_on)),
                         name_of);

}  // namespace
}  // namespace escrow::test
