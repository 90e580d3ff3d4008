// Every call of every operation of pools fails once.
#include "every_call.hpp"
#include "pool_claims.hpp"
#include "pool_releases.hpp"

namespace escrow::test {
namespace {

std::vector<operation> const& operations() {
  static operations_in<pool_stage> const all = [] {
    operations_in<pool_stage> joined;
    add_eager_claims(joined);
    add_captured_claims(joined);
    add_tried_claims(joined);
    add_scratch(joined);
    add_eager_releases(joined);
    add_releases_beside_another_device(joined);
    add_captured_releases(joined);
    add_uses(joined);
    add_pools(joined);
    return joined;
  }();
  return all.all();
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);
auto* const printer = testing::AddGlobalTestEnvironment(new prints_totals);

}  // namespace
}  // namespace escrow::test
