// SPDX-License-Identifier: Apache-2.0
// The replaced operators new and delete, and how they tell the library's memory from the runtime's.
#include "allocation_watch.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <unwind.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace escrow::test {
namespace {

thread_local bool is_watching = false;
thread_local std::uint64_t counted = 0;
thread_local std::int64_t bytes_taken = 0;
thread_local std::uint64_t failing_at = 0;  // 0: none fails
thread_local std::uint64_t failing_times = 0;

bool is_named_cuda(void* address) noexcept {
  Dl_info info{};
  bool const named = dladdr(address, &info) != 0 && info.dli_sname != nullptr;
  return named && std::strncmp(info.dli_sname, "cuda", 4) == 0;
}

// Whether an address of code is in a function of the CUDA API. Asking the dynamic linker is slow,
// so answers are kept; a thread's own table, without allocation. Addresses with the same place take
// the next ones: where libraries are loaded decides which they are.
bool is_cuda_function(void* address) noexcept {
  struct answer {
    void* address;
    bool is_cuda;
  };
  thread_local std::array<answer, 4096> known{};
  constexpr std::size_t tries_max = 64;
  std::size_t const place = reinterpret_cast<std::uintptr_t>(address) >> 2;
  for (std::size_t i = 0; i < tries_max; ++i) {
    answer& each = known[(place + i) % known.size()];
    if (each.address == nullptr) each = {address, is_named_cuda(address)};
    if (each.address == address) return each.is_cuda;
  }
  return is_named_cuda(address);
}

// Ends at the first frame of CUDA, which is one of the nearest: nearly all allocations of a
// simulated runtime are its own.
bool is_inside_cuda() noexcept {
  bool found = false;
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* is_cuda) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        auto* const address = reinterpret_cast<void*>(_Unwind_GetIP(frame));
        if (!is_cuda_function(address)) return _URC_NO_REASON;
        *static_cast<bool*>(is_cuda) = true;
        return _URC_END_OF_STACK;
      },
      &found);
  return found;
}

// Whether the thread is watched, and outside of CUDA.
bool is_counted() noexcept {
  if (!is_watching) return false;
  is_watching = false;  // to unwind may allocate
  bool const is_of_the_library = !is_inside_cuda();
  is_watching = true;
  return is_of_the_library;
}

void count_one() {
  ++counted;
  if (failing_at != 0 && counted >= failing_at && counted - failing_at < failing_times) {
    throw std::bad_alloc{};
  }
}

std::int64_t size_of(void* memory) noexcept {
  return static_cast<std::int64_t>(malloc_usable_size(memory));
}

void* allocate_watched(std::size_t bytes, std::align_val_t aligned = {}) {
  bool const counts = is_counted();
  if (counts) count_one();
  auto const alignment = static_cast<std::size_t>(aligned);
  std::size_t const size = bytes == 0 ? 1 : bytes;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc{};
  if (counts) bytes_taken += size_of(memory);
  return memory;
}

void give_back(void* memory) noexcept {
  if (memory != nullptr && failing_at == 0 && is_counted()) bytes_taken -= size_of(memory);
  std::free(memory);
}

template <class... Alignment>
void* allocate_or_null(std::size_t bytes, Alignment... aligned) noexcept {
  try {
    return allocate_watched(bytes, aligned...);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

}  // namespace

allocation_watch::allocation_watch(std::uint64_t failing, std::uint64_t times) noexcept
    : before_{counted}, bytes_before_{bytes_taken} {
  static_cast<void>(is_inside_cuda());  // its first call loads what it needs
  failing_times = times;
  failing_at = failing == 0 ? 0 : counted + failing;
  is_watching = true;
}

allocation_watch::~allocation_watch() {
  is_watching = false;
  failing_at = 0;
}

std::uint64_t allocation_watch::count() const noexcept {
  return counted - before_;
}

std::int64_t allocation_watch::bytes() const noexcept {
  return bytes_taken - bytes_before_;
}

}  // namespace escrow::test

// All forms, since a sanitizer's own forms do not go through these. Each line has its two.
// NOLINTBEGIN(cppcoreguidelines-macro-usage)
#define NEW_FORMS(properties, function, values, ...) \
  void* operator new(__VA_ARGS__) properties {       \
    return escrow::test::function values;            \
  }                                                  \
  void* operator new[](__VA_ARGS__) properties {     \
    return escrow::test::function values;            \
  }
#define DELETE_FORMS(...)                        \
  void operator delete(__VA_ARGS__) noexcept {   \
    escrow::test::give_back(memory);             \
  }                                              \
  void operator delete[](__VA_ARGS__) noexcept { \
    escrow::test::give_back(memory);             \
  }
// NOLINTEND(cppcoreguidelines-macro-usage)

NEW_FORMS(, allocate_watched, (bytes), std::size_t bytes)
NEW_FORMS(, allocate_watched, (bytes, to), std::size_t bytes, std::align_val_t to)
NEW_FORMS(noexcept, allocate_or_null, (bytes), std::size_t bytes, std::nothrow_t const&)
NEW_FORMS(noexcept, allocate_or_null, (bytes, to), std::size_t bytes, std::align_val_t to,
          std::nothrow_t const&)
DELETE_FORMS(void* memory)
DELETE_FORMS(void* memory, std::size_t)
DELETE_FORMS(void* memory, std::align_val_t)
DELETE_FORMS(void* memory, std::size_t, std::align_val_t)
DELETE_FORMS(void* memory, std::nothrow_t const&)
DELETE_FORMS(void* memory, std::align_val_t, std::nothrow_t const&)
