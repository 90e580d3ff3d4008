// SPDX-License-Identifier: Apache-2.0
// Audits that are a part of another call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "escrow/internal/reference_set.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class graph_ref;
struct audit_finding;
struct hoist_note;
enum class audit_use : std::uint8_t;

// As audit(), for a function `call`. `with_freed`: without, what is freed is not looked at.
[[nodiscard]] std::vector<audit_finding> audit_for(char const* call, graph_ref const& graph,
                                                   std::span<cudaGraph_t const> bodies,
                                                   bool with_freed);

enum class audited_call : std::uint8_t { capture, instantiate };

// Whether such a call refuses anything.
[[nodiscard]] bool is_audited(audited_call what, audit_use use) noexcept;

// Throws usage_error, naming `call`, if the graph is to be audited and something is found, and as
// audit(). By default nothing is audited while a sharing group is parked.
void refuse_audited(char const* call, graph_ref const& graph, audit_use use, audited_call what,
                    std::span<cudaGraph_t const> bodies = {});

// On the simulated runtime, unless nothing is to be audited: throws usage_error if there is more
// environment::eager_work() than `before`, and the graph that was captured has no nodes and holds
// nothing. If all is to be refused, also if it has.
void refuse_not_captured(char const* call, cudaGraph_t captured, audit_use use,
                         std::uint64_t before);

// If captures are audited: throws usage_error if a captured copy, or the argument of a captured
// host function, is in this thread's stack below `frame`, where no function is left that has it.
void refuse_dead_stack(char const* call, cudaGraph_t captured, audit_use use, void const* frame);

// Throws usage_error if the graph still uses memory that the `hoisted` has released, and as
// audit(). `by`: null: nothing is asked.
void refuse_released(char const* call, graph_ref const& graph, hoist_note const* by,
                     std::span<cudaGraph_t const> bodies);

// If captures are audited: throws usage_error, naming `call`, if what the holder holds owns the
// holder: neither would ever be destroyed. If all is to be refused, also if a pointer to the holder
// is in it. `what`: it is an "exec".
void refuse_own_owner(char const* call, audit_use use, char const* what, void const* holder,
                      deferred_releases const& held);

}  // namespace escrow::inline v0_2
