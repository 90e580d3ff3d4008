// SPDX-License-Identifier: Apache-2.0
// Locks, sleeps, threads and memory of the program: the linker's --wrap leads here. What does not
// come from a thread of the model goes on to the system.
#include "system.hpp"

#include <cxxabi.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "engine.hpp"
#include "operations.hpp"

namespace model = escrow::model;
using model::engine;
using model::in_checker;
using model::is_in_model;
using model::status;

namespace escrow::model {

namespace {

void (*at_exit)() = nullptr;

std::uintptr_t address(void const* of) {
  return reinterpret_cast<std::uintptr_t>(of);
}

void own(model_lock& taken) {
  engine& all = engine::the();
  taken.owner = all.running() + 1;
  all.self().known.join(taken.released);
  static_cast<void>(all.step(taken.where));
  all.changed();
}

void lock(void const* mutex) {
  engine& all = engine::the();
  all.plain(address(mutex), 1, access_kind::atomic, __builtin_return_address(0));
  static_cast<void>(all.lock_at(address(mutex)));
  all.wait(status::wants_lock, address(mutex));
  own(all.lock_at(address(mutex)));
  all.trace(nullptr, "lock", address(mutex), "");
}

bool try_lock(void const* mutex) {
  engine& all = engine::the();
  all.plain(address(mutex), 1, access_kind::atomic, __builtin_return_address(0));
  model_lock& wanted = all.lock_at(address(mutex));
  // It may fail without cause, as the standard says.
  bool const taken = wanted.owner == 0 && all.way().choose(2) == 0;
  if (taken) {
    own(wanted);
  } else {
    static_cast<void>(all.step(0));
  }
  all.trace(nullptr, "try_lock", address(mutex), taken ? "taken" : "not taken");
  all.after_step();
  return taken;
}

// Others need not go on first: who waits may go on all the earlier, and try_lock() fails anyway.
void unlock(void const* mutex) {
  engine& all = engine::the();
  model_lock& owned = all.lock_at(address(mutex));
  static_cast<void>(all.step(address(mutex)));
  owned.released = all.self().known;
  owned.owner = 0;
  all.changed();
  all.trace(nullptr, "unlock", address(mutex), "");
}

constexpr std::uint64_t nanoseconds(timespec const& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// The condition's own lock is let go and the thread sleeps in one step.
int await(void const* condition, void const* mutex, timespec const* until) {
  engine& all = engine::the();
  unlock(mutex);
  all.wait(until == nullptr ? status::sleeps : status::sleeps_awhile, address(condition));
  bool const was_woken = all.self().was_woken;
  static_cast<void>(all.step(was_woken ? 1 : 0));
  if (!was_woken) all.self().time = std::max(all.self().time, nanoseconds(*until));
  lock(mutex);
  return was_woken ? 0 : ETIMEDOUT;
}

void yield() {
  engine& all = engine::the();
  model_thread const& self = all.self();
  // After a look that found nothing: until there is something else to see.
  bool const has_looked =
      self.spin_site != nullptr && self.spin_operations == self.operations && self.spin_count > 0;
  if (has_looked) {
    location& looked_at = all.at(self.spin_where, 1, nullptr);
    all.wait(status::rests, self.spin_where, looked_at.messages[self.spin_message].value);
  } else {
    all.wait(status::rests);
  }
  static_cast<void>(all.step(0));
}

}  // namespace

void sleep_while(void const* word, std::uint32_t value) {
  in_checker const mine;
  static_cast<void>(
      sleep_on({address(word), sizeof(value), __builtin_return_address(0)}, value, false));
}

void wake_one(void const* word) {
  in_checker const mine;
  static_cast<void>(wake(address(word), 1, __builtin_return_address(0)));
}

void (*exit_handler())() {
  return at_exit;
}

}  // namespace escrow::model

extern "C" {

int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (model::is_in_setup()) return 0;
  if (!is_in_model()) return __real_pthread_mutex_lock(mutex);
  in_checker const mine;
  model::lock(mutex);
  return 0;
}

int __real_pthread_mutex_trylock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  if (model::is_in_setup()) return 0;
  if (!is_in_model()) return __real_pthread_mutex_trylock(mutex);
  in_checker const mine;
  return model::try_lock(mutex) ? 0 : EBUSY;
}

