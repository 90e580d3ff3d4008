// What the tests of failing retirements share: each call fails once, and the balance is kept.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <escrow/sim.hpp>
#include <functional>
#include <optional>

#include "escrow/core/error.hpp"
#include "escrow/deleter/deleter.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "owners.hpp"

namespace escrow::test {

inline constexpr std::array retire_errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue,
                                          cudaErrorInvalidResourceHandle, cudaErrorUnknown,
                                          cudaErrorNotPermitted};

/// What must be as before once a case is over. Events are not: the event cache keeps them.
struct balance {
  std::size_t graphs, execs, user_objects, captures, device_allocations, pending_ops;
  static balance now() {
    sim::counts const it = sim::alive();
    return {it.graphs,     it.execs, it.user_objects, it.captures, it.device_allocations,
            it.pending_ops};
  }
  bool operator==(balance const&) const = default;
};

/// Polled by the test, so that each call of each operation has its fixed number.
class retire_fault_test : public testing::Test {
 protected:
  // Runs `operation` with its n-th call failing. True if the call was reached.
  template <class Operation>
  bool with_failure(std::uint64_t n, cudaError_t error, Operation operation) {
    failing_call const failing(n, error);
    operation();
    return failing.was_reached();
  }

  // `one_case(n, error)` returns whether the n-th call was reached.
  void for_each_call(std::function<bool(std::uint64_t, cudaError_t)> const& one_case) {
    for (cudaError_t const error : retire_errors) {
      bool reached = true;
      for (std::uint64_t n = 1; reached; ++n) {
        SCOPED_TRACE(testing::Message() << "call " << n << " fails: " << cudaGetErrorName(error));
        ASSERT_LT(n, 1000U);
        deleter_.emplace(deleter_options{.own_worker = false});
        balance const before = balance::now();
        reached = one_case(n, error);
        expect_to_work();
        deleter_.reset();
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        EXPECT_TRUE(before == balance::now()) << "something is left";
        if (HasFailure()) return;
      }
    }
  }

  // For `owner` retired with a failure: it is the caller's or the deleter's, never both or
  // nobody's.
  template <class Retire>
  bool retired(std::uint64_t n, cudaError_t error, bool& is_deleters, probe& owner, Retire retire) {
    return with_failure(n, error, [&] {
      bool threw = false;
      try {
        retire(std::move(owner));
      } catch (cuda_error const& what) {
        threw = true;
        EXPECT_EQ(what.status(), error);
      }
      is_deleters = !owner.is_owner();
      EXPECT_TRUE(threw || is_deleters);
    });
  }

  void expect_to_work() {
    auto const fate = make_fate();
    must(launch_tiny(stream_));
    deleter_->retire(stream_, probe(fate));
    EXPECT_TRUE(deleter_->drain_for(generous));
    EXPECT_EQ(fate->times(), 1);
    EXPECT_EQ(deleter_->stats().in_graphs, 0U);
    EXPECT_EQ(deleter_->stats().leaked, 0U);
  }

  owned_stream stream_ = make_stream();
  std::optional<deleter> deleter_;
};

}  // namespace escrow::test
