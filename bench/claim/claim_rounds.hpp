// Rounds of arms in turns: how the benches of claims and of resources measure.
#pragma once

#include <benchmark/benchmark.h>

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "claim_arms.hpp"
#include "claim_team.hpp"

namespace escrow::bench {

// One arm's time over another's.
using arm_ratio = std::pair<std::string_view, std::string_view>;

// All arms in turns: ratios are of one round, and the host's speed changes between runs by more
// than the arms differ.
void run_arms(benchmark::State& state, std::vector<claim_arm> const& present,
              std::span<arm_ratio const> ratios, claim_load const& load, int pairs);

// Two arms in turns.
void run_in_turns(benchmark::State& state, claim_setup base, claim_setup other,
                  claim_load const& load, int pairs);

// Those of the arms that this program has and that work here. What another library lacks, or throws
// at its first claim, skips its arm alone.
[[nodiscard]] std::vector<claim_arm> present_arms(std::vector<claim_arm> const& all,
                                                  settings const& how);

}  // namespace escrow::bench
