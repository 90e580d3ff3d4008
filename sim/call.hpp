// SPDX-License-Identifier: Apache-2.0
// What every API function does first and last: counting, prohibitions, faults, last error, and
// destructors.
#pragma once

#include "state.hpp"
#include "thread.hpp"

namespace escrow::sim::model {

// What sets a function apart from the rest; flags.
enum rules : unsigned {
  ordinary = 0,
  // Answers inside destructors and host functions.
  in_callbacks = 1,
  // Works although the current device has failed.
  outlives_fault = 2,
  // Frees what it is given although the device has failed, and returns the fault all the same.
  frees = 4,
  // Fault injection leaves it alone.
  never_failed = 8,
  // Makes no context on the current device. Nearly all others do, also those about another device's
  // things (measured on two H100s).
  without_context = 16,
};

// One API call from its entry to its return; holds the state's mutex in between.
class api_call {
 public:
  explicit api_call(char const* function);

  // Counts the call; an error if it may not proceed.
  cudaError_t admit(unsigned which);
  // Lets the lock go, runs `reclaimed` on this thread, and notes the result as CUDA's last error.
  cudaError_t finish(cudaError_t result, unsigned which);
  // The thread's device has a context from now on.
  void make_context();
  // The call is with a stream or a graph.
  void note_user();

  char const* name;
  state& s;
  std::unique_lock<std::mutex> lock;
  thread_record& me;
  // Destructors that are to run on this thread before the call returns.
  callbacks reclaimed;
  // Left as the call returns.
  std::vector<std::shared_ptr<sole_use>> sole_uses;

 private:
  // The fault that was ordered for this call; notes the call if calls are recorded.
  cudaError_t injected();
  cudaError_t ordered_fault();
  void leave_sole_uses(bool are_others_there);
  // By its number, or by its number on this thread; cudaSuccess if there is none.
  cudaError_t numbered_fault();
};

template <class Body>
cudaError_t call(char const* name, unsigned which, Body body) {
  if (is_forked()) return cudaErrorInitializationError;
  api_call c(name);
  auto result = c.admit(which);
  if (result == cudaSuccess) result = body(c);
  return c.finish(result, which);
}

// The failure that the process is in for good because a device is, or cudaSuccess.
cudaError_t fault();

}  // namespace escrow::sim::model
