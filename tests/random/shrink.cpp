// Shrinking: parts are taken away, larger ones first, until no single operation can go.
#include <algorithm>

#include "run.hpp"

namespace escrow::test {

namespace {

using judge = std::function<bool(program const&)>;

/// The change stays if the program still fails with it.
bool try_change(program& smallest, judge const& fails,
                std::function<void(program&)> const& change) {
  program tried = smallest;
  change(tried);
  if (tried == smallest || !fails(tried)) return false;
  smallest = tried;
  return true;
}

/// Takes away parts of `size` operations; whether any could go.
bool take_parts(program& smallest, std::size_t size, judge const& fails) {
  bool any = false;
  for (std::size_t at = 0; at < smallest.operations.size();) {
    std::size_t const count = std::min(size, smallest.operations.size() - at);
    bool const is_taken = try_change(smallest, fails, [&](program& tried) {
      auto const from = tried.operations.begin() + static_cast<std::ptrdiff_t>(at);
      tried.operations.erase(from, from + static_cast<std::ptrdiff_t>(count));
    });
    any = any || is_taken;
    if (!is_taken) at += count;
  }
  return any;
}

/// One thread, no fault, fewer steps, fewer points at which others go on: whatever does not matter
/// becomes plain.
bool make_plainer(program& smallest, std::size_t at, judge const& fails) {
  bool any = false;
  auto const plainer = [&](auto change) {
    any = try_change(smallest, fails, [&](program& tried) { change(tried.operations[at]); }) || any;
  };
  plainer([](operation& each) { each.thread = 0; });
  plainer([](operation& each) { each.failing_call = each.failing_allocation = 0; });
  plainer([](operation& each) {
    if (each.kind == op::step) each.arguments[0] /= 2;
  });
  plainer([](operation& each) { each.joins = false; });
  plainer([](operation& each) { each.passes = 0; });
  for (std::uint64_t left = smallest.operations[at].passes; left != 0; left &= left - 1)
    plainer([left](operation& each) { each.passes &= ~(left & (~left + 1)); });  // its lowest bit
  return any;
}

/// Failures are of one kind if they differ in numbers only.
std::string kind_of(std::string failure) {
  std::erase_if(failure, [](char each) { return (each >= '0' && each <= '9') || each == ' '; });
  return failure;
}

}  // namespace

program shrink(program const& failing, judge const& fails) {
  program smallest = failing;
  for (bool any = true; any;) {
    any = false;
    for (std::size_t size = std::max<std::size_t>(smallest.operations.size() / 2, 1);; size /= 2) {
      any = take_parts(smallest, size, fails) || any;
      if (size == 1) break;
    }
    for (std::size_t i = 0; i < smallest.operations.size(); ++i)
      any = make_plainer(smallest, i, fails) || any;
  }
  return smallest;
}

std::string describe(program const& failing, verdict const& seen,
                     std::function<verdict(program const&)> const& runner) {
  std::string const kind = kind_of(seen.failure);
  program const small = shrink(
      seen.exact, [&](program const& tried) { return kind_of(runner(tried).failure) == kind; });
  std::string const seed = std::to_string(failing.seed);
  return "seed " + seed + ": " + seen.failure + "\nrepeat it: ESCROW_SEED=" + seed +
         " ESCROW_PROGRAMS=1 random_test_sim --gtest_filter='RandomPrograms.*'\n" + "of " +
         std::to_string(failing.operations.size()) + " operations " +
         std::to_string(small.operations.size()) +
         " are left, with which: " + runner(small).failure +
         "\nas a case for tests/random/cases:\n" + to_text(small);
}

}  // namespace escrow::test
