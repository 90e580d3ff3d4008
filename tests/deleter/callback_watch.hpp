// SPDX-License-Identifier: Apache-2.0
// Counts what happens inside destroy callbacks: allocations, locks, system calls, CUDA calls, and
// how often a callback gave its processor away.
//
// The linker's --wrap hands this program's every cudaUserObjectCreate, pthread_mutex_lock and
// syscall to the functions here, and malloc is the program's own, so that nothing in the library
// needs to know. One file of a program includes this header: it defines them. See
// watch_callbacks() in cmake/EscrowTests.cmake.
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "deep.hpp"
#include "status.hpp"

#if ESCROW_TEST_TSAN || ESCROW_TEST_ASAN
// As in sanitizer/allocator_interface.h, which g++ does not install.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(void const volatile*,
                                                                  std::size_t),
                                                         void (*)(void const volatile*));
#endif
#ifdef ESCROW_TEST_RUNTIME_GPU
#include <cupti.h>
#else
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

/// What was done inside destroy callbacks since forget_deeds().
struct callback_deeds {
  std::uint64_t callbacks = 0;
  std::uint64_t elsewhere = 0;     ///< of them, on threads that did not call forget_deeds()
  std::uint64_t allocations = 0;   ///< malloc and its like, operator new included
  std::uint64_t locks = 0;         ///< pthread_mutex_lock
  std::uint64_t system_calls = 0;  ///< through syscall(), which futex wake-ups go through
  std::uint64_t cuda_calls = 0;    ///< runtime and driver
  std::uint64_t switches = 0;      ///< voluntary context switches: the thread slept or blocked
};

/// What the functions below count.
namespace callback_watch {

inline constinit thread_local int depth = 0;
inline constinit thread_local bool is_callers = false;  // the thread that asked to forget

// Relaxed, because counts are read when the callbacks are over, which the test waits for.
class counter {
 public:
  void add(std::uint64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  void clear() { value_.store(0, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};
inline constinit counter callbacks, elsewhere, switches, allocations, locks, system_calls;

inline void count(counter& what) {
  if (depth != 0) what.add(1);
}

struct watched {
  cudaHostFn_t destroy;
  void* argument;
};

// How often this thread has slept or blocked so far.
inline std::uint64_t voluntary_switches() {
  rusage used{};
  static_cast<void>(getrusage(RUSAGE_THREAD, &used));
  return static_cast<std::uint64_t>(used.ru_nvcsw);
}

inline void run_watched(watched const& it) {
  std::uint64_t const before = voluntary_switches();
  ++depth;
  count(callbacks);
  if (!is_callers) count(elsewhere);
  it.destroy(it.argument);
  --depth;
  switches.add(voluntary_switches() - before);
}

inline void CUDART_CB destroy_watched(void* argument) {
  auto* const it = static_cast<watched*>(argument);
  run_watched(*it);
  delete it;
}

}  // namespace callback_watch
}  // namespace escrow::test

namespace watch = escrow::test::callback_watch;

extern "C" {

cudaError_t __real_cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned);
int __real_pthread_mutex_lock(pthread_mutex_t*);
long __real_syscall(long, ...);

cudaError_t __wrap_cudaUserObjectCreate(cudaUserObject_t* out, void* argument, cudaHostFn_t destroy,
                                        unsigned references, unsigned flags) {
  auto* const it = new watch::watched{destroy, argument};
  cudaError_t const status =
      __real_cudaUserObjectCreate(out, it, &watch::destroy_watched, references, flags);
  if (status != cudaSuccess) delete it;
  return status;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  watch::count(watch::locks);
  return __real_pthread_mutex_lock(mutex);
}

long __wrap_syscall(long number, ...) {
  watch::count(watch::system_calls);
  std::va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& each : arguments) each = va_arg(rest, long);
  va_end(rest);
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                        arguments[4], arguments[5]);
}

#if !ESCROW_TEST_TSAN && !ESCROW_TEST_ASAN
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t size) {
  watch::count(watch::allocations);
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  watch::count(watch::allocations);
  return __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  watch::count(watch::allocations);
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  watch::count(watch::allocations);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  watch::count(watch::allocations);
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  watch::count(watch::allocations);  // giving back takes the allocator's locks too
  __libc_free(memory);
}
#endif
}

namespace escrow::test {
namespace callback_watch {

#if ESCROW_TEST_TSAN || ESCROW_TEST_ASAN
[[maybe_unused]] inline int const hooks = __sanitizer_install_malloc_and_free_hooks(
    [](void const volatile*, std::size_t) { count(allocations); },
    [](void const volatile*) { count(allocations); });
#endif

#ifdef ESCROW_TEST_RUNTIME_GPU
inline constinit counter cuda_calls;

inline void CUPTIAPI on_api(void*, CUpti_CallbackDomain, CUpti_CallbackId, void const* data) {
  if (static_cast<CUpti_CallbackData const*>(data)->callbackSite == CUPTI_API_ENTER)
    count(cuda_calls);
}

inline void must_be_fine(CUptiResult result) {
  must(result == CUPTI_SUCCESS, "CUPTI answers with success");
}

inline void begin_to_watch_cuda() {
  static bool const subscribed = [] {
    CUpti_SubscriberHandle subscriber = nullptr;
    must_be_fine(cuptiSubscribe(&subscriber, &on_api, nullptr));
    must_be_fine(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
    must_be_fine(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API));
    return true;
  }();
  static_cast<void>(subscribed);
}
inline std::uint64_t cuda_calls_now() {
  return cuda_calls.get();
}
#else
inline void begin_to_watch_cuda() {}
inline std::uint64_t cuda_calls_now() {
  return escrow::sim::calls_in_callbacks();
}
#endif

inline std::uint64_t cuda_calls_before = 0;

}  // namespace callback_watch

[[nodiscard]] inline callback_deeds deeds_in_callbacks() {
  using namespace callback_watch;
  return {.callbacks = callbacks.get(),
          .elsewhere = elsewhere.get(),
          .allocations = allocations.get(),
          .locks = locks.get(),
          .system_calls = system_calls.get(),
          .cuda_calls = cuda_calls_now() - cuda_calls_before,
          .switches = switches.get()};
}

/// Starts anew; the calling thread is the one that `elsewhere` does not count.
inline void forget_deeds() {
  using namespace callback_watch;
  begin_to_watch_cuda();
  is_callers = true;
  for (auto* const each :
       {&callbacks, &elsewhere, &allocations, &locks, &system_calls, &switches}) {
    each->clear();
  }
  cuda_calls_before = cuda_calls_now();
}

/// Does `deed` as if inside a callback: the watch's own test.
inline void misbehave_in_callback(void (*deed)()) {
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(
      &object, reinterpret_cast<void*>(deed),
      [](void* what) { reinterpret_cast<void (*)()>(what)(); }, 1, cudaUserObjectNoDestructorSync));
  must(cudaUserObjectRelease(object, 1));
}

}  // namespace escrow::test
