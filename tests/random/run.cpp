// One program from its beginning to its end, with a thread for each of its threads.
#include "run.hpp"

#include "team.hpp"

namespace escrow::test {

verdict run(program const& given, planted bug) {
  verdict seen;
  world in(given, bug);
  for (operation const& each : given.operations) {
    team::on(each.thread, [&] { in.perform(each); });
    if (!in.failure().empty()) break;
    ++seen.at;
  }
  in.finish();
  seen.failure = in.failure();
  seen.counts = in.counts();
  return seen;
}

std::string describe(program const& failing, verdict const& seen, planted bug) {
  program const small =
      shrink(failing, [bug](program const& tried) { return !run(tried, bug).failure.empty(); });
  std::string const why = run(small, bug).failure;
  return "seed " + std::to_string(failing.seed) + ": " + seen.failure +
         "\nrepeat it: ESCROW_SEED=" + std::to_string(failing.seed) +
         " ESCROW_PROGRAMS=1 random_test_sim --gtest_filter='RandomPrograms.*'\n" +
         "of " + std::to_string(failing.operations.size()) + " operations " +
         std::to_string(small.operations.size()) + " are left, with which: " + why +
         "\nas a case for tests/random/cases:\n" + to_text(small);
}

}  // namespace escrow::test
