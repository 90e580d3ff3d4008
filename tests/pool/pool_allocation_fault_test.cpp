// Every allocation of every operation of a pool fails once.
#include "allocation_watch.hpp"
#include "fault_world.hpp"

namespace escrow::test {
namespace {

class PoolAllocationFault : public testing::TestWithParam<fault_scenario> {};

TEST_P(PoolAllocationFault, LeavesNothingLostSharedOrFreedEarly) {
  fault_scenario const& scenario = GetParam();
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    ASSERT_LT(n, 200u) << "the operation has no end";
    fault_world world;
    scenario.prepare(world);
    std::uint64_t made = 0;
    bool threw = false;
    {
      allocation_watch const watch{n};
      try {
        scenario.act(world);
      } catch (std::bad_alloc const&) {
        threw = true;
      } catch (std::exception const&) {
        // Another error than the lack of memory is as good if the lack is what it comes from.
      }
      made = watch.count();
    }
    if (made < n) {
      EXPECT_FALSE(threw);
    }
    expect_sound(world);
    static_cast<void>(end_world(world));
    if (HasFailure() || made < n) break;
  }
}

std::string name_of(testing::TestParamInfo<fault_scenario> const& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Every, PoolAllocationFault, testing::ValuesIn(fault_scenarios()), name_of);

TEST(AllocationWatch, SeesAnAllocationAndFailsTheOneItIsToldTo) {
  {
    allocation_watch const watch;
    ::operator delete(::operator new(1));  // as a function, which no compiler leaves out
    EXPECT_EQ(watch.count(), 1u);
  }
  bool threw = false;
  {
    allocation_watch const watch{2};
    ::operator delete(::operator new(1));
    try {
      ::operator delete(::operator new(1));
    } catch (std::bad_alloc const&) {
      threw = true;
    }
  }
  EXPECT_TRUE(threw);
}

}  // namespace
}  // namespace escrow::test
