// SPDX-License-Identifier: Apache-2.0
// One program from its beginning to its end, with a thread for each of its threads. Crashes and
// hangs are reported with their seed, and caught in a child process to be shrunk.
#include "program.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "baton.hpp"
#include "world.hpp"

namespace escrow::test {

namespace {

/// For a crash: plain to read in a signal handler. Relaxed: one thread writes it, and the one that
/// crashes is that one, or waits for it.
std::atomic<std::uint64_t> running_seed{0};

/// Of one program, which takes less than a millisecond.
constexpr unsigned seconds_max = 60;

constexpr std::array fatal_signals{SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGALRM};

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
  std::vector<baton::runner> runners;
  for (operation const& each : group)
    runners.push_back({each.thread, each.passes, [&in, &each] { in.perform(each); }});
  baton::run(runners);
  if (group.size() > 1) in.note_group();
}

void say_seed(int signal) {
  std::array<char, 200> text{};
  unsigned long long const seed = running_seed.load(std::memory_order_relaxed);
  int const length = std::snprintf(text.data(), text.size(),
                                   "seed %llu crashed, or hung; shrink it: ESCROW_IN_CHILD=1 "
                                   "ESCROW_SEED=%llu ESCROW_PROGRAMS=1\n",
                                   seed, seed);
  static_cast<void>(!write(STDERR_FILENO, text.data(), static_cast<std::size_t>(length)));
  static_cast<void>(std::signal(signal, SIG_DFL));
  static_cast<void>(raise(signal));
}

/// The child's part: what was seen, through the pipe.
[[noreturn]] void run_and_tell(program const& given, int to) {
  for (int const each : fatal_signals) static_cast<void>(std::signal(each, SIG_DFL));
  auto const tell = [to](std::string const& text) {
    static_cast<void>(!write(to, text.data(), text.size()));
  };
  program begun = given;
  begun.operations.clear();
  tell(to_text(begun));
  verdict const seen =
      run(given, planted::none, [&](operation const& next) { tell(to_text(next) + "\n"); });
  tell("failure " + seen.failure);
  _exit(0);
}

std::string read_all(int from) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = read(from, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(count));
  return text;
}

}  // namespace

namespace {

verdict run_now(program const& given, planted bug,
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
    if (before)
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

/// What a process makes, or asks CUDA, at its first use would make the first programs other ones
/// than they are later.
void warm_up() {
  [[maybe_unused]] static bool const is_done = [] {
    constexpr std::uint64_t enough = 100;
    for (std::uint64_t seed = 1; seed <= enough; ++seed) {
      program plain = generate(seed);
      for (operation& each : plain.operations) each.joins = false;
      static_cast<void>(run_now(plain, planted::none, {}));  // whoever runs the seed judges
    }
    return true;
  }();
}

}  // namespace

verdict run(program const& given, planted bug,
            std::function<void(operation const&)> const& before) {
  warm_up();
  return run_now(given, bug, before);
}

void announce_crashes() {
  for (int const each : fatal_signals) static_cast<void>(std::signal(each, &say_seed));
}

verdict run_in_child(program const& given) {
  std::array<int, 2> ends{};
  verdict seen;
  warm_up();  // or else each child would
  if (pipe(ends.data()) != 0) std::abort();
  sim::let_forked_children_call(true);
  pid_t const child = fork();
  if (child == 0) run_and_tell(given, ends[1]);
  close(ends[1]);
  std::string const text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  std::size_t const at = text.rfind("failure ");
  seen.exact = read_program(text.substr(0, at));
  seen.failure = at == std::string::npos ? "a crash" : text.substr(at + 8);
  return seen;
}

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

/// Parts are taken away, larger ones first, until no single operation can go.
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
         "\nas a case for tests/random/cases.txt:\n" + to_text(small);
}

}  // namespace escrow::test

/// The same programs from libFuzzer's bytes, which has given it this name.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace escrow::test;
  constexpr std::size_t operations_max = 200;
  program drawn = decode({data, size});
  if (drawn.operations.size() > operations_max) drawn.operations.resize(operations_max);
  verdict const seen = run(drawn);
  if (seen.failure.empty()) return 0;
  auto const again = [](program const& tried) { return run(tried); };
  static_cast<void>(std::fputs(describe(drawn, seen, again).c_str(), stderr));
  std::abort();
}
