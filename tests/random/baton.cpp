// The threads, which of them runs, and which is next.
#include "baton.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>

#include "program.hpp"

namespace escrow::test {

namespace {

/// What: a word that one thread sets and one waits for. It uses nothing that the baton makes
/// schedulable: no lock of the library's kind, no yield.
/// Thread safety: one thread gives, one takes. Memory ordering: what came before give() is seen
/// after take().
class turn {
 public:
  void give() noexcept {
    // Release, with the acquire in take(): the giver's work comes before the taker's.
    if (state_.exchange(given, std::memory_order_release) == asleep) futex(FUTEX_WAKE_PRIVATE, 1);
  }

  void take() noexcept {
    std::uint32_t seen = idle;
    while (true) {
      // Acquire: see give(). If nothing was given, this says that the thread sleeps.
      if (state_.compare_exchange_strong(seen, seen == given ? idle : asleep,
                                         std::memory_order_acquire) &&
          seen == given)
        return;
      // Spurious ends and late looks only mean another look.
      if (seen != given) futex(FUTEX_WAIT_PRIVATE, asleep);
      seen = state_.load(std::memory_order_relaxed);
    }
  }

 private:
  void futex(int what, std::uint32_t value) noexcept {
    static_assert(sizeof(state_) == sizeof(std::uint32_t));
    syscall(SYS_futex, &state_, what, value, nullptr, nullptr, 0);
  }

  static constexpr std::uint32_t idle = 0;
  static constexpr std::uint32_t given = 1;
  static constexpr std::uint32_t asleep = 2;
  std::atomic<std::uint32_t> state_{idle};
};

/// One thread of the team, from its first work to the end of the process.
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
  // Before the first of them, which inherits it. Where it is not permitted, it is slower.
  [[maybe_unused]] static bool const stays = stay_on_this_processor();
  static std::array<std::unique_ptr<helper>, program::threads_max> helpers;
  if (helpers.at(thread) == nullptr) helpers.at(thread) = std::make_unique<helper>();
  return *helpers.at(thread);
}

struct member {
  baton::runner const* runs = nullptr;
  std::deque<member>* group = nullptr;  // the thread that has the baton may look at all of it
  std::size_t index = 0;
  unsigned points = 0;   // met so far
  bool is_open = false;  // they count
  bool is_done = false;
  turn mine;
  std::function<void()> body;
};

constinit thread_local member* me = nullptr;
std::size_t waits = 0;  // in a row, of all together, without one that ends
std::size_t lock_waits_so_far = 0;

/// The next after `from` that is not done; `from` itself if there is none.
member& next_after(member& from) {
  auto& all = *from.group;
  for (std::size_t i = 1; i < all.size(); ++i) {
    member& other = all[(from.index + i) % all.size()];
    if (!other.is_done) return other;
  }
  return from;
}

void pass_on() noexcept {
  member& from = *me;
  member& to = next_after(from);
  if (&to == &from) return;
  to.mine.give();
  from.mine.take();
}

void run_member(member& self) {
  self.mine.take();
  me = &self;
  self.runs->work();
  me = nullptr;
  self.is_done = true;
  if (member& to = next_after(self); &to != &self) to.mine.give();
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

void baton::run(std::vector<runner> const& runners) {
  waits = lock_waits_so_far = 0;
  std::deque<member> all;
  for (runner const& each : runners) {
    member& added = all.emplace_back();
    added.runs = &each;
    added.group = &all;
    added.index = all.size() - 1;
    added.body = [&added] { run_member(added); };
  }
  all.front().mine.give();
  member* on_this_thread = nullptr;
  for (member& each : all) {
    if (each.runs->thread == 0) {
      on_this_thread = &each;
    } else {
      team::start(each.runs->thread, each.body);
    }
  }
  if (on_this_thread != nullptr) on_this_thread->body();
  for (member& each : all)
    if (&each != on_this_thread) team::await(each.runs->thread);
}

bool baton::is_in_group() noexcept {
  return me != nullptr;
}

void baton::point() noexcept {
  if (me == nullptr || !me->is_open) return;
  constexpr unsigned bits = 64;
  unsigned const now = me->points++;
  if (((me->runs->passes >> (now % bits)) & 1U) != 0) pass_on();
}

void baton::wait() noexcept {
  constexpr std::size_t waits_max = 100'000;
  if (me == nullptr) return;
  if (++waits > waits_max) std::abort();
  pass_on();
}

void baton::go_on() noexcept {
  if (me != nullptr) waits = 0;
}

std::size_t baton::lock_waits() noexcept {
  return lock_waits_so_far;
}

void baton::count_lock_wait() noexcept {
  ++lock_waits_so_far;
}

open_points::open_points() noexcept {
  if (me == nullptr) return;
  me->is_open = true;
  baton::point();
}

open_points::~open_points() {
  if (me == nullptr) return;
  baton::point();
  me->is_open = false;
}

}  // namespace escrow::test
