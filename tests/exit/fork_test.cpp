// Other programs are started by a process whose worker is alive: they run, and the process goes on.
// A child that does not run another program may only end, with _exit: CUDA does not work there.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <thread>

#include "belongings.hpp"
#include "clean_end.hpp"

extern char** environ;

namespace escrow::test {
namespace {

constexpr int status = 7;

int use_everything() {
  static belongings kept;
  kept.launch();
  kept.claim_and_retire();
  must(kept.own.drain_for(generous), "the drain ends");
  return status;
}
child_case const another_program("use_everything", &use_everything);

std::array<char*, 3> arguments() {
  static std::string program = "/proc/self/exe";
  static std::string flag = "--child=use_everything";
  return {program.data(), flag.data(), nullptr};
}

pid_t spawn_another() {
  auto const given = arguments();
  pid_t child = -1;
  must(posix_spawn(&child, given[0], nullptr, nullptr, given.data(), environ) == 0, "posix_spawn");
  return child;
}

pid_t fork_and_run_another() {
  auto const given = arguments();
  pid_t const child = fork();
  if (child != 0) return child;
  execv(given[0], given.data());
  _exit(1);
}

pid_t fork_and_end() {
  pid_t const child = fork();
  if (child == 0) _exit(status);
  return child;
}

void must_end_well(pid_t child) {
  must(child > 0, "there is a child");
  int result = 0;
  must(wait_until([&] { return waitpid(child, &result, WNOHANG) == child; }, soon), "it ends");
  must(WIFEXITED(result) && WEXITSTATUS(result) == status, "it ends well");
}

// Starts children while the worker has work and another thread claims and retires.
template <pid_t (*start)()>
int go_on_beside_children() {
  belongings kept;
  std::atomic<bool> is_over{false};
  std::thread beside([&] {
    belongings its;
    while (!is_over.load()) {
      its.claim_and_retire();
      static_cast<void>(its.own.drain_for(std::chrono::milliseconds{1}));
    }
  });
  kept.launch();
  constexpr bool is_quick = start == &fork_and_end;
  for (int i = 0; i < (is_quick ? 20 : 3); ++i) {
    kept.claim_and_retire();
    must_end_well(start());
  }
  is_over.store(true);
  beside.join();
  kept.launch();
  kept.claim_and_retire();
  must(kept.own.drain_for(generous), "the worker goes on");
  return 0;
}
child_case const spawning("beside_spawned", &go_on_beside_children<&spawn_another>);
child_case const forking("beside_forked_that_exec", &go_on_beside_children<&fork_and_run_another>);
child_case const ending("beside_forked_that_end", &go_on_beside_children<&fork_and_end>);

TEST(Fork, AProgramThatIsSpawnedRunsAndTheProcessGoesOn) {
  expect_clean_end("beside_spawned");
}
TEST(Fork, AProgramThatAForkedChildRunsWorksAndTheProcessGoesOn) {
  expect_clean_end("beside_forked_that_exec");
}
TEST(Fork, AForkedChildMayEndAtOnceAndTheProcessGoesOn) {
  expect_clean_end("beside_forked_that_end");
}

}  // namespace
}  // namespace escrow::test
