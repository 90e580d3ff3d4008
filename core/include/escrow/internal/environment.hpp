// SPDX-License-Identifier: Apache-2.0
// What the program's environment asks for, and whether the runtime is the simulated one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "escrow/version.hpp"

namespace escrow::inline v0_2::environment {

// ESCROW_AUDIT: not set, "0", or else.
enum class audits : std::uint8_t { by_default, off, on };

// Each variable is read once. Any thread.
[[nodiscard]] audits asked_audits() noexcept;
[[nodiscard]] bool is_reuse_late() noexcept;  // ESCROW_REUSE=late
[[nodiscard]] bool
is_memory_reused_late() noexcept;                  // the same, or it is not set and asks_guards()
[[nodiscard]] bool asks_guards() noexcept;         // ESCROW_MEMORY=apart, if simulated
[[nodiscard]] bool asks_runtime_calls() noexcept;  // ESCROW_RUNTIME_CALLS=1
[[nodiscard]] bool is_simulated() noexcept;
// Of the simulated runtime: 0 if its time is not stepped, else it grows with each step.
[[nodiscard]] std::uint64_t simulated_steps() noexcept;

// To the simulated runtime: the calling thread destroys what was retired behind that event; null:
// it destroys nothing.
void simulated_destroys(cudaEvent_t ready) noexcept;
// The same: the calling thread begins, or ends, to reclaim, and so may call functions of its user.
void simulated_reclaims(bool begins) noexcept;
// The same: what becomes of a lease of this memory.
//     claimed   for that stream, which does not capture
//     told      of another stream, or claimed in a capture
//     given     to a launch as an argument: the calling thread's next
//     ended     and no graph has it
//     kept      an object's, claimed again as it is: its pool has no `recycle`
enum class lease_event : std::uint8_t { claimed, told, given, ended, kept };
void simulated_lease(lease_event what, void const* memory, std::size_t bytes,
                     cudaStream_t stream) noexcept;
// The same: for a message, the call that has invalidated a capture last; else what tells it.
[[nodiscard]] std::string last_invalidation();

// The same: how much work the calling thread has enqueued on streams that do not capture, but for
// what it enqueued in the lifetime of an uncounted_work.
[[nodiscard]] std::uint64_t eager_work() noexcept;
class [[nodiscard]] uncounted_work {
 public:
  uncounted_work() noexcept : before_(eager_work()) {}
  uncounted_work(uncounted_work&&) = delete;
  ~uncounted_work();

 private:
  std::uint64_t before_;
};

}  // namespace escrow::inline v0_2::environment
