// One program from its beginning to its end, with a thread for each of its threads.
#include "run.hpp"

#include "team.hpp"

namespace escrow::test {

verdict run(program const& given, planted bug) {
  verdict seen;
  world in(given, bug);
  seen.exact = given;
  seen.exact.is_exact = true;
  for (operation& each : seen.exact.operations) {
    team::on(each.thread, [&] { in.perform(each); });
    if (!in.failure().empty()) break;
    ++seen.at;
  }
  in.finish();
  seen.failure = in.failure();
  seen.counts = in.counts();
  return seen;
}

namespace {

/// Failures are of one kind if they differ in numbers only.
std::string kind_of(std::string failure) {
  std::erase_if(failure, [](char each) { return (each >= '0' && each <= '9') || each == ' '; });
  return failure;
}

}  // namespace

std::string describe(program const& failing, verdict const& seen, planted bug) {
  std::string const kind = kind_of(seen.failure);
  program const small = shrink(
      seen.exact, [&](program const& tried) { return kind_of(run(tried, bug).failure) == kind; });
  std::string const why = run(small, bug).failure;
  return "seed " + std::to_string(failing.seed) + ": " + seen.failure +
         "\nrepeat it: ESCROW_SEED=" + std::to_string(failing.seed) +
         " ESCROW_PROGRAMS=1 random_test_sim --gtest_filter='RandomPrograms.*'\n" +
         "of " + std::to_string(failing.operations.size()) + " operations " +
         std::to_string(small.operations.size()) + " are left, with which: " + why +
         "\nas a case for tests/random/cases:\n" + to_text(small);
}

}  // namespace escrow::test