int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (model::is_in_setup()) return 0;
  if (!is_in_model()) return __real_pthread_mutex_unlock(mutex);
  in_checker const mine;
  model::unlock(mutex);
  return 0;
}

int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, timespec const*);
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, timespec const* until) {
  if (!is_in_model()) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  in_checker const mine;
  return model::await(condition, mutex, until);
}

void __real__ZNSt18condition_variable10notify_allEv(void* condition);
void __wrap__ZNSt18condition_variable10notify_allEv(void* condition) {
  if (model::is_in_setup()) return;
  if (!is_in_model()) return __real__ZNSt18condition_variable10notify_allEv(condition);
  in_checker const mine;
  engine::the().plain(model::address(condition), 1, model::access_kind::atomic,
                      __builtin_return_address(0));
  static_cast<void>(
      model::wake(model::address(condition), model::threads_max, __builtin_return_address(0)));
}

int __real_sched_yield();
int __wrap_sched_yield() {
  if (!is_in_model()) return __real_sched_yield();
  in_checker const mine;
  model::yield();
  return 0;
}

int __real_nanosleep(timespec const* time, timespec* left);
int __wrap_nanosleep(timespec const* time, timespec* left) {
  if (!is_in_model()) return __real_nanosleep(time, left);
  in_checker const mine;
  engine& all = engine::the();
  all.wait(status::rests);
  all.self().time += model::nanoseconds(*time);
  static_cast<void>(all.step(0));
  return 0;
}

std::int64_t __real__ZNSt6chrono3_V212steady_clock3nowEv();
std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  if (!is_in_model()) return __real__ZNSt6chrono3_V212steady_clock3nowEv();
  return static_cast<std::int64_t>(engine::the().self().time);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  std::va_list given;
  va_start(given, number);
  long arguments[6];
  for (long& each : arguments) each = va_arg(given, long);
  va_end(given);
  if (!is_in_model() || number != SYS_futex) {
    return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
  }
  in_checker const mine;
  auto const where = static_cast<std::uintptr_t>(arguments[0]);
  void* const caller = __builtin_return_address(0);
  if ((arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) {
    return static_cast<long>(model::wake(where, static_cast<std::size_t>(arguments[2]), caller));
  }
  auto const value = static_cast<std::uint32_t>(arguments[2]);
  if (model::sleep_on({where, sizeof(value), caller}, value, arguments[3] != 0)) return 0;
  errno = EAGAIN;
  return -1;
}

pthread_t __real_pthread_self();
pthread_t __wrap_pthread_self() {
  return is_in_model() ? engine::the().running() + 1 : __real_pthread_self();
}

int __real_pthread_setname_np(pthread_t thread, char const* name);
int __wrap_pthread_setname_np(pthread_t thread, char const* name) {
  return is_in_model() ? 0 : __real_pthread_setname_np(thread, name);
}

// What a std::thread runs, by its table of virtual functions: the library's own type is private.
struct thread_state {
  virtual ~thread_state() = default;
  virtual void run() = 0;
};
using start_state = std::unique_ptr<thread_state>;
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* made, start_state* state, void (*depend)());
constexpr auto really_start =
    &__real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE;
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* made, start_state* state, void (*depend)()) {
  if (!is_in_model() && !model::is_in_setup()) {
    return really_start(made, state, depend);
  }
  bool const is_running = is_in_model();
  std::uint32_t number = 0;
  {
    in_checker const mine;
    thread_state* const kept = state->release();
    number = engine::the().add_thread("thread", [kept] { kept->run(); });
    engine::the().thread(number).is_started = true;
    if (is_running) engine::the().after_step();
  }
  pthread_t const id = number + 1;
  std::memcpy(static_cast<void*>(made), &id, sizeof(id));
}

