// What the pairs of the claim bench consist of: samples of the threads' stacks, by the clock, so
// also where they wait. A signal takes a stack; a pair says which arm it is of.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "claim_arms.hpp"
#include "claim_team.hpp"
#include "status.hpp"
#include "timing.hpp"

namespace escrow::bench {

// What the calling thread does, a number from 1; 0: nothing that is sampled.
// Volatile: a signal handler of the same thread reads it.
constinit thread_local int volatile sampled_work = 0;

// What: interrupts the threads that have joined, one after the other, and keeps their stacks.
// Thread safety: threads join and leave at any time; the rest by the thread that made it.
// Lifetime: one at a time; longer than its members.
// Errors: what does not fit into `samples_max` is left out.
class stack_sampler {
 public:
  // `interval`: from the interrupt of one thread to that of the next one.
  stack_sampler(std::chrono::microseconds interval, std::size_t samples_max);
  stack_sampler(stack_sampler&&) = delete;
  ~stack_sampler();

  // The thread that makes it is sampled until its end, which comes before the thread's.
  class member {
   public:
    explicit member(stack_sampler& sampler);
    member(member&&) = delete;
    ~member();

   private:
    stack_sampler& sampler_;
    pthread_t const self_;
  };

  // Writes a line for each stack of `work`: how often it was seen, and its frames, outermost first:
  // an offset in the program, for addr2line, or NAME@LIBRARY. For when no member is left.
  void write(std::ostream& to, int work) const;

 private:
  static constexpr int frames_max = 64;
  struct sample {
    int work = 0;
    int depth = 0;
    std::array<void*, frames_max> frames;
  };

  static void on_signal(int);
  void interrupt_members(std::chrono::microseconds interval);

  std::vector<sample> samples_;
  std::atomic<std::size_t> taken_{0};
  std::atomic<bool> is_ending_{false};
  std::mutex mutex_;  // guards members_
  std::vector<pthread_t> members_;
  std::thread clock_;
};

namespace {

std::atomic<stack_sampler*> the_sampler{nullptr};

constexpr int frames_of_handler = 2;  // itself, and what returns from a signal

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

}  // namespace

stack_sampler::stack_sampler(std::chrono::microseconds interval, std::size_t samples_max)
    : samples_(samples_max) {
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));  // loads what it needs, which no handler may
  the_sampler.store(this, std::memory_order_release);
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  test::must(sigaction(SIGPROF, &action, nullptr) == 0, "SIGPROF has a handler");
  clock_ = std::thread([=, this] { interrupt_members(interval); });
}

stack_sampler::~stack_sampler() {
  is_ending_.store(true, std::memory_order_relaxed);
  clock_.join();
  std::signal(SIGPROF, SIG_IGN);  // one may be on its way
  the_sampler.store(nullptr, std::memory_order_relaxed);
}

stack_sampler::member::member(stack_sampler& sampler) : sampler_(sampler), self_(pthread_self()) {
  std::lock_guard const lock(sampler_.mutex_);
  sampler_.members_.push_back(self_);
}

stack_sampler::member::~member() {
  std::lock_guard const lock(sampler_.mutex_);
  std::erase_if(sampler_.members_, [this](pthread_t each) { return pthread_equal(each, self_); });
}

void stack_sampler::interrupt_members(std::chrono::microseconds interval) {
  for (std::size_t next = 0; !is_ending_.load(std::memory_order_relaxed); ++next) {
    std::this_thread::sleep_for(interval);
    std::lock_guard const lock(mutex_);
    if (!members_.empty()) pthread_kill(members_[next % members_.size()], SIGPROF);
  }
}

void stack_sampler::on_signal(int) {
  int const work = sampled_work;
  // Acquire: its samples are there.
  stack_sampler* const sampler = the_sampler.load(std::memory_order_acquire);
  if (work == 0 || sampler == nullptr) return;
  int const error = errno;
  // Relaxed: each has a sample of its own.
  std::size_t const at = sampler->taken_.fetch_add(1, std::memory_order_relaxed);
  if (at < sampler->samples_.size()) {
    sample& mine = sampler->samples_[at];
    mine.work = work;
    mine.depth = backtrace(mine.frames.data(), frames_max);
  }
  errno = error;
}

void stack_sampler::write(std::ostream& to, int work) const {
  // Relaxed: the members' threads have ended.
  std::size_t const count = std::min(taken_.load(std::memory_order_relaxed), samples_.size());
  std::map<std::vector<std::uintptr_t>, int> stacks;
  for (std::size_t i = 0; i < count; ++i) {
    if (samples_[i].work != work) continue;
    std::vector<std::uintptr_t> stack;
    for (int at = samples_[i].depth - 1; at >= frames_of_handler; --at) {
      // What a function returns to may be the next one's: the call is before it. The innermost
      // frame was interrupted.
      auto const address =
          reinterpret_cast<std::uintptr_t>(samples_[i].frames.at(static_cast<std::size_t>(at)));
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

// A pair of an arm. flame.py looks for its name, which -g1 would shorten in an unnamed
// namespace.
struct sampled_pair {
  int work;
  std::shared_ptr<stack_sampler::member> thread;
  claim_pair inner;

  [[gnu::noinline]] void operator()(std::size_t on, std::size_t last) const {
    sampled_work = work;
    inner(on, last);
    sampled_work = 0;
  }
};

namespace {

constexpr std::array<std::string_view, 2> sampled_arms{"escrow", "local"};

claim_setup sampled(stack_sampler& sampler, int work, claim_setup const& arm) {
  return [&sampler, work, arm](claim_streams const& mine) -> claim_pair {
    // A thread joins once; it is interrupted for all arms.
    auto thread = work == 1 ? std::make_shared<stack_sampler::member>(sampler) : nullptr;
    return sampled_pair{work, std::move(thread), arm(mine)};
  };
}

}  // namespace

void run_stacks(benchmark::State& state, std::string const& folder, int seconds) {
  using namespace std::chrono_literals;
  constexpr std::size_t samples_max = 60'000;
  stack_sampler sampler(200us, samples_max);
  std::array<std::vector<double>, sampled_arms.size()> ns;
  for (auto _ : state) {
    std::vector<claim_setup> setups;
    for (std::string_view const arm : sampled_arms) {
      setups.push_back(sampled(sampler, static_cast<int>(setups.size()) + 1, setup_of(arm)()));
    }
    claim_team team({.threads = 8}, std::move(setups));
    auto const begin = clock::now();
    while (seconds_since(begin) < seconds) {
      for (std::size_t arm = 0; arm < ns.size(); ++arm) {
        ns.at(arm).push_back(team.round(arm, many) * 1e9);
      }
    }
    state.SetIterationTime(seconds_since(begin));
  }
  cudaDeviceProp properties{};
  test::must(cudaGetDeviceProperties(&properties, 0));
  for (std::size_t arm = 0; arm < ns.size(); ++arm) {
    std::string const name(sampled_arms.at(arm));
    double const median = quantile(ns.at(arm), 0.5);
    state.counters[name + "_us"] = median / 1e3;
    std::ofstream file(folder + "/claim_" + name + ".stacks");
    file << "# " << median << " ns a pair, " << properties.name << '\n';
    sampler.write(file, static_cast<int>(arm) + 1);
    file.close();
    test::must(!file.fail(), "the stacks are written");
  }
}

}  // namespace escrow::bench
