// SPDX-License-Identifier: Apache-2.0
// Nanoseconds inside a destroy callback, sample by sample. The callback is reclaimable::push(),
// called as CUDA calls it, with Escrow's worker awake and asleep; the library's wakeup alone, with
// a thread that sleeps behind it; or empty.
//
// Two readings of the clock are in each sample: subtract destructor/empty to be without.
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <escrow/deleter.hpp>
#include <escrow/detail/reclaimable.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "bench.hpp"
#include "escrow/internal/wakeup.hpp"

namespace escrow::bench {
namespace {

// A clock for the shortest times: the processor's own counter where it has one. Nothing before it
// in the program is done later, and nothing behind it earlier.
std::uint64_t ticks() {
#if defined(__x86_64__)
  _mm_lfence();
  std::uint64_t const now = __rdtsc();
  _mm_lfence();
  return now;
#else
  return static_cast<std::uint64_t>(clock::now().time_since_epoch().count());
#endif
}

double ns_per_tick() {
  static double const measured = [] {
    auto const begin = clock::now();
    std::uint64_t const first = ticks();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return seconds_since(begin) * 1e9 / static_cast<double>(ticks() - first);
  }();
  return measured;
}

// Objects whose destroy callback is timed, a round of them at a time.
struct callbacks {
  void (*callback)(void*) = nullptr;
  std::vector<void*> objects{};  // its argument for each of them
  std::function<void()> begin_round = [] {};
  // After a round: all objects may be used again when it returns.
  std::function<void()> end_round = [] {};
};

constexpr char const* worker_name = "bench-worker";

// The word of a file at this place.
std::string word_of(std::filesystem::path const& path, int place) {
  std::ifstream file(path);
  std::string word;
  for (int i = 0; i <= place; ++i) file >> word;
  return word;
}

// Where /proc tells of this process's only thread of the worker's name, which it sets itself, a
// little after it was made. For a moment it also tells of one that was joined.
std::filesystem::path folder_of_worker() {
  std::filesystem::path found;
  auto const is_there = [&] {
    for (auto const& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      if (word_of(entry.path() / "comm", 0) == worker_name) found = entry.path();
    }
    return !found.empty();
  };
  test::must(test::wait_until(is_there), "there is a thread of this name");
  return found;
}

// Each round begins when the worker sleeps.
void await_sleep_in(callbacks& of) {
  of.begin_round = [stat = folder_of_worker() / "stat"]() mutable {  // PID (NAME) STATE ...
    auto const begin = clock::now();
    for (std::string word; (word = word_of(stat, 2)) != "S";) {
      if (word.empty() || word == "X") stat = folder_of_worker() / "stat";  // the one before it
      test::must(clock::now() - begin < test::generous, "the worker goes to sleep");
      std::this_thread::yield();  // to sleep here would change what is measured
    }
  };
}

// Waits until as many have come as were sent. Acquire: pairs with the releases of those who come.
void await(std::atomic<std::size_t> const& come, std::size_t sent) {
  test::must(test::wait_until([&] { return come.load(std::memory_order_acquire) == sent; }),
             "a thread answers all callbacks");
}

callbacks empty() {
  return {.callback = [](void*) noexcept {}, .objects = std::vector<void*>(1024)};
}

// A node that counts its reclaims.
class counting_node final : public reclaimable {
 public:
  counting_node(deleter_core& core, std::atomic<std::size_t>& reclaimed)
      : reclaimable(core, release_lane::destroy, 0, &count), reclaimed_(&reclaimed) {}

 private:
  // Release: pairs with the acquire in await().
  static void count(reclaimable& node) noexcept {
    static_cast<counting_node&>(node).reclaimed_->fetch_add(1, std::memory_order_release);
  }