void __real__ZNSt6thread4joinEv(std::thread* ended);
void __wrap__ZNSt6thread4joinEv(std::thread* ended) {
  if (!is_in_model()) return __real__ZNSt6thread4joinEv(ended);
  in_checker const mine;
  engine& all = engine::the();
  pthread_t id = 0;
  std::memcpy(&id, static_cast<void*>(ended), sizeof(id));
  all.wait(status::joins, 0, id - 1);
  all.self().known.join(all.thread(id - 1).known);
  static_cast<void>(all.step(id));
  id = 0;
  std::memcpy(static_cast<void*>(ended), &id, sizeof(id));
}

void __real__ZNSt6thread6detachEv(std::thread* detached);
void __wrap__ZNSt6thread6detachEv(std::thread* detached) {
  if (!is_in_model()) return __real__ZNSt6thread6detachEv(detached);
  pthread_t const id = 0;
  std::memcpy(static_cast<void*>(detached), &id, sizeof(id));
}

int __real_atexit(void (*handler)());
int __wrap_atexit(void (*handler)()) {
  if (!is_in_model() && !model::is_in_setup()) return __real_atexit(handler);
  model::at_exit = handler;
  return 0;
}

// The guards of statics in functions; the first byte says whether there is anything to do.
int __real___cxa_guard_acquire(char* guard);
int __wrap___cxa_guard_acquire(char* guard) {
  if (!is_in_model()) return __real___cxa_guard_acquire(reinterpret_cast<char*>(guard));
  in_checker const mine;
  model::lock(guard);
  if (*guard == 0) return 1;
  model::unlock(guard);
  return 0;
}

void __real___cxa_guard_release(char* guard);
void __wrap___cxa_guard_release(char* guard) {
  if (!is_in_model()) return __real___cxa_guard_release(guard);
  in_checker const mine;
  *guard = 1;
  model::unlock(guard);
}

}  // extern "C"

// What the program allocates goes with the execution; what it frees must not be used again.
extern "C" {

void* __real_malloc(std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
void __real_free(void* block);

}  // extern "C"

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
  if (is_in_model() || model::is_in_setup()) {
    engine& all = engine::the();
    std::size_t const part = is_in_model() ? all.running() : model::threads_max;
    return all.memory().allocate(part, size, alignment);
  }
  return alignment <= alignof(std::max_align_t)
             ? __real_malloc(size)
             : __real_aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_end(std::size_t size, std::size_t alignment) {
  void* const block = allocate(size, alignment);
  if (block == nullptr) std::abort();
  return block;
}

void release(void* block, void const* caller) noexcept {
  if (block == nullptr) return;
  engine* const all = engine::if_any();
  if (all == nullptr || !all->memory().has(block)) return __real_free(block);
  if (!is_in_model()) return;
  in_checker const mine;
  all->freed(model::address(block), model::heap::size_of(block), caller);
}

}  // namespace

extern "C" {

// Boost's aligned allocator comes here, which its free lists have since 1.81.
int __wrap_posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  *block = allocate(size, alignment);
  return *block == nullptr ? ENOMEM : 0;
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return allocate(size, alignment);
}
void* __wrap_malloc(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
void __wrap_free(void* block) {
  release(block, __builtin_return_address(0));
}

}  // extern "C"

void* operator new(std::size_t size) {
  return allocate_or_end(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::nothrow_t const& /*tag*/) noexcept {
  return allocate_or_end(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_end(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept {
  release(block, __builtin_return_address(0));
}
void operator delete(void* block, std::size_t /*size*/) noexcept {
  release(block, __builtin_return_address(0));
}
void operator delete(void* block, std::align_val_t /*alignment*/) noexcept {
  release(block, __builtin_return_address(0));
}
void operator delete(void* block, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  release(block, __builtin_return_address(0));
}
