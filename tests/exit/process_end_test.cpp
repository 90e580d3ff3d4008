// The process ends with launches in flight, in every way but a crash, whatever it still has and
// wherever that is kept: nothing hangs, nothing crashes.
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "../support/build_graph.hpp"
#include "../support/child_cases.hpp"
#include "belongings.hpp"
#include "clean_end.hpp"

namespace escrow::test {
namespace {

constexpr int status = 7;  // so that the end is the one that was asked for

enum class ending { return_from_main, exit, quick_exit, immediate };

int end_by(ending how) {
  switch (how) {
    case ending::return_from_main:
      break;
    case ending::exit:
      std::exit(status);
    case ending::quick_exit:
      std::quick_exit(status);
    case ending::immediate:
      _exit(status);
  }
  return status;
}

/// Where the program has what it does not end itself, in the order in which the end of the process
/// comes to them: last to first.
enum class place_of { program, before_escrow, after_escrow, thread };

std::optional<belongings> of_the_program;  // ends after CUDA and after Escrow's exit handler

std::optional<belongings>& kept_in(place_of where) {
  if (where == place_of::program) return of_the_program;
  must(cudaFree(nullptr));  // CUDA's own exit handlers are there
  if (where == place_of::before_escrow) {
    static std::optional<belongings> before;
    return before;
  }
  static_cast<void>(deleter::global());  // and Escrow's
  if (where == place_of::after_escrow) {
    static std::optional<belongings> after;
    return after;
  }
  thread_local std::optional<belongings> of_the_thread;
  return of_the_thread;
}

template <place_of where, ending how>
int leave_in_flight() {
  kept_in(where).emplace().launch();
  return end_by(how);
}

// Uses of what is never ended, until CUDA is gone.
[[noreturn]] void use_for_ever(std::atomic<int>& rounds) {
  static auto& used = *new belongings;
  while (true) {
    try {
      used.launch();
      used.claim_and_retire();
      static_cast<void>(used.own.drain_for(std::chrono::milliseconds{1}));
      rounds.fetch_add(1, std::memory_order_relaxed);
    } catch (std::exception const&) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});  // CUDA is gone: nothing works
    }
  }
}

std::atomic<int> rounds_of_use{0};

bool is_in_use() {
  return rounds_of_use.load(std::memory_order_relaxed) > 3;
}

int leave_a_thread_behind() {
  std::thread([] { use_for_ever(rounds_of_use); }).detach();
  must(wait_until(&is_in_use), "the thread uses it");
  return status;
}

int exit_beside_main() {
  std::thread([] {
    if (wait_until(&is_in_use)) std::exit(status);
    std::_Exit(1);
  }).detach();
  use_for_ever(rounds_of_use);
}

int exit_in_a_capture() {
  static owned_stream const stream = make_stream();
  static belongings kept;
  kept.launch();
  static_cast<void>(escrow::capture(
      stream.get(),
      [](stream_ref on) {
        block_lease const held = kept.pool.claim(on);
        kept.own.retire(on, probe(make_fate()));
        std::exit(status);
      },
      cudaStreamCaptureModeGlobal));
  return 1;
}

int exit_on_the_worker() {
  static belongings kept;
  kept.launch();
  deleter::global().retire(probe(make_fate([] { std::exit(status); })));
  std::this_thread::sleep_for(generous);
  return 1;
}

/// Lets go, after Escrow's exit handler and before CUDA's, of what a graph holds.
struct late_end {
  ~late_end() {
    graph.reset();
    if (fate == nullptr) return;
    bool const is_reclaimed = !stays_false([this] { return fate->was_destroyed(); });
    if (is_reclaimed) std::_Exit(1);
  }
  owned_graph graph;
  fate_ptr fate;
};

int let_go_after_the_exit_handler() {
  must(cudaFree(nullptr));
  static late_end kept;
  kept.graph = tiny_graph();
  kept.fate = make_fate();
  deleter::global().retire(kept.graph.get(), probe(kept.fate));
  return status;
}

int end_a_thread_with_its_own() {
  std::thread([] { kept_in(place_of::thread).emplace().launch(); }).join();
  return status;
}

template <place_of where>
constexpr child_case::body returning = &leave_in_flight<where, ending::return_from_main>;
template <place_of where>
constexpr child_case::body exiting = &leave_in_flight<where, ending::exit>;

std::vector<named_case> const end_cases = register_cases({
    {"ReturnWithGlobals", returning<place_of::program>},
    {"ReturnWithStaticsFromBeforeEscrow", returning<place_of::before_escrow>},
    {"ReturnWithStaticsFromAfterEscrow", returning<place_of::after_escrow>},
    {"ReturnWithThreadLocals", returning<place_of::thread>},
    {"ExitWithGlobals", exiting<place_of::program>},
    {"ExitWithStaticsFromBeforeEscrow", exiting<place_of::before_escrow>},
    {"ExitWithStaticsFromAfterEscrow", exiting<place_of::after_escrow>},
    {"ExitWithThreadLocals", exiting<place_of::thread>},
    {"QuickExit", &leave_in_flight<place_of::after_escrow, ending::quick_exit>},
    {"ImmediateExit", &leave_in_flight<place_of::after_escrow, ending::immediate>},
    {"ReturnAndReclaimNothingAfterwards", &let_go_after_the_exit_handler},
    {"ReturnAfterAThreadWithThreadLocals", &end_a_thread_with_its_own},
    {"ReturnWhileAThreadUsesEverything", &leave_a_thread_behind},
    {"ExitOnAThreadWhileMainUsesEverything", &exit_beside_main},
    {"ExitInACapture", &exit_in_a_capture},
    {"ExitOnTheWorker", &exit_on_the_worker},
});

class ProcessEnd : public testing::TestWithParam<named_case> {};

TEST_P(ProcessEnd, IsCleanAndSoon) {
  expect_clean_end(GetParam().name, status);
}

INSTANTIATE_TEST_SUITE_P(By, ProcessEnd, testing::ValuesIn(end_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
