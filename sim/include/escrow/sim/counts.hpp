// SPDX-License-Identifier: Apache-2.0
// What is alive in the simulated runtime: the leak check of every test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace escrow::sim {

// How many of each kind are alive. Default streams do not count; embedded and body graphs count
// with their parent.
struct counts {
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t graphs = 0;
  // Execs not destroyed by the caller.
  std::size_t execs = 0;
  // Destroyed execs whose last launch is still running.
  std::size_t execs_in_flight = 0;
  std::size_t user_objects = 0;
  std::size_t device_allocations = 0;
  std::size_t device_bytes = 0;
  std::size_t host_allocations = 0;
  std::size_t memory_pools = 0;    // made and not destroyed
  std::size_t address_ranges = 0;  // reserved and not freed
  // Captures begun and not ended, the invalidated ones included.
  std::size_t captures = 0;
  // Operations on streams that are not done.
  std::size_t pending_ops = 0;
  // User-object destructors and host functions that wait for the callback thread.
  std::size_t pending_callbacks = 0;
  // Libraries loaded and not unloaded.
  std::size_t libraries = 0;
  // Values of conditions, of execs that were launched.
  std::size_t condition_values = 0;

  bool operator==(counts const&) const = default;
};

// What is alive now.
[[nodiscard]] counts alive();

// All API calls since reset(), those that failed included.
[[nodiscard]] std::uint64_t calls();
// The calls of one function, by its name: "cudaEventRecord".
[[nodiscard]] std::uint64_t calls(std::string_view api);
// Whether the process uses the device: it has a context there.
[[nodiscard]] bool has_context(int device);
// API calls made from inside a user-object destructor or a host function, allowed there or not.
[[nodiscard]] std::uint64_t calls_in_callbacks();

// How many captures were killed by a forbidden call since reset().
[[nodiscard]] std::uint64_t captures_invalidated();
// The call and the thread that killed a capture last: "cudaMalloc on thread 3 (worker)". Empty if
// none was.
[[nodiscard]] std::string last_invalidation();

// How many kernels were to run whose library had been unloaded, or was while they ran. Each is a
// failure of its device for good, with cudaErrorLaunchFailure.
[[nodiscard]] std::uint64_t unloaded_kernel_launches();

}  // namespace escrow::sim