  std::atomic<std::size_t>* reclaimed_;
};

callbacks pushes(std::size_t nodes, std::chrono::microseconds linger) {
  struct worker {
    explicit worker(std::chrono::microseconds linger)
        : deleter({.thread_name = worker_name, .linger = linger}) {}

    std::atomic<std::size_t> reclaimed{0};
    std::size_t pushed = 0;
    escrow::deleter deleter;
    std::deque<counting_node> nodes;
  };
  auto const its = std::make_shared<worker>(linger);
  callbacks made{
      .callback = [](void* node) noexcept { static_cast<counting_node*>(node)->push(); }};
  for (std::size_t i = 0; i < nodes; ++i) {
    made.objects.push_back(&its->nodes.emplace_back(its->deleter.core(), its->reclaimed));
  }
  made.end_round = [=] { await(its->reclaimed, its->pushed += nodes); };
  return made;
}

// The worker looks again and again, and needs no wakeup.
callbacks awake() {
  return pushes(1024, std::chrono::hours(1));
}

// The worker goes to sleep as soon as it has nothing to do, and each push wakes it.
callbacks asleep() {
  callbacks made = pushes(1, std::chrono::microseconds(0));
  await_sleep_in(made);
  return made;
}

// A thread that sleeps behind a wakeup.
class sleeper {
 public:
  ~sleeper() {
    thread_.request_stop();
    wakeup_.notify();
  }

  static void ring(void* self) noexcept { static_cast<sleeper*>(self)->wakeup_.notify(); }
  void end_round() { await(answers_, ++rings_); }

 private:
  void answer(std::stop_token const& stop) {
    pthread_setname_np(pthread_self(), worker_name);
    while (wakeup_.try_sleep([&] { return !stop.stop_requested(); })) {
      wakeup_.wait_for_notify();
      // Release: pairs with the acquire in await().
      answers_.fetch_add(1, std::memory_order_release);
    }
  }

  wakeup wakeup_;
  std::atomic<std::size_t> answers_{0};
  std::size_t rings_ = 0;
  std::jthread thread_{[this](std::stop_token const& stop) { answer(stop); }};  // last
};

callbacks wake_alone() {
  auto const its = std::make_shared<sleeper>();
  callbacks made{.callback = &sleeper::ring, .objects = {its.get()}};
  made.end_round = [=] { its->end_round(); };
  await_sleep_in(made);
  return made;
}

// The ticks of each callback.
std::vector<std::uint32_t> take(callbacks const& of, std::size_t rounds) {
  // Volatile: CUDA's calls are not inlined either.
  auto* const volatile callback = of.callback;
  std::vector<std::uint32_t> taken(rounds * of.objects.size());  // no sample pays for the memory
  taken.clear();
  for (std::size_t left = rounds; left > 0; --left) {
    of.begin_round();
    for (void* const object : of.objects) {
      std::uint64_t const begin = ticks();
      callback(object);
      std::uint64_t const end = ticks();
      taken.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(end - begin, UINT32_MAX)));
    }
    of.end_round();
  }
  return taken;
}

void run_callbacks(benchmark::State& state, arm<callbacks()> const& which, std::size_t count) {
  callbacks const of = which.setup();
  constexpr std::size_t warm_up_rounds = 4;
  static_cast<void>(take(of, warm_up_rounds));
  std::vector<std::uint32_t> taken;
  repeat(state, [&] {
    taken = take(of, count / of.objects.size());
    return quantile(taken, 0.5) * ns_per_tick() * 1e-3;
  });
  for (auto const& [name, share] : {std::pair("p50_ns", 0.5), std::pair("p999_ns", 0.999)}) {
    state.counters[name] = quantile(taken, share) * ns_per_tick();
  }
}

// A sample of a worker that sleeps takes long.
constexpr arm<callbacks()> arms[]{
    {"empty", &empty},
    {"escrow_awake", &awake},
    {"escrow_asleep", &asleep, 10'000},
    {"wake_alone", &wake_alone, 10'000},
};

}  // namespace

void register_all(settings const& how) {
  for (auto const& each : arms) {
    int const count =
        std::min(how.choose(each.times_max, each.times_max / 100), how.choose(1 << 20, 1 << 11));
    add("destructor/" + std::string(each.name), {1, 0, benchmark::kNanosecond}, &run_callbacks,
        each, static_cast<std::size_t>(count));
  }
}

}  // namespace escrow::bench
