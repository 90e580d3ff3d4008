// What the pairs of the claim bench consist of: samples of the threads' stacks, by the clock, so
// also where they wait. A signal takes a stack; a pair says which arm it is of.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "claim_team.hpp"

namespace escrow::bench {

// What the calling thread does, a number from 1; 0: nothing that is sampled.
// Volatile: a signal handler of the same thread reads it.
constinit thread_local int volatile sampled_work = 0;

// A pair of an arm. flame.py looks for its name, which -g1 would shorten in an unnamed
// namespace.
struct sampled_pair {
  int work;
  claim_pair inner;

  [[gnu::noinline]] void operator()(std::size_t on, std::size_t last) const {
    sampled_work = work;
    inner(on, last);
    sampled_work = 0;
  }
};

namespace {

constexpr int frames_max = 64;
constexpr int frames_of_handler = 2;  // itself, and what returns from a signal

struct sample {
  int work = 0;
  int depth = 0;
  std::array<void*, frames_max> frames{};
};

// What the handlers write, each its own sample. What does not fit is left out.
std::array<sample, 60'000> samples;
std::atomic<std::size_t> taken{0};

void on_signal(int) {
  int const work = sampled_work;
  if (work == 0) return;
  int const error = errno;
  // Relaxed: each has a sample of its own.
  std::size_t const at = taken.fetch_add(1, std::memory_order_relaxed);
  if (at < samples.size()) {
    sample& mine = samples[at];
    mine.work = work;
    mine.depth = backtrace(mine.frames.data(), frames_max);
  }
  errno = error;
}

void handle_signals() {
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));  // loads what it needs, which no handler may
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  test::must(sigaction(SIGPROF, &action, nullptr) == 0, "SIGPROF has a handler");
}

// An offset in the program, for addr2line, or NAME@LIBRARY.
std::string name_of(std::uintptr_t address) {
  Dl_info info{};
  void* extra = nullptr;
  auto* const at = reinterpret_cast<void*>(address);
  if (dladdr1(at, &info, &extra, RTLD_DL_LINKMAP) == 0) return "?@?";
  auto const* const module = static_cast<link_map const*>(extra);
  std::ostringstream text;
  if (*module->l_name == '\0') {
    text << "0x" << std::hex << address - module->l_addr;
  } else {
    std::string const path = module->l_name;
    text << (info.dli_sname != nullptr ? info.dli_sname : "?") << '@'
         << path.substr(path.rfind('/') + 1);
  }
  return text.str();
}

// Writes a line for each stack of `work`: how often it was seen, and its frames, outermost first.
// The threads have ended.
void write_stacks(std::ostream& to, int work) {
  // Relaxed: the threads have been joined.
  std::size_t const count = std::min(taken.load(std::memory_order_relaxed), samples.size());
  std::map<std::vector<std::uintptr_t>, int> stacks;
  for (std::size_t i = 0; i < count; ++i) {
    if (samples[i].work != work) continue;
    std::vector<std::uintptr_t> stack;
    for (int at = samples[i].depth - 1; at >= frames_of_handler; --at) {
      // What a function returns to may be the next one's: the call is before it. The innermost
      // frame was interrupted.
      auto const address =
          reinterpret_cast<std::uintptr_t>(samples[i].frames.at(static_cast<std::size_t>(at)));
      stack.push_back(address - (at > frames_of_handler ? 1 : 0));
    }
    ++stacks[std::move(stack)];
  }
  for (auto const& [stack, times] : stacks) {
    to << times << ' ';
    for (std::uintptr_t const each : stack) to << name_of(each) << ';';
    to << '\n';
  }
}

}  // namespace

void run_stacks(benchmark::State& state, std::string const& folder, int seconds) {
  handle_signals();
  std::vector<claim_arm> const arms{arm_named("escrow", claim_arms()),
                                    arm_named("local", claim_arms())};
  std::mutex mutex;  // guards `threads` while they start
  std::vector<pthread_t> threads;
  std::vector<claim_setup> setups;
  for (claim_arm const& arm : arms) {
    int const work = static_cast<int>(setups.size()) + 1;
    setups.push_back([&, work, inner = arm.setup()](claim_streams const& mine) -> claim_pair {
      std::lock_guard const lock(mutex);
      if (work == 1) threads.push_back(pthread_self());  // once
      return sampled_pair{work, inner(mine)};
    });
  }
  std::vector<std::vector<double>> ns(arms.size());
  for (auto _ : state) {
    claim_team team({.threads = 8}, std::move(setups));
    std::jthread const clock_thread([&](std::stop_token const& stop) {
      for (std::size_t next = 0; !stop.stop_requested(); ++next) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        pthread_kill(threads[next % threads.size()], SIGPROF);
      }
    });
    auto const begin = clock::now();
    while (seconds_since(begin) < seconds) {
      for (std::size_t arm = 0; arm < ns.size(); ++arm) {
        ns[arm].push_back(team.round(arm, many) * 1e9);
      }
    }
    state.SetIterationTime(seconds_since(begin));
  }
  cudaDeviceProp properties{};
  test::must(cudaGetDeviceProperties(&properties, 0));
  for (std::size_t arm = 0; arm < ns.size(); ++arm) {
    std::string const name(arms[arm].name);
    double const median = quantile(ns[arm], 0.5);
    state.counters[name + "_us"] = median / 1e3;
    std::ofstream file(folder + "/claim_" + name + ".stacks");
    file << "# " << median << " ns a pair, " << properties.name << '\n';
    write_stacks(file, static_cast<int>(arm) + 1);
    file.close();
    test::must(!file.fail(), "the stacks are written");
  }
}

}  // namespace escrow::bench
