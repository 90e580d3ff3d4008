// SPDX-License-Identifier: Apache-2.0
// What memory costs the host that is allocated and freed through a memory resource (cuda::mr):
// Escrow's, RMM's, and the pool below Escrow's.
//
// Rounds as in the claim bench: resource/pairs/threads:T/streams:S: memory of one size is freed
// before the next allocation. resource/random/...: each thread has 64 allocations of 256 bytes to
// 4 MiB, and replaces one after the other: the pattern of RMM's own benchmarks.
// resource_turns/escrow_over_scratch: pairs, of a resource and by leases.
#include <escrow/memory_resource.hpp>
#include <escrow/pool.hpp>

#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

// Memory by its lease, without a resource.
claim_setup scratch_pairs() {
  return by_stream(
      [pool = std::make_shared<scratch_pool>(pool_options{.slots_max = 4096, .label = "scratch"})](
          cudaStream_t on, cudaStream_t) { pool->claim(on, claimed_bytes).release(); });
}

memory_resource escrow_resource() {
  return memory_resource(stream_allocator({.slots_max = 4096, .label = "resource"}));
}

void add_pattern(settings const& how, std::string const& name, bool is_random) {
  std::vector<claim_arm> arms{{"rmm", nullptr}};
  if (&rmm_arms != nullptr) arms = rmm_arms(is_random);
  arms.push_back({"escrow", setup_of<&escrow_resource>(is_random)});
  arms = present_arms(arms);
  auto const add_load = [&](int threads, int streams) {
    add_rounds("resource/" + name + "/threads:" + std::to_string(threads) +
                   "/streams:" + std::to_string(streams),
               how, arms, {"escrow"}, {.threads = threads, .streams = streams});
  };
  for (int const threads : {1, 2, 4, 8, 16}) add_load(threads, 1);
  add_load(8, 4);
}

}  // namespace

void register_all(settings const& how) {
  add_pattern(how, "pairs", false);
  add_pattern(how, "random", true);
  add_pair("resource_turns/escrow_over_scratch", how, {"scratch", &scratch_pairs},
           {"escrow", setup_of<&escrow_resource>(false)}, {});
  if (&register_cub_relaunch != nullptr) register_cub_relaunch(how);
}

}  // namespace escrow::bench
