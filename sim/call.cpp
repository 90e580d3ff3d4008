// What every API function does first and last.
#include "call.hpp"

#include "runner.hpp"

namespace escrow::sim::model {

cudaError_t fault_of(int device) {
  return the().devices[static_cast<std::size_t>(device)].fault;
}

api_call::api_call(char const* function)
    : name(function), s(the()), lock(s.mutex), me(this_thread()) {}

cudaError_t api_call::injected() {
  auto const number = ++s.injectable_calls;
  if (auto const found = s.faults_by_number.find(number); found != s.faults_by_number.end()) {
    auto const error = found->second;
    s.faults_by_number.erase(found);
    return error;
  }
  auto const found = s.faults_by_name.find(std::string_view(name));
  if (found == s.faults_by_name.end()) return cudaSuccess;
  auto error = cudaSuccess;
  for (auto& fault : found->second) {
    if (fault.skip > 0) {
      --fault.skip;
    } else if (error == cudaSuccess && fault.times > 0) {
      --fault.times;
      error = fault.error;
    }
  }
  return error;
}

cudaError_t api_call::admit(unsigned which) {
  if (s.exiting) return cudaErrorCudartUnloading;
  ++s.calls;
  ++s.calls_by_name[name];
  if (me.in_callback != 0) {
    ++s.calls_in_callbacks;
    if ((which & in_callbacks) == 0) return cudaErrorNotPermitted;
  }
  if ((which & never_failed) == 0) {
    if (auto const error = injected(); error != cudaSuccess) return error;
  }
  return (which & (outlives_fault | frees)) != 0 ? cudaSuccess : fault_of(me.device);
}

cudaError_t api_call::finish(cudaError_t result, unsigned which) {
  if (result == cudaSuccess && (which & frees) != 0 && !s.exiting) result = fault_of(me.device);
  lock.unlock();
  run_callbacks(reclaimed);
  // Not ready is an answer, not an error.
  bool const is_error = result != cudaSuccess && result != cudaErrorNotReady;
  if (is_error && (which & never_failed) == 0) me.last_error = result;
  return result;
}

}  // namespace escrow::sim::model
