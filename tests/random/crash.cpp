// Crashes, and programs that hang: said with their seed, and caught in a child process to be
// shrunk.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "run.hpp"

namespace escrow::test {

namespace {

constexpr std::array fatal_signals{SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGALRM};

void say_seed(int signal) {
  std::array<char, 200> text{};
  int const length = std::snprintf(text.data(), text.size(),
                                   "seed %llu crashed, or hung; shrink it: ESCROW_IN_CHILD=1 "
                                   "ESCROW_SEED=%llu ESCROW_PROGRAMS=1\n",
                                   static_cast<unsigned long long>(seed_of_this_run()),
                                   static_cast<unsigned long long>(seed_of_this_run()));
  static_cast<void>(!write(STDERR_FILENO, text.data(), static_cast<std::size_t>(length)));
  static_cast<void>(std::signal(signal, SIG_DFL));
  static_cast<void>(raise(signal));
}

/// The child's part: what was seen, through the pipe.
[[noreturn]] void run_and_tell(program const& given, planted bug, int to) {
  for (int const each : fatal_signals) static_cast<void>(std::signal(each, SIG_DFL));
  auto const tell = [to](std::string const& text) {
    static_cast<void>(!write(to, text.data(), text.size()));
  };
  tell("seed " + std::to_string(given.seed) + "\nslots " + std::to_string(given.slots) + "\n");
  verdict const seen =
      run_watched(given, bug, [&](operation const& next) { tell(to_text(next) + "\n"); });
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

void announce_crashes() {
  for (int const each : fatal_signals) static_cast<void>(std::signal(each, &say_seed));
}

verdict run_in_child(program const& given, planted bug) {
  std::array<int, 2> ends{};
  verdict seen;
  if (pipe(ends.data()) != 0) std::abort();
  pid_t const child = fork();
  if (child == 0) run_and_tell(given, bug, ends[1]);
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

}  // namespace escrow::test
