// Audits that are a part of another call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

class graph_ref;
enum class audit_use : std::uint8_t;

enum class audited_call : std::uint8_t { capture, instantiate };

// Throws usage_error, naming `call`, if the graph is to be audited and something is found, and as
// audit().
void refuse_audited(char const* call, graph_ref const& graph, audit_use use, audited_call what,
                    std::span<cudaGraph_t const> bodies = {});

}  // namespace escrow::inline v0_1
