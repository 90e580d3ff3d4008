// SPDX-License-Identifier: Apache-2.0
// What every function of the C API does: no exception leaves it, and what failed is kept as text.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/deleter/sharing_group.hpp"
#include "escrow/escrow.h"
#include "escrow/pool/resource_pool.hpp"
#include "handle_memory.hpp"
#include "without_gil.hpp"

// Here, since options name it.
struct escrow_group : escrow::in_handle_memory<escrow_group> {
  escrow::sharing_group held;
};

namespace escrow::inline v0_2 {

// An error as C has it.
struct c_failure {
  escrow_status status = ESCROW_UNKNOWN_ERROR;
  cudaError_t cuda_error = cudaSuccess;
};
[[nodiscard]] c_failure failure_of(std::exception const& error) noexcept;

// What escrow_set_caller() said of this thread's present call, once; else nowhere.
[[nodiscard]] source_location take_caller(char const* function) noexcept;
// In a handler: keeps the error as this thread's last one, and returns its status.
[[nodiscard]] escrow_status keep_failure(char const* function, source_location where) noexcept;
void print_last_error() noexcept;
// The last error is of a retirement that has taken its object.
void note_taken() noexcept;

template <class T>
concept is_handle = requires {
  std::remove_const_t<T>::memory_of_all();
};

// A function of the C API while it runs.
struct c_call {
  char const* function;
  source_location where;  // the caller's line; nowhere if it did not say

  // What `pointer` points to. Throws usage_error if it is null, or a handle that was destroyed or
  // is of another type.
  template <class T>
  [[nodiscard]] T& need(T* pointer, char const* argument) const {
    if (pointer == nullptr) refuse(argument, "is null", "pass an address that is not null");
    if constexpr (is_handle<T>) {
      handle_memory const* const of = handle_memory::memory_of(pointer);
      if (of == nullptr) {
        refuse(argument, "was destroyed", "destroy a handle once, after its last use");
      }
      if (of != &std::remove_const_t<T>::memory_of_all()) {
        refuse(argument, "is no handle of this type", "pass what the type's own create gave");
      }
    }
    return *pointer;
  }
  [[noreturn]] void refuse(char const* argument, char const* problem, char const* advice) const {
    throw usage_error(function, "`" + std::string(argument) + "` " + problem, advice);
  }

  // Throws usage_error if `stream` is being captured, where CUDA would invalidate the capture.
  void refuse_capturing(cudaStream_t stream) const;

  // As the library has them. Throws usage_error for a `size` that no version has.
  [[nodiscard]] escrow_options options(escrow_options const* given) const;
  [[nodiscard]] std::vector<cudaGraph_t> bodies(cudaGraph_t const* given, std::size_t count) const;
  void copy_text(std::string const& from, char* text, std::size_t capacity,
                 std::size_t* length) const;

  // Writes as much of `from` as the caller's header has room for, and zeros beyond. Throws
  // usage_error for a `size` that no version will have, as one that was not set.
  template <class Stats>
  void copy_stats(Stats from, Stats* stats) const {
    constexpr std::size_t size_max = 4096;
    std::size_t const size = need(stats, "stats").size;
    if (size < sizeof size || size > size_max || size % alignof(Stats) != 0) {
      refuse("stats->size", "is not the size of a version", "set it to sizeof(*stats)");
    }
    from.size = size;
    std::memset(stats, 0, size);
    std::memcpy(stats, &from, std::min(size, sizeof from));
  }
};

// The body of every function: `body(c_call)` may throw.
template <class Body>
[[nodiscard]] escrow_status run(char const* function, Body const& body) noexcept {
  source_location const where = take_caller(function);
  try {
    body(c_call{function, where});
    return ESCROW_OK;
  } catch (...) {
    return keep_failure(function, where);
  }
}

// The same for a function that may wait for graph_lifetime_lock or the worker, or run destructors.
template <class Body>
[[nodiscard]] escrow_status run_without_gil(char const* function, Body const& body) noexcept {
  without_gil const others_run;
  return run(function, body);
}
// The same for a claim, which costs less than to look for Python.
template <class Body>
[[nodiscard]] escrow_status run_claim(char const* function, Body const& body) noexcept {
  without_gil const others_run(without_gil::python::if_known);
  return run(function, body);
}
// Null is ignored. That a handle was destroyed before is this thread's last error, and on stderr,
// since no status tells.
template <is_handle T>
void destroy_without_gil(char const* function, T* handle) noexcept {
  escrow_status const status = run(function, [&](c_call by) {
    if (handle != nullptr) static_cast<void>(by.need(handle, "handle"));
  });
  if (status != ESCROW_OK) return print_last_error();
  without_gil const others_run;
  delete handle;
}

// A time of C's, cut to 100 years, which can be added to a clock's.
[[nodiscard]] inline std::chrono::nanoseconds time_of(std::uint64_t ns) noexcept {
  constexpr std::chrono::nanoseconds most = std::chrono::hours(24 * 365 * 100);
  return std::chrono::nanoseconds(std::min<std::uint64_t>(ns, most.count()));
}

[[nodiscard]] pool_options pool_options_of(c_call by, int device, escrow_options const& given);

}  // namespace escrow::inline v0_2
