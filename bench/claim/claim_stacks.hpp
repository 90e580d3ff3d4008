// What the pairs of the claim bench consist of: samples of the threads' stacks.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

namespace escrow::bench {

// Two arms in turns on 8 threads, for some seconds: an event record a pair, and claimers. Writes
// FOLDER/claim_ARM.stacks of each, which bench/fold_stacks.py reads.
void run_stacks(benchmark::State& state, std::string const& folder, int seconds);

}  // namespace escrow::bench
