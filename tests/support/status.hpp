// CUDA's return codes in tests: what must succeed, and how a code is printed.
#pragma once

#include <cuda_runtime_api.h>

#include <ostream>
#include <stdexcept>
#include <string>

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
