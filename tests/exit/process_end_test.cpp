// SPDX-License-Identifier: Apache-2.0
// The process ends with launches in flight, in every way but a crash, whatever it still has and
// wherever that is kept: it does not hang or crash, and reclaims nothing after Escrow's exit
// handler. And a process with a worker starts others.
#include <sys/wait.h>
#include <unistd.h>

#include "belongings.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

/// Where the program keeps what it does not destroy itself, in the order in which the end of the
/// process destroys it: last to first.
enum class place { heap, globals, before_escrow, after_escrow, thread_locals };

std::optional<belongings> of_the_program;  // destroyed after CUDA and after Escrow's exit handler

std::optional<belongings>& kept_in(place where) {
  if (where == place::globals) return of_the_program;
  must(cudaFree(nullptr));  // CUDA's own exit handlers are registered
  if (where == place::before_escrow) {
    static std::optional<belongings> before;
    return before;
  }
  static_cast<void>(deleter::global());  // and Escrow's
  if (where == place::after_escrow) {
    static std::optional<belongings> after;
    return after;
  }
  if (where == place::heap) {
    static auto& leaked = *new std::optional<belongings>;
    return leaked;
  }
  thread_local std::optional<belongings> of_the_thread;
  return of_the_thread;
}

// In flight: a launch, one whose exec is destroyed, and owners of each kind of deleter.
void launch_from(place where) {
  belongings& kept = kept_in(where).emplace();
  kept.launch();
  graph_exec(kept.source).launch(kept.stream.get());
  static deleter polled(deleter_options{.own_worker = false});
  for (deleter* each : {&*kept.own, &polled, &deleter::global()}) {
    each->retire(kept.source.get(), probe(make_fate()));
    each->retire(stream_ref(kept.stream.get()), probe(make_fate()));
  }
}

// Uses of what is never destroyed, until CUDA is shut down.
[[noreturn]] void use_endlessly(std::atomic<int>& rounds) {
  static auto& used = *new belongings;
  while (true) {
    try {
      used.launch();
      used.claim_and_retire();
      static_cast<void>(used.own->drain_for(1ms));
      rounds.fetch_add(1, std::memory_order_relaxed);
    } catch (std::exception const&) {
      std::this_thread::sleep_for(1ms);  // CUDA is shut down: every call fails
    }
  }
}

std::atomic<int> rounds_of_use{0};

bool is_in_use() {
  return rounds_of_use.load(std::memory_order_relaxed) > 3;
}

void leave_a_thread_behind() {
  std::thread([] { use_endlessly(rounds_of_use); }).detach();
  must(wait_until(&is_in_use), "the thread uses it");
}

void exit_on_a_thread() {
  std::thread([] {
    if (wait_until(&is_in_use)) std::exit(as_expected);
    std::_Exit(1);
  }).detach();
  use_endlessly(rounds_of_use);
}

int exit_in_a_capture() {
  static owned_stream const stream = make_stream();
  static belongings kept;
  kept.launch();
  auto const record = [](stream_ref on) {
    block_lease const held = kept.pool->claim(on);
    kept.own->retire(on, probe(make_fate()));
    std::exit(as_expected);
  };
  static_cast<void>(escrow::capture(stream.get(), record, cudaStreamCaptureModeGlobal));
  return 1;
}

int exit_on_the_worker() {
  static belongings kept;
  kept.launch();
  deleter::global().retire(probe(make_fate([] { std::exit(as_expected); })));
  std::this_thread::sleep_for(generous);
  return 1;
}

/// Releases, after Escrow's exit handler and before CUDA's, what a graph holds.
struct late_release {
  ~late_release() {
    graph.reset();
    if (fate == nullptr) return;
    bool const is_reclaimed = !stays_false([this] { return fate->was_destroyed(); });
    if (is_reclaimed) std::_Exit(1);
  }
  owned_graph graph;
  fate_ptr fate;
};

void release_after_the_exit_handler() {
  must(cudaFree(nullptr));
  static late_release kept;
  kept.graph = tiny_graph();
  kept.fate = make_fate();
  deleter::global().retire(kept.graph.get(), probe(kept.fate));
}

void poll_after_the_exit_handler() {
  static deleter* polled = nullptr;  // no deleter of the process has a worker
  static fate_ptr& fate = *new fate_ptr(make_fate());
  static_cast<void>(std::atexit([] {
    std::size_t const count = polled->poll();
    if (count != 0 || polled->drain_for(10ms) || fate->was_destroyed()) std::_Exit(1);
  }));
  polled = new deleter(deleter_options{.own_worker = false});
  polled->retire(probe(fate));
}

struct drains {
  ~drains() { deleter::global().drain(); }
};

void leave_statics_that_drain() {
  static drains const after_the_exit_handler;
  static belongings kept;
  static drains const before_the_exit_handler;
  kept.launch();
}

