// How many launches a host makes before it blocks: a kernel that waits for a flag goes first, so
// that none of them ends.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "forms.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "measures.hpp"
#include "memory.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr double quiet_s = 0.2;  // a launch that takes longer is one that blocks

// Launches on a thread of its own until told to end, or `launches_max` times. The end raises the
// flag, without which a launch that blocks would never return.
class launcher {
 public:
  launcher(relaunch_form& form, cudaStream_t stream, test::pinned_flag& flag, int launches_max)
      : flag_(flag), thread_([this, &form, stream, launches_max] {
          try {
            for (int i = 0; i < launches_max; ++i) {
              // Relaxed: the count and the order to end say nothing of anything else.
              if (must_end_.load(std::memory_order_relaxed)) break;
              form.launch(stream);
              made_.fetch_add(1, std::memory_order_relaxed);
            }
          } catch (...) {
            error_ = std::current_exception();
          }
          has_ended_.store(true, std::memory_order_relaxed);
        }) {}
  launcher(launcher&&) = delete;
  ~launcher() { end(); }

  [[nodiscard]] int made() const { return made_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_relaxed); }
  void end() {
    must_end_.store(true, std::memory_order_relaxed);
    flag_.raise();
    if (thread_.joinable()) thread_.join();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  test::pinned_flag& flag_;
  std::atomic<int> made_{0};
  std::atomic<bool> must_end_{false};
  std::atomic<bool> has_ended_{false};
  std::exception_ptr error_;  // read when the thread has been joined
  std::thread thread_;        // last: it uses the others
};

// Launches made when none has returned for a while, or when all have been made.
int count_until_quiet(launcher const& launches) {
  int last = 0;
  auto changed = clock::now();
  while (!launches.has_ended() && seconds_since(changed) < quiet_s) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    int const now = launches.made();
    if (now != last) changed = clock::now();
    last = now;
  }
  return launches.made();
}

void run(benchmark::State& state, named_form const& which, int launches_max) {
  test::pinned_flag flag;
  test::owned_stream const stream = test::make_stream();
  auto const form = which.make(stream, line_of_8);
  form->upload(stream);
  form->launch(stream);
  test::must(cudaStreamSynchronize(stream));
  int made = 0;
  for (auto _ : state) {
    auto const begin = clock::now();
    test::must(test::launch_wait_flag(stream, flag.get()));
    launcher launches(*form, stream, flag, launches_max);
    made = count_until_quiet(launches);
    launches.end();
    launches.rethrow();
    state.SetIterationTime(seconds_since(begin));
  }
  test::must(cudaStreamSynchronize(stream));
  state.counters["launches"] = made;
  state.counters["launches_max"] = launches_max;
  state.counters["destructors_owed"] = static_cast<double>(form->end());
}

}  // namespace

void register_run_ahead(settings const& how) {
  int const launches_max = how.choose(1200, 100, 4);
  for (char const* const name : {"bare", "escrow", "user_object"}) {
    named_form const form = form_named(name);
    add("run_ahead/" + std::string(name), 1, benchmark::kMillisecond, [=](benchmark::State& state) {
      run(state, form, launches_max);
    })->Repetitions(how.choose(3, 2, 1));
  }
}

}  // namespace escrow::bench
