// Every call of every operation on graphs, execs and hoisted references fails once.
#include "every_call.hpp"
#include "exec_operations.hpp"

namespace escrow::test {
namespace {

std::vector<operation> const& operations() {
  static std::vector<operation> const all = [] {
    operations_in<exec_stage> joined;
    add_instantiates(joined);
    add_launches(joined);
    add_updates(joined);
    add_ends(joined);
    add_copies(joined);
    add_hoists(joined);
    add_reclaimed_holds(joined);
    std::vector<operation> result = joined.all();
    // While launches are in flight, and execs first, with the graph there.
    for (operation& each : result) each.ways_to_end = 2;
    return result;
  }();
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);
auto* const printer = testing::AddGlobalTestEnvironment(new prints_totals);

}  // namespace
}  // namespace escrow::test
