// One program from its beginning to its end, with a thread for each of its threads.
#include "run.hpp"

#include <unistd.h>

#include <atomic>
#include <span>
#include <vector>

#include "baton.hpp"
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

/// The operation there, and those after it that run together with it. Those that must not, do not.
std::span<operation const> group_at(world& in, program const& given, std::vector<operation>& all,
                                    std::size_t at) {
  if (!given.is_exact) in.resolve(all[at]);
  std::size_t end = at + 1;
  for (; end < all.size() && end - at < program::threads_max && all[end].joins; ++end) {
    operation next = all[end];
    if (!given.is_exact) in.resolve(next);
    if (!in.may_join({all.data() + at, end - at}, next)) {
      all[end].joins = false;
      break;
    }
    all[end] = next;
  }
  return {all.data() + at, end - at};
}

void perform(world& in, std::span<operation const> group) {
  if (group.size() == 1) return team::on(group.front().thread, [&] { in.perform(group.front()); });
  std::vector<baton::runner> runners;
  for (operation const& each : group)
    runners.push_back({each.thread, each.passes, [&in, &each] { in.perform(each); }});
  baton::run(runners);
  in.note_group();
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
  std::vector<operation>& all = seen.exact.operations;
  while (seen.at < all.size()) {
    std::span const group = group_at(in, given, all, seen.at);
    for (operation const& each : group) before(each);
    perform(in, group);
    if (!in.failure().empty()) break;
    seen.at += group.size();
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
