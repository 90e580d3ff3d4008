// What Escrow adds to capturing, instantiating and destroying graphs, beside plain CUDA calls.
//
// Each operation is done right after, or right before, the same one with plain CUDA calls and
// without what Escrow keeps. Counters are medians, in microseconds: plain_us, escrow_us, extra_us
// of the differences, and of_plain of the ratios. The benchmark's own time is Escrow's.
#include "capture_measures.hpp"

namespace escrow::bench {

void register_all(settings const& how) {
  register_claims(how);
  register_owners(how);
  register_whole(how);
  register_identity(how);
  register_eager(how);
}

}  // namespace escrow::bench
