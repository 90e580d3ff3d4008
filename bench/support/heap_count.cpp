// malloc and its like in the C library's place: each counts and forwards, so that all memory is the
// C library's own.
#include "heap_count.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

// The C library's own names for its functions.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* memory, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);
extern "C" void __libc_free(void* memory);

namespace escrow::bench {
namespace {

// Plain integers: a thread-local object with a constructor could itself allocate.
thread_local bool is_counting = false;
thread_local int cuda_depth = 0;
// Relaxed, both: read after the threads have been waited for.
std::atomic<std::uint64_t> total{0};
std::atomic<std::int64_t> bytes_taken{0};

bool counts_now() noexcept {
  return is_counting && cuda_depth == 0;
}

void* counted(void* memory) noexcept {
  if (counts_now()) {
    total.fetch_add(1, std::memory_order_relaxed);
    bytes_taken.fetch_add(static_cast<std::int64_t>(malloc_usable_size(memory)),
                          std::memory_order_relaxed);
  }
  return memory;
}

void count_given_back(void* memory) noexcept {
  if (!counts_now()) return;
  bytes_taken.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)),
                        std::memory_order_relaxed);
}

}  // namespace

void count_on_this_thread(bool counts) noexcept {
  is_counting = counts;
}

std::uint64_t allocations_counted() noexcept {
  return total.load(std::memory_order_relaxed);
}

std::int64_t bytes_counted() noexcept {
  return bytes_taken.load(std::memory_order_relaxed);
}

inside_cuda::inside_cuda() noexcept {
  ++cuda_depth;
}

inside_cuda::~inside_cuda() {
  --cuda_depth;
}

}  // namespace escrow::bench

using escrow::bench::count_given_back;
using escrow::bench::counted;

extern "C" void* malloc(std::size_t bytes) noexcept {
  return counted(__libc_malloc(bytes));
}

extern "C" void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return counted(__libc_calloc(count, bytes));
}

extern "C" void* realloc(void* memory, std::size_t bytes) noexcept {
  count_given_back(memory);
  return counted(__libc_realloc(memory, bytes));
}

extern "C" void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return counted(__libc_memalign(alignment, bytes));
}

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return counted(__libc_memalign(alignment, bytes));
}

extern "C" int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  *memory = counted(__libc_memalign(alignment, bytes));
  return *memory != nullptr ? 0 : ENOMEM;
}

extern "C" void free(void* memory) noexcept {
  count_given_back(memory);
  __libc_free(memory);
}
