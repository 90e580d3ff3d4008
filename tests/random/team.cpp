// Threads that wait for work.
#include "team.hpp"

#include <sched.h>

#include <array>
#include <memory>
#include <thread>

#include "program.hpp"
#include "turn.hpp"

namespace escrow::test {

namespace {

/// One thread, from its first work to the program's end.
class helper {
 public:
  helper() : thread_([this] { work(); }) {}
  helper(helper&&) = delete;
  ~helper() {
    work_ = nullptr;
    begin_.give();
    thread_.join();
  }

  void start(std::function<void()> const& work) {
    work_ = &work;
    begin_.give();
  }
  void await() { done_.take(); }

 private:
  void work() {
    while (true) {
      begin_.take();
      if (work_ == nullptr) return;
      (*work_)();
      done_.give();
    }
  }

  turn begin_;
  turn done_;
  std::function<void()> const* work_ = nullptr;  // the caller's before begin_, then the thread's
  std::thread thread_;
};

/// One of them runs at a time: on one processor the next begins four times as soon.
bool stay_on_this_processor() {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  return sched_setaffinity(0, sizeof(here), &here) == 0;
}

helper& helper_of(std::size_t thread) {
  // Before the first of them, which has it from the caller. Where it may not, it is slower.
  [[maybe_unused]] static bool const stays = stay_on_this_processor();
  static std::array<std::unique_ptr<helper>, program::threads_max> helpers;
  if (helpers.at(thread) == nullptr) helpers.at(thread) = std::make_unique<helper>();
  return *helpers.at(thread);
}

}  // namespace

void team::on(std::size_t thread, std::function<void()> const& work) {
  if (thread == 0) return work();
  start(thread, work);
  await(thread);
}

void team::start(std::size_t thread, std::function<void()> const& work) {
  helper_of(thread).start(work);
}

void team::await(std::size_t thread) {
  helper_of(thread).await();
}

}  // namespace escrow::test
