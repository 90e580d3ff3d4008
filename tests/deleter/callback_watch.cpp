// The watch over destroy callbacks: wrapped functions that count while a callback runs.
#include "callback_watch.hpp"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>

#include "sanitizers.hpp"
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

namespace {

constinit thread_local int depth = 0;
constinit thread_local bool is_callers = false;  // the thread that asked to forget

// Counts: relaxed, because they are read when the callbacks are over, which the test waits for.
constinit std::atomic<std::uint64_t> callbacks{0};
constinit std::atomic<std::uint64_t> elsewhere{0};
constinit std::atomic<std::uint64_t> switches{0};
constinit std::atomic<std::uint64_t> allocations{0};
constinit std::atomic<std::uint64_t> locks{0};
constinit std::atomic<std::uint64_t> system_calls{0};

void count(std::atomic<std::uint64_t>& what) {
  if (depth != 0) what.fetch_add(1, std::memory_order_relaxed);
}

struct watched {
  cudaHostFn_t destroy;
  void* argument;
};

// How often this thread has slept or blocked so far.
std::uint64_t voluntary_switches() {
  rusage used{};
  static_cast<void>(getrusage(RUSAGE_THREAD, &used));
  return static_cast<std::uint64_t>(used.ru_nvcsw);
}

void run_watched(watched const& it) {
  std::uint64_t const before = voluntary_switches();
  ++depth;
  count(callbacks);
  if (!is_callers) count(elsewhere);
  it.destroy(it.argument);
  --depth;
  switches.fetch_add(voluntary_switches() - before, std::memory_order_relaxed);
}

void CUDART_CB destroy_watched(void* argument) {
  auto* const it = static_cast<watched*>(argument);
  run_watched(*it);
  delete it;
}

}  // namespace

extern "C" {

cudaError_t __real_cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned);
int __real_pthread_mutex_lock(pthread_mutex_t*);
long __real_syscall(long, ...);

cudaError_t __wrap_cudaUserObjectCreate(cudaUserObject_t* out, void* argument, cudaHostFn_t destroy,
                                        unsigned references, unsigned flags) {
  auto* const it = new watched{destroy, argument};
  cudaError_t const status =
      __real_cudaUserObjectCreate(out, it, &destroy_watched, references, flags);
  if (status != cudaSuccess) delete it;
  return status;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  count(locks);
  return __real_pthread_mutex_lock(mutex);
}

long __wrap_syscall(long number, ...) {
  count(system_calls);
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
  count(allocations);
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  count(allocations);
  return __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  count(allocations);
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count(allocations);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  count(allocations);
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  count(allocations);  // giving back takes the allocator's locks too
  __libc_free(memory);
}
#endif
}

namespace {

#if ESCROW_TEST_TSAN || ESCROW_TEST_ASAN
[[maybe_unused]] int const hooks = __sanitizer_install_malloc_and_free_hooks(
    [](void const volatile*, std::size_t) { count(allocations); },
    [](void const volatile*) { count(allocations); });
#endif

#ifdef ESCROW_TEST_RUNTIME_GPU
constinit std::atomic<std::uint64_t> cuda_calls{0};

void CUPTIAPI on_api(void*, CUpti_CallbackDomain, CUpti_CallbackId, void const* data) {
  if (static_cast<CUpti_CallbackData const*>(data)->callbackSite == CUPTI_API_ENTER) {
    count(cuda_calls);
  }
}

void must_be_fine(CUptiResult result) {
  escrow::test::must(result == CUPTI_SUCCESS, "CUPTI answers with success");
}

void begin_to_watch_cuda() {
  static bool const subscribed = [] {
    CUpti_SubscriberHandle subscriber = nullptr;
    must_be_fine(cuptiSubscribe(&subscriber, &on_api, nullptr));
    must_be_fine(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
    must_be_fine(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API));
    return true;
  }();
  static_cast<void>(subscribed);
}
std::uint64_t cuda_calls_now() {
  return cuda_calls.load(std::memory_order_relaxed);
}
#else
void begin_to_watch_cuda() {}
std::uint64_t cuda_calls_now() {
  return escrow::sim::calls_in_callbacks();
}
#endif

std::uint64_t cuda_calls_before = 0;

}  // namespace

namespace escrow::test {

callback_deeds deeds_in_callbacks() {
  return {.callbacks = callbacks.load(std::memory_order_relaxed),
          .elsewhere = elsewhere.load(std::memory_order_relaxed),
          .allocations = allocations.load(std::memory_order_relaxed),
          .locks = locks.load(std::memory_order_relaxed),
          .system_calls = system_calls.load(std::memory_order_relaxed),
          .cuda_calls = cuda_calls_now() - cuda_calls_before,
          .switches = switches.load(std::memory_order_relaxed)};
}

void forget_deeds() {
  begin_to_watch_cuda();
  is_callers = true;
  for (auto* const each :
       {&callbacks, &elsewhere, &allocations, &locks, &system_calls, &switches}) {
    each->store(0, std::memory_order_relaxed);
  }
  cuda_calls_before = cuda_calls_now();
}

void misbehave_in_callback(void (*deed)()) {
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(
      &object, reinterpret_cast<void*>(deed),
      [](void* what) { reinterpret_cast<void (*)()>(what)(); }, 1, cudaUserObjectNoDestructorSync));
  must(cudaUserObjectRelease(object, 1));
}

}  // namespace escrow::test
