// The arms of the claim bench, and how it runs them; the resource bench has arms of its own.
#pragma once

#include <benchmark/benchmark.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "claim_arm.hpp"
#include "claim_team.hpp"

namespace escrow::bench {

using claim_arm = arm<claim_setup()>;

inline constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024
inline constexpr int some = 64;   // the same of arms that take much longer
inline constexpr int few = 4;

// Those that the bench compares. The setup of those that this program was built without is null.
[[nodiscard]] std::vector<claim_arm> const& claim_arms();

// What makes one of them, or of those that are only compared with another one.
[[nodiscard]] claim_setup (*setup_of(std::string_view name))();

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

// Samples the stacks of two arms in turns on 8 threads, for some seconds: an event record a pair,
// and claimers. Writes FOLDER/claim_ARM.stacks of each, which bench/flame.py reads.
void run_stacks(benchmark::State& state, std::string const& folder, int seconds);

}  // namespace escrow::bench
