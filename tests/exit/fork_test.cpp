// A process whose worker is alive starts others: they run, and the process goes on. A forked child
// that does not run another program may only call _exit: CUDA does not work there.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "belongings.hpp"
#include "child.hpp"

namespace escrow::test {
namespace {

void use_everything() {
  static belongings kept;
  kept.launch();
  kept.claim_and_retire();
  must(kept.own->drain_for(generous), "the drain ends");
}

void run_another_program() {
  child_result const another = run_child("UseEverything");  // by posix_spawn
  must(another.exited && another.status == as_expected, "it ends well");
}

// A forked child that does what `end` does, which does not return.
template <void (*end)()>
void fork_one() {
  pid_t const child = fork();
  if (child == 0) end();
  must(child > 0, "there is a child");
  int result = 0;
  must(wait_until([&] { return waitpid(child, &result, WNOHANG) == child; }, soon), "it ends");
  must(WIFEXITED(result) && WEXITSTATUS(result) == as_expected, "it ends well");
}

void become_another_program() {
  execl("/proc/self/exe", "another", "--child=UseEverything", nullptr);
  _exit(1);
}

void exit_at_once() {
  _exit(as_expected);
}

// Starts `count` children while the worker has work and another thread claims and retires.
template <void (*start)(), int count>
void go_on_beside_children() {
  belongings kept;
  std::atomic<bool> is_over{false};
  std::thread beside([&] {
    belongings its;
    while (!is_over.load()) {
      its.claim_and_retire();
      static_cast<void>(its.own->drain_for(std::chrono::milliseconds{1}));
      std::this_thread::sleep_for(std::chrono::microseconds{100});  // the children need the cores
    }
  });
  kept.launch();
  for (int i = 0; i < count; ++i) {
    kept.claim_and_retire();
    start();
  }
  is_over.store(true);
  beside.join();
  kept.launch();
  kept.claim_and_retire();
  must(kept.own->drain_for(generous), "the worker goes on");
}

std::vector<named_case> const fork_cases = register_cases({
    {"ASpawnedProgramRuns", &go_on_beside_children<&run_another_program, 3>},
    {"AProgramOfAForkedChildRuns", &go_on_beside_children<&fork_one<&become_another_program>, 3>},
    {"AForkedChildExits", &go_on_beside_children<&fork_one<&exit_at_once>, 20>},
});
std::vector<named_case> const another = register_cases({{"UseEverything", &use_everything}});

using Fork = child_test;

TEST_P(Fork, LeavesTheProcessAsItWas) {
  expect_clean_end(GetParam());
}

INSTANTIATE_TEST_SUITE_P(While, Fork, testing::ValuesIn(fork_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
