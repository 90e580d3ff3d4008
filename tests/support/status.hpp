// SPDX-License-Identifier: Apache-2.0
// The steps of tests: what must succeed, what must become true within a bound, and what errors say.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace escrow::test {

/// A line of a test. In source_location's place, which clang 14 does not have.
struct place {
  char const* file;
  int line;
  static constexpr place here(char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

[[noreturn]] inline void fail(std::string const& what, place where) {
  throw std::runtime_error{std::string{where.file} + ":" + std::to_string(where.line) + ": " +
                           what};
}

/// Throws, with the caller's file and line, unless `status` is `expected`. For the steps of a test
/// that are not its subject, and for child processes, which have no GoogleTest assertions.
inline void must_be(cudaError_t status, cudaError_t expected, place where = place::here()) {
  if (status != expected) {
    fail(
        std::string{"got "} + cudaGetErrorName(status) + ", expected " + cudaGetErrorName(expected),
        where);
  }
}

/// Throws unless `status` is cudaSuccess.
inline void must(cudaError_t status, place where = place::here()) {
  must_be(status, cudaSuccess, where);
}

/// Throws unless `condition` holds.
inline void must(bool condition, char const* what, place where = place::here()) {
  if (!condition) {
    fail(std::string{"not so: "} + what, where);
  }
}

}  // namespace escrow::test

// GoogleTest finds these by the argument's type, which lives in the global namespace.
inline void PrintTo(cudaError status, std::ostream* out) {
  *out << cudaGetErrorName(status);
}

inline void PrintTo(cudaStreamCaptureMode mode, std::ostream* out) {
  switch (mode) {
    case cudaStreamCaptureModeGlobal:
      *out << "Global";
      return;
    case cudaStreamCaptureModeThreadLocal:
      *out << "ThreadLocal";
      return;
    case cudaStreamCaptureModeRelaxed:
      *out << "Relaxed";
      return;
  }
  *out << static_cast<int>(mode);
}

namespace escrow::test {

/// The message of what `call` throws, if it is an `Exception`; otherwise says what came instead.
template <class Exception, class Call>
[[nodiscard]] std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (Exception const& error) {
    return error.what();
  } catch (std::exception const& error) {
    return std::string{"another exception: "} + error.what();
  }
  return "nothing was thrown";
}

/// The errors that a deleter reported. Any thread.
class error_log {
 public:
  void add(std::string text) {
    std::lock_guard const lock{mutex_};
    texts_.push_back(std::move(text));
  }
  [[nodiscard]] std::size_t size() const {
    std::lock_guard const lock{mutex_};
    return texts_.size();
  }
  [[nodiscard]] std::string all() const {
    std::lock_guard const lock{mutex_};
    std::string result;
    for (std::string const& text : texts_) result += text + "\n";
    return result;
  }

 private:
  mutable std::mutex mutex_;  // guards texts_
  std::vector<std::string> texts_;
};

/// How long a test waits for what must happen; a pass never takes that long.
inline constexpr std::chrono::seconds generous{20};

/// True once `condition()` holds; false when it does not within `bound`.
[[nodiscard]] bool wait_until(auto condition, std::chrono::nanoseconds bound = generous) {
  auto const end = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return condition();
    std::this_thread::sleep_for(std::chrono::microseconds{50});
  }
  return true;
}

/// True if `condition()` stays false for a while. For what must *not* happen: it cannot fail by
/// mischance, and what it guards against takes well under a millisecond where it does happen.
[[nodiscard]] bool stays_false(auto condition) {
  return !wait_until(condition, std::chrono::milliseconds{100});
}

}  // namespace escrow::test
