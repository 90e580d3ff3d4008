// SPDX-License-Identifier: Apache-2.0
// Faults that tests order, and recordings of the calls that can be failed.
#include "runner_shared.hpp"
#include "thread.hpp"

#include <escrow/sim/faults.hpp>
#include <escrow/sim/recording.hpp>

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace escrow::sim {

namespace {
void require_failure(char const* call, std::uint64_t nth, cudaError_t error) {
  std::string const name = std::string("escrow::sim::") + call;
  if (nth == 0) throw std::invalid_argument(name + ": 1 is the next call, not 0");
  if (error == cudaSuccess) throw std::invalid_argument(name + ": cudaSuccess fails nothing");
}

void require_function(char const* call, std::string_view api) {
  bool const can_tell = dlsym(RTLD_DEFAULT, "cudaMalloc") != nullptr;  // not if linked statically
  if (!can_tell || !api.starts_with("cuda")) return;  // the driver's are not looked up
  if (dlsym(RTLD_DEFAULT, std::string(api).c_str()) != nullptr) return;
  throw std::invalid_argument(std::string("escrow::sim::") + call + ": there is no function " +
                              std::string(api) + "; name the runtime's function as it is called");
}
}  // namespace

void fail_nth(std::uint64_t n, cudaError_t error) {
  require_failure("fail_nth", n, error);
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_number[s.injectable_calls + n] = error;
}

void fail_nth_here(std::uint64_t n, cudaError_t error) {
  require_failure("fail_nth_here", n, error);
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_thread[model::this_thread().number] = {n, error};
}

void fail_call(std::string_view api, cudaError_t error, std::uint64_t nth, std::uint64_t times) {
  require_failure("fail_call", nth, error);
  require_function("fail_call", api);
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_name[std::string(api)].push_back({error, nth - 1, times});
}

void fail_call_here(std::string_view api, cudaError_t error, std::uint64_t nth,
                    std::uint64_t times) {
  require_failure("fail_call_here", nth, error);
  require_function("fail_call_here", api);
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  auto const caller = model::this_thread().number;
  s.faults_by_name[std::string(api)].push_back({error, nth - 1, times, caller});
}

void fail_device(int device, cudaError_t sticky) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  model::break_device(device, sticky);
}

bool has_failed(int device) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.devices.at(static_cast<std::size_t>(device)).fault != cudaSuccess;
}

std::uint64_t faults_pending() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  std::uint64_t pending = s.faults_by_number.size() + s.faults_by_thread.size();
  for (auto const& [name, faults] : s.faults_by_name) {
    for (auto const& each : faults) pending += each.times;
  }
  return pending;
}

void clear_faults() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_number.clear();
  s.faults_by_thread.clear();
  s.faults_by_name.clear();
  s.fault = cudaSuccess;
  for (auto& d : s.devices) d.fault = cudaSuccess;
}

void start_recording(recorded_threads of) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.recording = true;
  s.recorded_thread = of == recorded_threads::all ? 0 : model::this_thread().number;
  s.recorded.clear();
}

std::vector<recorded_call> stop_recording() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.recording = false;
  return std::exchange(s.recorded, {});
}

}  // namespace escrow::sim