void leave_hoisted_references() {
  static belongings kept;
  static hoisted held = hoist(kept.source);
  static owned_exec exec = instantiate(kept.source.get());
  must(cudaGraphLaunch(exec, kept.stream));
  static belongings other;
  hoist(other.source).release_after(stream_ref(kept.stream.get()));
}

void leave_shared_objects() {
  static owned_stream const stream = make_stream();
  static std::shared_ptr<probe> const before = make_stream_shared<probe>(make_fate());
  deleter::global().drain();  // the exit handler is registered
  static std::shared_ptr<probe> const after = make_stream_shared<probe>(make_fate());
  must(launch_sleep(stream, 1000));
  record_stream(before, stream.get());
  record_stream(after, stream.get());
}

void leave_workers_of_destroyed_deleters() {
  static owned_graph graph = tiny_graph();
  owned_stream const stream = make_stream();
  for (int i = 0; i < 100; ++i) {
    deleter destroyed;
    if (i % 2 == 0) destroyed.retire(graph.get(), probe(make_fate()));
    destroyed.retire(stream_ref(stream.get()), probe(make_fate()));
  }
}

void leave_the_worker_blocked() {
  static std::atomic<bool> entered{false};
  static std::atomic<bool> never{false};
  deleter::global().retire(probe(make_fate([] {
    entered.store(true, std::memory_order_release);
    never.wait(false);
  })));
  must(wait_until([] { return entered.load(std::memory_order_acquire); }), "entered");
}

/// Destroyed after the simulated runtime has shut down.
struct late_call {
  ~late_call() {
    int device = 0;
    if (cudaGetDevice(&device) != cudaErrorCudartUnloading) std::_Exit(1);
  }
};

// The rule of the simulated runtime: the end of the process runs no destroy callback, and a later
// call is told so.
void leave_a_user_object_in_flight() {
  static late_call const late;
  static auto* const flag = new pinned_ints;
  cudaStream_t const stream = make_stream().release();
  owned_graph const graph = chain({wait_flag_call(flag->data())});
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(
      &object, nullptr, [](void*) { std::_Exit(1); }, 1, cudaUserObjectNoDestructorSync));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
}

std::vector<named_case> all_cases() {
  std::vector<named_case> all{
      {"QuickExit", [] { launch_from(place::after_escrow), std::quick_exit(as_expected); }},
      {"ImmediateExit", [] { launch_from(place::after_escrow), _exit(as_expected); }},
      {"ExitInACapture", &exit_in_a_capture},
      {"ExitOnTheWorker", &exit_on_the_worker},
      {"ExitOnAThreadWhileMainUsesEverything", &exit_on_a_thread},
      {"ReturnWhileAThreadUsesEverything", &leave_a_thread_behind},
      {"ReturnAfterAThreadWithThreadLocals",
       [] { std::thread(&launch_from, place::thread_locals).join(); }},
      {"ReturnWithStaticsThatDrain", &leave_statics_that_drain},
      {"ReturnWithHoistedReferences", &leave_hoisted_references},
      {"ReturnWithSharedObjects", &leave_shared_objects},
      {"ReturnWithABlockedWorker", &leave_the_worker_blocked},
      {"NothingIsReclaimedAfterwards", &release_after_the_exit_handler},
      {"NothingIsReclaimedAfterwardsWithoutAWorker", &poll_after_the_exit_handler},
  };
  std::pair<char const*, place> const places[] = {{"Heap", place::heap},
                                                  {"Globals", place::globals},
                                                  {"StaticsBeforeEscrow", place::before_escrow},
                                                  {"StaticsAfterEscrow", place::after_escrow},
                                                  {"ThreadLocals", place::thread_locals}};
  for (auto const& [name, where] : places) {
    all.emplace_back(std::string("ReturnWith") + name, [where = where] { launch_from(where); });
    all.emplace_back(std::string("ExitWith") + name,
                     [where = where] { launch_from(where), std::exit(as_expected); });
  }
  for (char const* const round : {"1", "2", "3", "4", "5"})
    all.emplace_back(std::string("ReturnWhileWorkersEnd_") + round,
                     &leave_workers_of_destroyed_deleters);
  if (is_simulated()) all.emplace_back("NoDestroyCallbackRuns", &leave_a_user_object_in_flight);
  return all;
}

std::vector<named_case> const end_cases = register_cases(all_cases());

using ProcessEnd = child_test;

TEST_P(ProcessEnd, IsCleanAndSoon) {
  expect_clean_end(GetParam());
}

INSTANTIATE_TEST_SUITE_P(By, ProcessEnd, testing::ValuesIn(end_cases), &name_of_case);

// A process whose worker is alive starts others: they run, and the process goes on. A forked child
// that does not run another program may only call _exit: CUDA does not work there.

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
