// SPDX-License-Identifier: Apache-2.0
// Memory that a library under test keeps for its next user: nothing may use it meanwhile.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// Ends the process if an operand of the work is in such memory. `call`: for the message. Lock held.
void refuse_idle_memory(char const* call, work const& what);
// The same for all nodes of a graph, also in child graphs and bodies.
void refuse_idle_memory(char const* call, graph_state const& graph);

}  // namespace escrow::sim::model

// `is_idle`: whether an address is in idle memory; then it writes whose that is to a text of so
// many bytes. It calls no CUDA function, and takes no lock under which its library calls one. Any
// thread.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_asks(
    bool (*is_idle)(void const* address, char* owner, std::size_t bytes) noexcept) noexcept;
