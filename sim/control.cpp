// Faults, recordings and counts: the part of the control interface that looks at the state or
// marks it.
#include "graph_memory.hpp"
#include "runner.hpp"
#include "thread.hpp"

#include <escrow/sim/counts.hpp>
#include <escrow/sim/faults.hpp>
#include <escrow/sim/recording.hpp>

#include <utility>

namespace escrow::sim {
void fail_nth(std::uint64_t n, cudaError_t error) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_number[s.injectable_calls + n] = error;
}

void fail_nth_here(std::uint64_t n, cudaError_t error) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_thread[model::this_thread().number] = {n, error};
}

void fail_call(std::string_view api, cudaError_t error, std::uint64_t nth, std::uint64_t times) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.faults_by_name[std::string(api)].push_back({error, nth - 1, times});
}

void fail_call_here(std::string_view api, cudaError_t error, std::uint64_t nth,
                    std::uint64_t times) {
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

bool has_context(int device) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.devices.at(static_cast<std::size_t>(device)).has_context;
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

counts alive() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  counts now;
  now.streams = s.streams.size();
  now.events = s.events.size();
  for (auto const& [handle, graph] : s.graphs) now.graphs += graph->embedded ? 0 : 1;
  now.execs = s.execs.size();
  now.execs_in_flight = s.execs_in_flight;
  now.user_objects = s.user_objects.size();
  now.host_allocations = s.allocated.of_host;
  now.device_allocations = s.allocated.of_device;
  now.device_bytes = s.allocated.device_bytes;
  for (auto const& [address, block] : s.graph_blocks) {
    ++now.device_allocations;
    now.device_bytes += block->params.bytesize;
  }
  now.captures = s.captures.size();
  now.pending_ops = s.pending_ops;
  now.libraries = s.libraries.size();
  now.condition_values = s.conditions.size();
  now.pending_callbacks = s.callback_queue.size();
  return now;
}

std::uint64_t calls() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.calls;
}

std::uint64_t calls(std::string_view api) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  auto const found = s.calls_by_name.find(api);
  return found == s.calls_by_name.end() ? 0 : found->second;
}

std::uint64_t calls_in_callbacks() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.calls_in_callbacks;
}

std::uint64_t unloaded_kernel_launches() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.unloaded_launches;
}

std::uint64_t captures_invalidated() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.captures_invalidated;
}

std::string last_invalidation() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.last_invalidation;
}

}  // namespace escrow::sim
