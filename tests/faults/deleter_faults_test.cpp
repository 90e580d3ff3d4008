// Every call of every operation of deleters fails once.
#include "deleter_operations.hpp"
#include "every_call.hpp"
#include "reclaim_operations.hpp"

namespace escrow::test {
namespace {

std::vector<operation> const& operations() {
  static std::vector<operation> const all = [] {
    operations_in<deleter_stage> joined;
    add_eager_retirements(joined);
    add_captured_retirements(joined);
    add_shared(joined);
    add_busy_polls(joined);
    add_reclaims(joined);
    add_deleters(joined);
    return joined.all();
  }();
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
