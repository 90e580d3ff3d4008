// malloc and its like in the C library's place: each counts and forwards. What they return is the C
// library's own memory, so free() stays as it is.
#include "heap_count.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

// The C library's own names for its functions.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* memory, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);

namespace escrow::bench {
namespace {

// Plain integers: a thread-local object with a constructor could itself allocate.
thread_local bool is_counting = false;
thread_local int cuda_depth = 0;
std::atomic<std::uint64_t> total{0};

void count() noexcept {
  // Relaxed: read after the threads have been waited for.
  if (is_counting && cuda_depth == 0) total.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void count_on_this_thread(bool counts) noexcept {
  is_counting = counts;
}

std::uint64_t allocations_counted() noexcept {
  return total.load(std::memory_order_relaxed);
}

inside_cuda::inside_cuda() noexcept {
  ++cuda_depth;
}

inside_cuda::~inside_cuda() {
  --cuda_depth;
}

}  // namespace escrow::bench

extern "C" void* malloc(std::size_t bytes) noexcept {
  escrow::bench::count();
  return __libc_malloc(bytes);
}

extern "C" void* calloc(std::size_t count, std::size_t bytes) noexcept {
  escrow::bench::count();
  return __libc_calloc(count, bytes);
}

extern "C" void* realloc(void* memory, std::size_t bytes) noexcept {
  escrow::bench::count();
  return __libc_realloc(memory, bytes);
}

extern "C" void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  escrow::bench::count();
  return __libc_memalign(alignment, bytes);
}

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  escrow::bench::count();
  return __libc_memalign(alignment, bytes);
}

extern "C" int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  escrow::bench::count();
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
