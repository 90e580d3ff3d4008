// SPDX-License-Identifier: Apache-2.0
// What work on a stream may not be given: memory that was freed, or that a library under test keeps
// for its next user, and, if memory is apart, pointers to memory of the host.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// What ESCROW_AUDIT says: 0, nothing, or else.
enum class audits : std::uint8_t { off, by_default, all };
[[nodiscard]] audits asked_audits() noexcept;

// Ends the process if an operand of work on a stream is such. `call`: for the message. Returns
// whose memory the others are. Lock held.
std::vector<memory_use> refuse_operands(char const* call, work const& what);
// The same for all nodes of a graph that is launched, also in child graphs and bodies; returns
// arenas and slots that were claimed in captures, which have no lease's number, too.
std::vector<memory_use> refuse_operands(char const* call, graph_state const& graph);
// The same for work that becomes a node of the capture with this id; of its leases nothing is
// known.
void refuse_operands(char const* call, work const& what, std::uint64_t capture);
// The lease that has an address, if one is known.
memory_use lease_around(void const* address);
// Whether a library under test has had memory.
[[nodiscard]] bool is_library_used() noexcept;
// Ends the process if a lease has what `call` is to free. Lock held.
void refuse_free(char const* call, void const* address);
// The same, of memory that was freed, for work that begins or ends. Lock held.
void refuse_freed(work const& what);

// Whether an address is in idle memory; then writes whose that is, and what to do, to the text of
// `question`, a memory_question. A launched graph may have memory that no stream may use; work in a
// capture may not use what a later claim of that may get. If a lease has the address, `lease`, a
// memory_lease, tells which, and the text its pool's name; for a graph's address in an arena, or in
// a slot of captures, its number is 0. Calls no CUDA function, and takes no lock under which its
// library calls one. Any thread.
using idle_memory_question = bool (*)(void const* question, void* lease) noexcept;

}  // namespace escrow::sim::model

extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_asks(
    escrow::sim::model::idle_memory_question is_idle) noexcept;
