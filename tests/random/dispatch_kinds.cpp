// Which function does which operation on other kinds of memory, nodes and code.
#include "world.hpp"

namespace escrow::test {

outcome world::dispatch_kinds(operation const& next) {
  auto const& a = next.arguments;
  switch (next.kind) {
    case op::claim_scratch:
      return do_claim_scratch(a[0], a[1], a[2]);
    case op::close_scratch:
      return do_close_scratch();
    case op::destroy_scratch:
      return do_destroy_scratch();
    default:
      return outcome::skipped;
  }
}

}  // namespace escrow::test
