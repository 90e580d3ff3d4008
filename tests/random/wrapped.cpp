// Calls that the linker puts in the place of the real ones (--wrap, see CMakeLists.txt). What the
// library and the simulator wait on lets others go on, one at a time, inside a group of operations
// that run together; everywhere else it is the real one. What destroys an object of CUDA tells that
// to the program's world first.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <ctime>
#include <escrow/sim.hpp>

#include "baton.hpp"
#include "things.hpp"

using escrow::test::baton;
using escrow::test::things;

extern "C" {

// The names are the linker's.
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __real_pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, timespec const*);
int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, timespec const*);
int __real_sched_yield();
cudaError_t __real_cudaEventDestroy(cudaEvent_t);
cudaError_t __real_cudaFree(void*);
cudaError_t __real_cudaLibraryUnload(cudaLibrary_t);

}  // extern "C"

namespace {

int lock_in_turn(pthread_mutex_t* mutex) {
  int result = pthread_mutex_trylock(mutex);
  if (result == EBUSY) baton::count_lock_wait();
  for (; result == EBUSY; result = pthread_mutex_trylock(mutex)) baton::wait();
  baton::go_on();
  return result;
}

/// A very short wait is really waited for, so that its end is no matter of luck.
void await_if_near(clockid_t clock, timespec const& until) {
  constexpr long near = 100'000;  // ns
  auto const left = [&] {
    timespec now{};
    static_cast<void>(clock_gettime(clock, &now));
    return (until.tv_sec - now.tv_sec) * 1'000'000'000L + (until.tv_nsec - now.tv_nsec);
  };
  if (left() > near) return;
  while (left() >= 0) continue;
}

/// A wait that always ends at once. Others go on meanwhile, and so does the machine.
int wait_in_turn(pthread_mutex_t* mutex, clockid_t clock, timespec const& until) {
  static_cast<void>(__real_pthread_mutex_unlock(mutex));
  static_cast<void>(escrow::sim::step());
  baton::wait();
  await_if_near(clock, until);
  static_cast<void>(lock_in_turn(mutex));
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

int __wrap_pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  timespec const* until) {
  if (!baton::is_in_group()) return __real_pthread_cond_timedwait(condition, mutex, until);
  return wait_in_turn(mutex, CLOCK_REALTIME, *until);
}

int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, timespec const* until) {
  if (!baton::is_in_group()) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  return wait_in_turn(mutex, clock, *until);
}

int __wrap_sched_yield() {
  if (!baton::is_in_group()) return __real_sched_yield();
  baton::wait();
  return 0;
}

cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event) {
  things::handle_gone(event);
  return __real_cudaEventDestroy(event);
}

cudaError_t __wrap_cudaFree(void* memory) {
  things::handle_gone(memory);
  return __real_cudaFree(memory);
}

cudaError_t __wrap_cudaLibraryUnload(cudaLibrary_t library) {
  things::handle_gone(library);
  return __real_cudaLibraryUnload(library);
}

}  // extern "C"
