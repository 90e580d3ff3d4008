// Every call of every operation of pools fails once.
#include "every_call.hpp"
#include "pool_claims.hpp"
#include "pool_releases.hpp"

namespace escrow::test {
namespace {

std::vector<operation> const& operations() {
  static std::vector<operation> const all = [] {
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
    std::vector<operation> result = joined.all();
    for (operation& each : result) {
      if (each.stated.empty()) continue;
      // Or when the graph that holds it lets go.
      bool const is_with_graph = each.name == "release after the capture";
      each.stated_shows = is_with_graph ? "in graphs 1" : "deferred 1";
    }
    return result;
  }();
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
