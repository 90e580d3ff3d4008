// SPDX-License-Identifier: Apache-2.0
// The threads, which of them runs, and which is next. And the calls that the linker puts in the
// place of the real ones (--wrap, see CMakeLists.txt): what the library and the simulator wait on
// lets others of a group go on, one at a time; what destroys an object of CUDA tells the things of
// the program first; the registry of graphs and the clock are the program's.
#include "baton.hpp"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <escrow/internal/graph_registry.hpp>
#include <escrow/sim.hpp>
#include <memory>
#include <thread>

#include "program.hpp"
#include "things.hpp"

namespace escrow::inline v0_2 {
std::uintptr_t address_number(void const* address) noexcept;  // pool/address_number.hpp
}

namespace escrow::test {

namespace {

/// What: one thread waits until another gives it the turn. It uses nothing that the baton makes
/// schedulable: no lock of the library's kind, no yield.
/// Thread safety: one thread gives, one takes; what came before give() is seen after take().
class turn {
 public:
  turn() noexcept { sem_init(&given_, 0, 0); }
  turn(turn&&) = delete;
  ~turn() { sem_destroy(&given_); }

  void give() noexcept { sem_post(&given_); }
  void take() noexcept {
    while (sem_wait(&given_) != 0) continue;  // interrupted by a signal
  }

 private:
  sem_t given_{};
};

/// One thread, from its first work to the end of the process.
struct helper {
  helper() : thread([this] { run(); }) {}
  helper(helper&&) = delete;
  ~helper() {
    work = nullptr;
    begin.give();
    thread.join();
  }

  void start(std::function<void()> const& next) {
    work = &next;
    begin.give();
  }
  void run() {
    own_process::run_programs_here();
    for (begin.take(); work != nullptr; begin.take()) {
      (*work)();
      done.give();
    }
  }

