// SPDX-License-Identifier: Apache-2.0
// Exceptions for failed CUDA calls and for incorrect use of Escrow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// Replaces std::source_location, which clang 14 with libstdc++ lacks. One type for all compilers,
// since it is part of function signatures.
class source_location {
 public:
  constexpr source_location() noexcept = default;  // nowhere

  // The caller's location, also as a default argument. Pass no arguments.
  [[nodiscard]] static constexpr source_location current(
      char const* file = __builtin_FILE(), char const* function = __builtin_FUNCTION(),
      std::uint_least32_t line = __builtin_LINE()) noexcept {
    source_location here;
    here.file_ = file;
    here.function_ = function;
    here.line_ = line;
    return here;
  }

  // The same line of the same file's code.
  [[nodiscard]] friend constexpr bool operator==(source_location const& one,
                                                 source_location const& other) noexcept {
    return one.file_ == other.file_ && one.line_ == other.line_;
  }
  [[nodiscard]] constexpr char const* file_name() const noexcept { return file_; }
  [[nodiscard]] constexpr char const* function_name() const noexcept { return function_; }
  [[nodiscard]] constexpr std::uint_least32_t line() const noexcept { return line_; }

 private:
  char const* file_ = "";
  char const* function_ = "";
  std::uint_least32_t line_ = 0;
};

// A CUDA runtime call returned something other than cudaSuccess.
class ESCROW_API cuda_error : public std::runtime_error {
 public:
  // `api`: the CUDA function's name, a string literal. `where`: the line that called it. `note`:
  // what else is known; empty: nothing.
  cuda_error(cudaError_t status, char const* api,
             source_location where = source_location::current(), std::string_view note = {});
  // `failed`, as the error of `call`, a function of Escrow, at the caller's line `where`.
  cuda_error(cuda_error const& failed, char const* call, source_location where);

  [[nodiscard]] cudaError_t status() const noexcept { return status_; }
  [[nodiscard]] char const* api() const noexcept { return api_; }
  // The line that called Escrow; of an internal error that left no such function, the line that
  // called CUDA. The text has both.
  [[nodiscard]] source_location where() const noexcept { return where_; }

 private:
  cudaError_t status_;
  char const* api_;
  source_location where_;
};

// What usage_error, pool_exhausted and group_busy have in common: the caller's line.
class ESCROW_API located_error {
 public:
  // The line that called Escrow, with which the text begins. Nowhere (line 0) if the function takes
  // no source_location.
  [[nodiscard]] source_location where() const noexcept { return where_; }
  // Internal: in a handler of this: throws it with `where`, if it has none yet; a derived type of a
  // caller's own as it is.
  [[noreturn]] virtual void throw_at(source_location where) const = 0;

 protected:
  located_error() = default;
  explicit located_error(source_location where) noexcept : where_(where) {}
  located_error(located_error const&) = default;
  located_error& operator=(located_error const&) = default;
  ~located_error() = default;

 private:
  source_location where_;
};

namespace detail {
// "file:line: text"; only the text if `where` is nowhere.
[[nodiscard]] ESCROW_API std::string text_at(source_location where, std::string_view text);

// Throws `handled` again, an Error, as one at `where`; if that has a line, or is of a type that is
// derived from it, unchanged.
template <class Error>
[[noreturn]] void throw_again_at(Error const& handled, source_location where) {
  if (handled.where().line() != 0 || typeid(handled) != typeid(Error)) throw;
  throw Error(handled, where);
}

// "solver.cpp:88" between those two; nothing if `where` is nowhere.
[[nodiscard]] ESCROW_API std::string line_text(std::string_view before, source_location where,
                                               std::string_view after = {});

// A size in an error: a large one is a negative number that was converted.
[[nodiscard]] ESCROW_API std::string size_text(std::size_t size, std::string_view unit = {});

[[noreturn]] ESCROW_API void throw_cuda_error(cudaError_t status, char const* api,
                                              source_location where, std::string_view note);

// In a handler of `handled`: throws it as the error of `call` at `where`; a derived type, or one
// that is at `where` already, as it is.
[[noreturn]] ESCROW_API void rethrow_at(cuda_error const& handled, char const* call,
                                        source_location where);

// In a handler of `handled`: throws it with `where`, see located_error::throw_at.
[[noreturn]] ESCROW_API void rethrow_at(located_error const& handled, source_location where);

// In a handler: ends the process, after it has said that `function` threw.
[[noreturn]] ESCROW_API void terminate_thrown(char const* function) noexcept;

// Calls what must not throw. If it does, says so, and ends the process.
template <class Call>
void call_nothrow(char const* function, Call&& call) noexcept {
  try {
    std::forward<Call>(call)();
  } catch (...) {
    terminate_thrown(function);
  }
}

// Runs a function of Escrow: a cuda_error that leaves it names `call` and the caller's line, a
// located_error that line. The innermost of several such calls counts.
template <class Function>
decltype(auto) called_at(char const* call, source_location where, Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (cuda_error const& failed) {
    rethrow_at(failed, call, where);
  } catch (located_error const& failed) {
    rethrow_at(failed, where);
  }
}
}  // namespace detail

// Throws cuda_error unless `status` is cudaSuccess, and clears CUDA's last error, so that it is
// reported once. A sticky fault cannot be cleared. Any thread.
inline void check(cudaError_t status, char const* api,
                  source_location where = source_location::current(), std::string_view note = {}) {
  if (status != cudaSuccess) [[unlikely]] {
    detail::throw_cuda_error(status, api, where, note);
  }
}

namespace detail {
// Clears CUDA's last error if it is `status`. Another one is an earlier error of the caller's,
// which stays: the driver's functions store none, and neither is cudaErrorNotReady stored. (An
// equal error of the caller's goes.) Any thread.
inline void clear_last_error(cudaError_t status) noexcept {
  if (status != cudaErrorNotReady && cudaPeekAtLastError() == status)
    static_cast<void>(cudaGetLastError());
}
}  // namespace detail

// For calls whose failure the caller handles: true on success, else clears that last error. Any
// thread.
inline bool succeeded(cudaError_t status) noexcept {
  if (status == cudaSuccess) return true;
  detail::clear_last_error(status);
  return false;
}

// Whether `status` means that a device is lost to this process: its work has stopped permanently
// and every later call fails. Other devices may still run: see runs_nothing_after(). Source: CUDA
// runtime error descriptions that say "leaves the process in an inconsistent state".
[[nodiscard]] ESCROW_API bool is_sticky(cudaError_t status) noexcept;

// Incorrect use of Escrow. The text names the caller's line, the call, the argument and the remedy.
class ESCROW_API usage_error : public std::logic_error, public located_error {
 public:
  // `call`: Escrow's function, e.g. "resource_pool::claim". `problem`: the argument and what is
  // wrong with it. `advice`: what to do.
  usage_error(std::string_view call, std::string_view problem, std::string_view advice)
      : std::logic_error(std::string(call) + ": " + std::string(problem) + "; " +
                         std::string(advice)) {}
  // `failed`, at the caller's line.
  usage_error(usage_error const& failed, source_location where)
      : std::logic_error(detail::text_at(where, failed.what())), located_error(where) {}

  [[noreturn]] void throw_at(source_location where) const override;
};

namespace detail {
// Throws usage_error, at the caller's line.
[[noreturn]] inline void refuse_at(source_location where, std::string_view call,
                                   std::string_view problem, std::string_view advice) {
  throw usage_error(usage_error(call, problem, advice), where);
}
}  // namespace detail

}  // namespace escrow::inline v0_2
