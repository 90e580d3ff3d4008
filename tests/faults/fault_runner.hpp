// Runs an operation again and again, each time with another of its calls or allocations failing.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <escrow/sim.hpp>
#include <string>
#include <vector>

#include "operation.hpp"

namespace escrow::test {

/// What fails in one run: a call with an error, an allocation, or nothing.
struct fault {
  std::uint64_t call = 0;            // the n-th that can be failed; 0: none
  std::string api = "operator new";  // that call
  cudaError_t error = cudaSuccess;
  std::uint64_t allocation = 0;  // the n-th of the calling thread; 0: none
  std::uint64_t times = 1;       // allocations that fail from there on

  [[nodiscard]] bool is_none() const { return call == 0 && allocation == 0; }
};

/// How one run went.
struct run_result {
  bool threw = false;
  std::vector<sim::recorded_call> calls;
  std::uint64_t allocations = 0;
};

/// What all runs of a program come to.
struct fault_totals {
  std::uint64_t operations = 0;
  std::uint64_t call_sites = 0;
  std::uint64_t errors = 0;  // distinct pairs of an API function and an error
  std::uint64_t call_runs = 0;
  std::uint64_t allocation_sites = 0;
  std::uint64_t allocation_runs = 0;
};
[[nodiscard]] fault_totals const& totals();

/// How long one run may take before it is taken to hang; the program then ends.
void limit_runs_to(unsigned seconds);

/// How long a run waits for events that a worker gives back. A lost event costs a run all of it.
void await_events_for(std::chrono::nanoseconds at_most);

/// Only one run in so many is made from now on.
void make_one_run_in(unsigned so_many);

/// The runs of one operation. What goes wrong is a failure of the running test.
class fault_runner {
 public:
  explicit fault_runner(operation const& it);

  /// Each call that the operation makes fails with each error that its manual names, and the device
  /// is lost at each, and after all of them.
  void every_call();
  /// Each allocation that the operation makes fails: alone, and with all that follow.
  void every_allocation();

 private:
  // Nothing fails: fills what is kept for the process, as the streams that ask graphs for their
  // ids.
  void fill();
  void fail_call(std::uint64_t n, std::string const& api);
  run_result run(fault const& failing, int way_to_end);
  run_result act(stage& in, fault const& failing);
  void expect_thread_as_before() const;
  void expect_promise(stage& in, fault const& failing, std::string const& before,
                      run_result const& went);

  operation const& it_;
  std::vector<sim::recorded_call> sites_;
  bool fills_ = false;  // this run fills what is kept for the process
  std::string after_;   // what is seen when nothing failed
};

}  // namespace escrow::test
