// What the claim bench's arms consist of, and the arms of other libraries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace escrow::bench {

// What all arms claim: as much memory as an arm that allocates memory is asked for.
constexpr std::size_t claimed_bytes = std::size_t{1} << 20;

// The streams of one thread.
using claim_streams = std::vector<cudaStream_t>;
// Claims for one of the thread's streams and releases on one, mostly the same, by their places.
using claim_pair = std::function<void(std::size_t on, std::size_t last)>;
// What the threads share: makes the pair of the calling thread.
using claim_setup = std::function<claim_pair(claim_streams const&)>;

// The setup of an arm without more state of a thread than its streams: `pair(on, last)` gets
// these.
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

}  // namespace escrow::bench
