// One program from its beginning to its end, with a thread for each of its threads.
#include "run.hpp"

#include <unistd.h>

#include <atomic>

#include "team.hpp"

namespace escrow::test {

namespace {

/// For a crash: plain to read in a signal handler. Relaxed: one thread writes it, and the one that
/// crashes is that one, or waits for it.
std::atomic<std::uint64_t> running_seed{0};

/// Of one program, which takes less than a millisecond.
constexpr unsigned seconds_max = 60;

/// Failures are of one kind if they differ in numbers only.
std::string kind_of(std::string failure) {
  std::erase_if(failure, [](char each) { return (each >= '0' && each <= '9') || each == ' '; });
  return failure;
}

}  // namespace

verdict run(program const& given, planted bug) {
  return run_watched(given, bug, [](operation const&) {});
}

verdict run_watched(program const& given, planted bug,
                    std::function<void(operation const&)> const& before) {
  verdict seen;
  alarm(seconds_max);
  running_seed.store(given.seed, std::memory_order_relaxed);
  world in(given, bug);
  seen.exact = given;
  seen.exact.is_exact = true;
  for (operation& each : seen.exact.operations) {
    if (!given.is_exact) in.resolve(each);
    before(each);
    team::on(each.thread, [&] { in.perform(each); });
    if (!in.failure().empty()) break;
    ++seen.at;
  }
  in.finish();
  seen.failure = in.failure();
  seen.counts = in.counts();
  alarm(0);
  return seen;
}

std::uint64_t seed_of_this_run() noexcept {
  return running_seed.load(std::memory_order_relaxed);
}

std::string describe(program const& failing, verdict const& seen, planted bug,
                     verdict (*runner)(program const&, planted)) {
  std::string const kind = kind_of(seen.failure);
  program const small = shrink(seen.exact, [&](program const& tried) {
    return kind_of(runner(tried, bug).failure) == kind;
  });
  std::string const why = runner(small, bug).failure;
  return "seed " + std::to_string(failing.seed) + ": " + seen.failure +
         "\nrepeat it: ESCROW_SEED=" + std::to_string(failing.seed) +
         " ESCROW_PROGRAMS=1 random_test_sim --gtest_filter='RandomPrograms.*'\n" + "of " +
         std::to_string(failing.operations.size()) + " operations " +
         std::to_string(small.operations.size()) + " are left, with which: " + why +
         "\nas a case for tests/random/cases:\n" + to_text(small);
}

}  // namespace escrow::test
