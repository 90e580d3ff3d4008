// SPDX-License-Identifier: Apache-2.0
// What is alive in the simulated runtime, and what was called.
#include "graph_memory.hpp"

#include <escrow/sim/counts.hpp>

#include <cstdio>

// For Escrow's texts.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_last_invalidation(
    char* text, unsigned long long bytes) noexcept;

namespace escrow::sim {

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
  now.memory_pools = s.memory_pools.size();
  now.address_ranges = s.ranges.size();
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
  std::uint64_t sum = 0;
  for (auto const& [name, count] : s.calls_by_name) {
    if (name == api) sum += count;
  }
  return sum;
}

bool has_context(int device) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  return s.devices.at(static_cast<std::size_t>(device)).has_context;
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

void escrow_simulated_last_invalidation(char* text, unsigned long long bytes) noexcept {
  auto& s = escrow::sim::model::the();
  std::lock_guard const lock(s.mutex);
  std::snprintf(text, bytes, "%s", s.last_invalidation.c_str());
}
