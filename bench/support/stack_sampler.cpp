// The signal that takes a stack, and what the frames of a stack are called.
#include "stack_sampler.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <ostream>
#include <sstream>
#include <string>

#include "status.hpp"

namespace escrow::bench {

constinit thread_local int volatile sampled_work = 0;

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

}  // namespace escrow::bench
