// Shrinking: parts are taken away, larger ones first, until no single operation can go.
#include <algorithm>

#include "run.hpp"

namespace escrow::test {

namespace {

program without(program const& whole, std::size_t begin, std::size_t count) {
  program rest = whole;
  auto const from = rest.operations.begin() + static_cast<std::ptrdiff_t>(begin);
  rest.operations.erase(from, from + static_cast<std::ptrdiff_t>(count));
  return rest;
}

/// Takes away parts of `size` operations; whether any could go.
bool take_parts(program& smallest, std::size_t size,
                std::function<bool(program const&)> const& fails) {
  bool any = false;
  for (std::size_t at = 0; at < smallest.operations.size();) {
    std::size_t const count = std::min(size, smallest.operations.size() - at);
    if (program const tried = without(smallest, at, count); fails(tried)) {
      smallest = tried;
      any = true;
    } else {
      at += count;
    }
  }
  return any;
}

/// Fewer points at which others go on.
bool take_passes(program& smallest, std::size_t at,
                 std::function<bool(program const&)> const& fails) {
  bool any = false;
  for (std::uint64_t left = smallest.operations[at].passes; left != 0; left &= left - 1) {
    program tried = smallest;
    tried.operations[at].passes &= ~(left & (~left + 1));  // without the lowest bit that is left
    if (!fails(tried)) continue;
    smallest = tried;
    any = true;
  }
  return any;
}

/// One thread, no fault, fewer steps: whatever does not matter becomes plain.
bool make_plainer(program& smallest, std::function<bool(program const&)> const& fails) {
  bool any = false;
  for (std::size_t i = 0; i < smallest.operations.size(); ++i) {
    for (int what = 0; what < 5; ++what) {
      program tried = smallest;
      operation& each = tried.operations[i];
      if (what == 0) each.thread = 0;
      if (what == 1) each.failing_call = each.failing_allocation = 0;
      if (what == 2 && each.kind == op::step) each.arguments[0] /= 2;
      if (what == 3) each.joins = false;
      if (what == 4) each.passes = 0;
      if (tried == smallest || !fails(tried)) continue;
      smallest = tried;
      any = true;
    }
    any = take_passes(smallest, i, fails) || any;
  }
  return any;
}

}  // namespace

program shrink(program const& failing, std::function<bool(program const&)> const& fails) {
  program smallest = failing;
  for (bool any = true; any;) {
    any = false;
    for (std::size_t size = std::max<std::size_t>(smallest.operations.size() / 2, 1);; size /= 2) {
      any = take_parts(smallest, size, fails) || any;
      if (size == 1) break;
    }
    any = make_plainer(smallest, fails) || any;
  }
  return smallest;
}

}  // namespace escrow::test