  turn begin;
  turn done;
  std::function<void()> const* work = nullptr;  // the caller's before `begin`, then the thread's
  std::thread thread;
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
  baton::runner const* runs;
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

void baton::run(std::vector<runner> const& group) {
  waits = lock_waits_so_far = 0;
  std::deque<member> all;
  auto const start = [](std::size_t thread, std::function<void()> const& work) {
    thread == 0 ? work() : helper_of(thread).start(work);
  };
  if (group.size() == 1) {
    start(group.front().thread, group.front().work);
  } else {
    for (runner const& each : group) {
      member& added = all.emplace_back();
      added.runs = &each;
      added.group = &all;
      added.index = all.size() - 1;
      added.body = [&added] { run_member(added); };
    }
    all.front().mine.give();
    // The caller's own comes last, since it runs at once.
    for (member& each : all)
      if (each.runs->thread != 0) start(each.runs->thread, each.body);
    for (member& each : all)
      if (each.runs->thread == 0) start(0, each.body);
  }
  for (runner const& each : group)
    if (each.thread != 0) helper_of(each.thread).done.take();
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

std::size_t baton::lock_waits() noexcept {
  return lock_waits_so_far;
}

void baton::open_points() noexcept {
  if (me == nullptr) return;
  me->is_open = true;
  point();
}

void baton::close_points() noexcept {
  if (me == nullptr) return;
  point();
  me->is_open = false;
}

own_process::own_process() {
  current_ = this;
  run_programs_here();
  // Under another name, a function would not be replaced.
  bool const are_replaced = &graph_registry::global() == registry_.get() &&
                            address_number(this) != reinterpret_cast<std::uintptr_t>(this) &&
                            std::chrono::steady_clock::now().time_since_epoch() == now_;
  if (!are_replaced) std::abort();
}

std::uintptr_t own_process::number_of(void const* address) noexcept {
  constexpr std::uintptr_t apart = 512;  // as of blocks
  auto const end = numbers_.begin() + static_cast<std::ptrdiff_t>(numbers_now_);
  auto const known =
      std::find_if(numbers_.begin(), end, [&](auto const& each) { return each.first == address; });
  if (known != end) return known->second;
  if (end == numbers_.end()) std::abort();
  *end = {address, ++numbers_made_ * apart};
  ++numbers_now_;
  return end->second;
}

void own_process::address_gone(void const* address) noexcept {
  auto const end = numbers_.begin() + static_cast<std::ptrdiff_t>(numbers_now_);
  auto const known =
      std::find_if(numbers_.begin(), end, [&](auto const& each) { return each.first == address; });
  if (known != end) *known = numbers_[--numbers_now_];
}

}  // namespace escrow::test

using escrow::test::baton;
using escrow::test::own_process;
using escrow::test::things;

extern "C" {

// The names are the linker's.
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, timespec const*);
int __real_sched_yield();
int __real___cxa_guard_acquire(std::int64_t*);
void __real___cxa_guard_release(std::int64_t*);
void __real___cxa_guard_abort(std::int64_t*);
cudaError_t __real_cudaEventDestroy(cudaEvent_t);
cudaError_t __real_cudaFree(void*);
cudaError_t __real_cudaFreeAsync(void*, cudaStream_t);
cudaError_t __real_cudaLibraryUnload(cudaLibrary_t);
// A reference is returned as a pointer is.
escrow::graph_registry* __real__ZN6escrow4v0_214graph_registry6globalEv() noexcept;
std::uintptr_t __real__ZN6escrow4v0_214address_numberEPKv(void const*) noexcept;
std::int64_t __real__ZNSt6chrono3_V212steady_clock3nowEv() noexcept;

}  // extern "C"

namespace {

void handle_gone(void* gone) noexcept {
  things::handle_gone(gone);
  if (own_process* const own = own_process::current()) own->address_gone(gone);
}

// The static objects of functions that are being made. Whoever has the baton uses it; it is no
// container, whose allocations would count as the library's.
constinit std::array<std::int64_t const*, 16> made_now{};

bool is_made_now(std::int64_t const* guard) {
  return std::find(made_now.begin(), made_now.end(), guard) != made_now.end();
}
void replace_made(std::int64_t const* old, std::int64_t const* guard) {
  auto const place = std::find(made_now.begin(), made_now.end(), old);
  if (place != made_now.end()) *place = guard;
}

int lock_in_turn(pthread_mutex_t* mutex) {
  using namespace escrow::test;
  int result = pthread_mutex_trylock(mutex);
  if (result == EBUSY) ++lock_waits_so_far;
  for (; result == EBUSY; result = pthread_mutex_trylock(mutex)) baton::wait();
  if (baton::is_in_group()) waits = 0;
  return result;
}

/// A wait that always ends at once, at the time at which it has to. Others go on meanwhile, and so
/// does the machine.
int wait_in_turn(pthread_mutex_t* mutex, timespec const& until) {
  if (baton::is_in_group()) {
    static_cast<void>(__real_pthread_mutex_unlock(mutex));
    static_cast<void>(escrow::sim::step());
    baton::wait();
    static_cast<void>(lock_in_turn(mutex));
  }
  own_process::current()->wait_until(std::chrono::seconds(until.tv_sec) +
                                     std::chrono::nanoseconds(until.tv_nsec));
  return ETIMEDOUT;
}

}  // namespace

extern "C" {

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (!baton::is_in_group()) return __real_pthread_mutex_lock(mutex);
  baton::point();
  return lock_in_turn(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  int const result = __real_pthread_mutex_unlock(mutex);
  baton::point();
  return result;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, timespec const* until) {
  if (own_process::current() == nullptr)
    return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  return wait_in_turn(mutex, *until);
}

// A static object of a function: one thread makes it, the others wait until it is made.
int __wrap___cxa_guard_acquire(std::int64_t* guard) {
  if (baton::is_in_group())
    while (is_made_now(guard)) baton::wait();
  int const is_mine = __real___cxa_guard_acquire(guard);
  if (is_mine != 0 && baton::is_in_group()) replace_made(nullptr, guard);
  return is_mine;
}

void __wrap___cxa_guard_release(std::int64_t* guard) {
  if (baton::is_in_group()) replace_made(guard, nullptr);
  __real___cxa_guard_release(guard);
}

void __wrap___cxa_guard_abort(std::int64_t* guard) {
  if (baton::is_in_group()) replace_made(guard, nullptr);
  __real___cxa_guard_abort(guard);
}

int __wrap_sched_yield() {
  if (!baton::is_in_group()) return __real_sched_yield();
  baton::wait();
  return 0;
}

escrow::graph_registry* __wrap__ZN6escrow4v0_214graph_registry6globalEv() noexcept {
  own_process const* const own = own_process::current();
  return own != nullptr ? own->registry().get() : __real__ZN6escrow4v0_214graph_registry6globalEv();
}

std::uintptr_t __wrap__ZN6escrow4v0_214address_numberEPKv(void const* address) noexcept {
  own_process* const own = own_process::current();
  return own != nullptr ? own->number_of(address)
                        : __real__ZN6escrow4v0_214address_numberEPKv(address);
}

// A std::chrono::steady_clock::time_point, which is returned as its one member is.
std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() noexcept {
  own_process* const own = own_process::current();
  return own != nullptr ? own->look_at_clock().count()
                        : __real__ZNSt6chrono3_V212steady_clock3nowEv();
}

#define ESCROW_TELL_THINGS(call, handle)   \
  cudaError_t __wrap_##call(handle gone) { \
    handle_gone(gone);                     \
    return __real_##call(gone);            \
  }
ESCROW_TELL_THINGS(cudaEventDestroy, cudaEvent_t)
ESCROW_TELL_THINGS(cudaFree, void*)
ESCROW_TELL_THINGS(cudaLibraryUnload, cudaLibrary_t)
cudaError_t __wrap_cudaFreeAsync(void* gone, cudaStream_t stream) {
  handle_gone(gone);
  return __real_cudaFreeAsync(gone, stream);
}

}  // extern "C"
