// SPDX-License-Identifier: Apache-2.0
// What every API function does first and last.
#include "call.hpp"

#include "runner_shared.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace escrow::sim::model {
namespace {

// CUDA's descriptions of these say that the process is left in an inconsistent state.
bool loses_device(cudaError_t error) {
  constexpr std::array lasting{cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,
                               cudaErrorLaunchFailure,       cudaErrorAssert,
                               cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,
                               cudaErrorMisalignedAddress,   cudaErrorInvalidAddressSpace,
                               cudaErrorInvalidPc,           cudaErrorECCUncorrectable,
                               cudaErrorNvlinkUncorrectable, cudaErrorContextIsDestroyed,
                               cudaErrorContained,           cudaErrorTensorMemoryLeak,
                               cudaErrorExternalDevice,      cudaErrorMpsClientTerminated};
  return std::ranges::find(lasting, error) != lasting.end();
}

}  // namespace

cudaError_t fault() {
  return the().fault;
}

api_call::api_call(char const* function)
    : name(function), s(the()), lock(s.mutex), me(this_thread()) {}

cudaError_t api_call::injected() {
  bool const is_recorded =
      s.recording && (s.recorded_thread == 0 || s.recorded_thread == me.number);
  if (is_recorded) s.recorded.push_back({name, me.number});
  return ordered_fault();
}

cudaError_t api_call::numbered_fault() {
  auto const of_thread = s.faults_by_thread.find(me.number);
  if (of_thread != s.faults_by_thread.end() && --of_thread->second.first == 0) {
    auto const error = of_thread->second.second;
    s.faults_by_thread.erase(of_thread);
    return error;
  }
  auto const found = s.faults_by_number.find(s.injectable_calls);
  if (found == s.faults_by_number.end()) return cudaSuccess;
  auto const error = found->second;
  s.faults_by_number.erase(found);
  return error;
}

cudaError_t api_call::ordered_fault() {
  ++s.injectable_calls;
  if (auto const error = numbered_fault(); error != cudaSuccess) {
    if (!loses_device(error)) return error;
    break_device(me.device, error);
    return cudaSuccess;
  }
  auto const found = s.faults_by_name.find(std::string_view(name));
  if (found == s.faults_by_name.end()) return cudaSuccess;
  auto error = cudaSuccess;
  for (auto& fault : found->second) {
    if (fault.thread != 0 && fault.thread != me.number) continue;
    if (fault.skip > 0) {
      --fault.skip;
    } else if (error == cudaSuccess && fault.times > 0) {
      --fault.times;
      fault.was_made = true;
      error = fault.error;
    }
  }
  return error;
}

cudaError_t api_call::admit(unsigned which) {
  if (s.exiting) return cudaErrorCudartUnloading;
  if (me.kernel != nullptr) {
    give_up(std::string(name) + " in the body of a kernel: device code calls nothing of the host");
  }
  ++s.calls;
  ++s.calls_by_name[name];
  if (me.in_callback != 0) {
    ++s.calls_in_callbacks;
    if ((which & in_callbacks) == 0) return cudaErrorNotPermitted;
  }
  if ((which & never_failed) == 0) {
    if (auto const error = injected(); error != cudaSuccess) return error;
  }
  if ((which & without_context) == 0 && !me.asks_driver) make_context();
  return (which & (outlives_fault | frees)) != 0 ? cudaSuccess : fault();
}

void api_call::make_context() {
  if (fault() != cudaSuccess) return;
  s.devices[static_cast<std::size_t>(me.device)].has_context = true;
  me.has_context = true;
}

void api_call::note_user() {
  if (s.last_user == me.number) return;
  if (std::exchange(s.last_user, me.number) != 0) s.user_changed_at = s.calls;
}

void api_call::leave_sole_uses(bool are_others_there) {
  if (sole_uses.empty()) return;
  // Time for whoever should not be here to come in. On a busy machine it is milliseconds.
  if (are_others_there) std::this_thread::yield();
  // relaxed: see enter().
  for (auto const& each : sole_uses) each->user.store(0, std::memory_order_relaxed);
}

cudaError_t api_call::finish(cudaError_t result, unsigned which) {
  if (result == cudaSuccess && (which & frees) != 0 && !s.exiting) result = fault();
  constexpr std::uint64_t lately = 1000;
  bool const are_others_there = s.user_changed_at != 0 && s.calls - s.user_changed_at < lately;
  lock.unlock();
  leave_sole_uses(are_others_there);
  run_callbacks(reclaimed);
  // Not ready is an answer, not an error.
  bool const is_error = result != cudaSuccess && result != cudaErrorNotReady;
  if (is_error && (which & never_failed) == 0) me.last_error = result;
  return result;
}

}  // namespace escrow::sim::model
