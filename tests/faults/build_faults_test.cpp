// Every call of every operation on graphs built by hand, captures, launches and libraries fails
// once.
#include "every_call.hpp"
#include "graph_operations.hpp"
#include "kind_operations.hpp"
#include "launch_operations.hpp"
#include "owner_operations.hpp"

namespace escrow::test {
namespace {

std::vector<operation> const& operations() {
  static std::vector<operation> const all = [] {
    operations_in<build_stage> joined;
    add_kinds(joined);
    add_other_kinds(joined);
    add_conditions(joined);
    for (bool const is_exposed : {false, true}) {
      add_owners(joined, is_exposed);
      add_owned_graphs(joined, is_exposed);
    }
    add_graphs(joined);
    add_captures(joined);
    add_launches(joined);
    add_libraries(joined);
    return joined.all();
  }();
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
