// An operation with each of its calls, and each of its allocations, failing in turn.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <new>

#include "../pool/allocation_watch.hpp"
#include "escrow/core/cuda_error.hpp"
#include "failing_call.hpp"

namespace escrow::test {

/// Calls `operation` with its n-th call or allocation failing and returns whether it came to that.
using failure = std::function<bool(std::uint64_t n, std::function<void()> const& operation)>;

/// Runs a case for n = 1, 2, ... until it returns that its operation has not as many steps.
using failure_case = std::function<bool(std::uint64_t n, failure const& fail)>;

inline bool with_failing_call(std::uint64_t n, cudaError_t error,
                              std::function<void()> const& operation) {
  failing_call const failing(n, error);
  operation();
  return failing.was_reached();
}

inline bool with_failing_allocation(std::uint64_t n, std::function<void()> const& operation) {
  allocation_watch const watch{n};
  operation();
  return n <= watch.count();
}

inline void for_each_n(failure_case const& one_case, failure const& fail) {
  bool reached = true;
  for (std::uint64_t n = 1; reached; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 200U);
    reached = one_case(n, fail);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    if (testing::Test::HasFailure()) return;
  }
}

/// Each call with each of some errors, and each allocation.
inline void for_each_failure(failure_case const& one_case) {
  for (cudaError_t const error :
       {cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown}) {
    SCOPED_TRACE(cudaGetErrorName(error));
    for_each_n(one_case, [error](std::uint64_t n, auto const& operation) {
      return with_failing_call(n, error, operation);
    });
  }
  SCOPED_TRACE("operator new");
  for_each_n(one_case, with_failing_allocation);
}

/// Whether it threw what a failing call or allocation makes it throw.
template <class Operation>
bool throws(Operation operation) {
  try {
    operation();
    return false;
  } catch (cuda_error const&) {
    return true;
  } catch (std::bad_alloc const&) {
    return true;
  }
}

}  // namespace escrow::test
