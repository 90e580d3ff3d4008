// SPDX-License-Identifier: Apache-2.0
// What arms of claims and releases consist of, and how they are run in turns: the claim bench's and
// the resource bench's.
#pragma once

#include <cuda_runtime_api.h>

#include "bench.hpp"

namespace escrow::bench {

// What all arms claim: as much memory as an arm that allocates memory is asked for.
constexpr std::size_t claimed_bytes = std::size_t{1} << 20;

// The streams of one thread.
using claim_streams = std::vector<cudaStream_t>;
// Claims for one of the thread's streams and releases on that or another one, by their places.
using claim_pair = std::function<void(std::size_t on, std::size_t last)>;
// What the threads share: makes the pair of the calling thread.
using claim_setup = std::function<claim_pair(claim_streams const&)>;
using claim_arm = arm<claim_setup()>;

inline constexpr int some = 64;  // pairs in a row of arms that take much longer

// The setup of an arm that claims and releases by `pair(on, last)`, of streams.
template <class Pair>
claim_setup by_stream(Pair pair) {
  return [pair](claim_streams const& mine) -> claim_pair {
    return [pair, mine](std::size_t on, std::size_t last) { pair(mine[on], mine[last]); };
  };
}

// Null if not built: there is no CUB on the simulated runtime, and the others are optional.
[[gnu::weak]] claim_setup cub_allocator();
[[gnu::weak]] claim_setup rmm_pool();
[[gnu::weak]] claim_setup rmm_fixed_size();
[[gnu::weak]] claim_setup pytorch_allocator();

// The claim bench's arms that are compared with each other.
[[nodiscard]] std::vector<claim_arm> claim_arms();
// Those for two streams of a thread in turn. One slot for both: each claim takes what the other
// stream has released, with claimers or without.
[[nodiscard]] claim_setup steal();
[[nodiscard]] claim_setup escrow_steal();
// Two slots, and no claim that waits: all are for the first stream.
[[nodiscard]] claim_setup escrow_on_first_stream();

struct claim_load {
  int threads = 1;
  int streams = 1;    // of each thread
  int migrating = 0;  // percent of leases that are released on another stream
};

// Those of the arms that this program has and that work here. What another library lacks, or throws
// at its first claim, skips its arm alone.
[[nodiscard]] std::vector<claim_arm> present_arms(std::vector<claim_arm> const& all);

// Registers rounds of all arms in turns. ARM_us is the median of an arm's time, ARM_of_BASE that of
// its time over another's, in the same round: the host's speed changes between runs by more than
// the arms differ.
void add_rounds(std::string const& name, settings const& how, std::vector<claim_arm> const& arms,
                std::vector<std::string> const& bases, claim_load const& load);

// Registers NAME/on_threads:T, two arms in more rounds. of_base is the median of their ratio.
void add_pair(std::string const& name, settings const& how, claim_arm const& base,
              claim_arm const& other, claim_load const& load);

}  // namespace escrow::bench
