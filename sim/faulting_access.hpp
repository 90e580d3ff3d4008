// SPDX-License-Identifier: Apache-2.0
// What the instruction does that faulted.
#pragma once

namespace escrow::sim::model {

// Whether it reads the memory, also if it then writes it, as `++*counter` does. `context`: of a
// signal handler. False where nobody knows.
[[nodiscard]] bool reads_memory(void const* context) noexcept;
// Whether it writes it. True where nobody knows.
[[nodiscard]] bool writes_memory(void const* context) noexcept;
// Of one that writes: so many bytes, or fewer, from its address on. 64 where nobody knows.
[[nodiscard]] unsigned written_bytes(void const* context) noexcept;

}  // namespace escrow::sim::model
