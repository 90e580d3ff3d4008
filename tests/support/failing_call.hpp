// One CUDA call that fails, for tests on the simulated runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <escrow/sim.hpp>

namespace escrow::test {

/// From its making to its end, the n-th call that any thread makes fails, once; 1 is the next.
class failing_call {
 public:
  failing_call(std::uint64_t n, cudaError_t error) : n_{n}, before_{sim::calls()} {
    sim::fail_nth(n, error);
  }
  failing_call(failing_call const&) = delete;
  failing_call& operator=(failing_call const&) = delete;
  ~failing_call() { sim::clear_faults(); }

  /// How many calls there were since.
  [[nodiscard]] std::uint64_t made() const { return sim::calls() - before_; }
  /// Whether there were as many as n.
  [[nodiscard]] bool was_reached() const { return n_ <= made(); }

 private:
  std::uint64_t n_;
  std::uint64_t before_;
};

}  // namespace escrow::test
